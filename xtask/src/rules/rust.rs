//! Rust source as tokens with line numbers: enough to find items, parameters and literals.

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A name or a keyword.
    Word,
    /// A string; the text is what stands between its quotes.
    Text,
    /// A number, a character or a lifetime.
    Other,
    /// One sign.
    Sign,
}

/// One token; comments are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: TokenKind,
    pub(crate) text: &'a str,
    /// Counted from 1.
    pub(crate) line: usize,
}

impl Token<'_> {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.kind != TokenKind::Text && self.text == text
    }
}

/// All tokens of a file.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer { source, at: 0, line: 1 };
    let mut tokens = Vec::new();
    while let Some(token) = lexer.next_token() {
        tokens.push(token);
    }
    tokens
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: usize,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    /// Moves on by so many bytes.
    fn take(&mut self, bytes: usize) -> &'a str {
        let taken = &self.rest()[..bytes];
        self.line += taken.matches('\n').count();
        self.at += bytes;
        taken
    }

    fn next_token(&mut self) -> Option<Token<'a>> {
        self.skip_blanks();
        let line = self.line;
        let first = self.rest().chars().next()?;
        let (kind, text) = if let Some(text) = self.string() {
            (TokenKind::Text, text)
        } else if first.is_alphabetic() || first == '_' {
            (TokenKind::Word, self.while_(|c| c.is_alphanumeric() || c == '_'))
        } else if first.is_ascii_digit() {
            (TokenKind::Other, self.while_(|c| c.is_alphanumeric() || c == '_'))
        } else if first == '\'' {
            (TokenKind::Other, self.quote())
        } else {
            (TokenKind::Sign, self.take(first.len_utf8()))
        };
        Some(Token { kind, text, line })
    }

    fn while_(&mut self, holds: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest().find(|c| !holds(c)).unwrap_or(self.rest().len());
        self.take(end)
    }

    /// White space and comments, which may be nested.
    fn skip_blanks(&mut self) {
        loop {
            self.while_(char::is_whitespace);
            if self.rest().starts_with("//") {
                self.while_(|c| c != '\n');
            } else if self.rest().starts_with("/*") {
                self.take(2);
                let mut depth = 1;
                while depth > 0 && !self.rest().is_empty() {
                    if self.rest().starts_with("/*") {
                        depth += 1;
                        self.take(2);
                    } else if self.rest().starts_with("*/") {
                        depth -= 1;
                        self.take(2);
                    } else {
                        let first = self.rest().chars().next().map_or(1, char::len_utf8);
                        self.take(first);
                    }
                }
            } else {
                return;
            }
        }
    }

    /// A string of any kind, if one begins here.
    fn string(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        let after = rest.trim_start_matches(['b', 'c', 'r']);
        let prefix = rest.len() - after.len();
        let is_raw = rest[..prefix].ends_with('r');
        let hashes = if is_raw { after.len() - after.trim_start_matches('#').len() } else { 0 };
        if prefix > 2 || !after[hashes..].starts_with('"') {
            return None;
        }
        self.take(prefix + hashes + 1);
        let end = if is_raw {
            let close = format!("\"{}", "#".repeat(hashes));
            self.rest().find(&close).unwrap_or(self.rest().len())
        } else {
            end_of_string(self.rest())
        };
        let text = self.take(end);
        self.take((1 + hashes).min(self.rest().len()));
        Some(text)
    }

    /// A character or a lifetime.
    fn quote(&mut self) -> &'a str {
        let mut chars = self.rest().char_indices().skip(1);
        let (_, first) = chars.next().unwrap_or((0, ' '));
        let second = chars.next();
        if first == '\\' {
            let end = self.rest()[3..].find('\'').map_or(self.rest().len(), |end| end + 4);
            self.take(end)
        } else if let Some((place, '\'')) = second {
            self.take(place + 1)
        } else {
            self.take(1);
            self.while_(|c| c.is_alphanumeric() || c == '_')
        }
    }
}

/// Where the closing quote of a string with escapes stands.
fn end_of_string(text: &str) -> usize {
    let mut is_escaped = false;
    for (place, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return place,
            _ => {}
        }
    }
    text.len()
}

/// The place after the bracket that closes the one at `open`.
pub(crate) fn after_bracket(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (place, token) in tokens.iter().enumerate().skip(open) {
        if token.is("(") || token.is("[") || token.is("{") {
            depth += 1;
        } else if token.is(")") || token.is("]") || token.is("}") {
            depth -= 1;
            if depth == 0 {
                return place + 1;
            }
        }
    }
    tokens.len()
}

/// The tokens that are not of tests: without items under `#[cfg(test)]` and `#[test]`.
pub(crate) fn without_tests<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_attribute =
            tokens[at].is("#") && tokens.get(at + 1).is_some_and(|next| next.is("["));
        if !is_attribute {
            kept.push(tokens[at]);
            at += 1;
            continue;
        }
        let end = after_bracket(tokens, at + 1);
        if is_test(&tokens[at + 2..end]) {
            at = after_item(tokens, end);
        } else {
            kept.extend_from_slice(&tokens[at..end]);
            at = end;
        }
    }
    kept
}

/// Whether an attribute is `test`, or a `cfg` that only tests fulfil.
fn is_test(attribute: &[Token]) -> bool {
    let names = |text: &str| attribute.iter().any(|token| token.is(text));
    let is_cfg = attribute.first().is_some_and(|first| first.is("cfg"));
    let is_bare = attribute.len() == 2 && attribute[0].is("test");
    is_bare || (is_cfg && names("test") && !names("not") && !names("any"))
}

/// The place after the item whose attributes may continue at `at`.
fn after_item(tokens: &[Token], mut at: usize) -> usize {
    while at < tokens.len() {
        let token = &tokens[at];
        if token.is(";") {
            return at + 1;
        }
        if token.is("{") {
            return after_bracket(tokens, at);
        }
        at = if token.is("(") || token.is("[") { after_bracket(tokens, at) } else { at + 1 };
    }
    at
}

/// One `fn` with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    /// The line of `fn`.
    pub(crate) line: usize,
    /// The line of its last bracket; the same one if it has no body.
    pub(crate) end: usize,
    /// What stands between the brackets of its parameters.
    pub(crate) parameters: Vec<Token<'a>>,
}

/// All functions, also those inside others.
pub(crate) fn functions<'a>(tokens: &[Token<'a>]) -> Vec<Function<'a>> {
    let mut found = Vec::new();
    for (place, pair) in tokens.windows(2).enumerate() {
        if !pair[0].is("fn") || pair[1].kind != TokenKind::Word {
            continue;
        }
        let open = after_generics(tokens, place + 2);
        let close = after_bracket(tokens, open);
        let body = (close..tokens.len()).find(|at| tokens[*at].is("{") || tokens[*at].is(";"));
        let last = match body {
            Some(body) if tokens[body].is("{") => after_bracket(tokens, body) - 1,
            Some(semicolon) => semicolon,
            None => tokens.len() - 1,
        };
        found.push(Function {
            name: pair[1].text,
            line: pair[0].line,
            end: tokens[last].line,
            parameters: tokens[(open + 1).min(close)..close.saturating_sub(1).max(open + 1)]
                .to_vec(),
        });
    }
    found
}

/// The place after `<…>`, if it begins at `at`. The arrow of `Fn() -> T` closes nothing.
fn after_generics(tokens: &[Token], at: usize) -> usize {
    if !tokens.get(at).is_some_and(|token| token.is("<")) {
        return at;
    }
    let mut depth = 0;
    for place in at..tokens.len() {
        if tokens[place].is("<") {
            depth += 1;
        } else if tokens[place].is(">") && !tokens[place - 1].is("-") {
            depth -= 1;
            if depth == 0 {
                return place + 1;
            }
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<&str> {
        tokens(source).iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_strings_characters_and_lifetimes_are_told_apart() {
        let source = r##"a /* b /* c */ d */ "e \" f" r#"g " h"# 'i' '\'' &'j k // l"##;
        assert_eq!(words(source), ["a", "e \\\" f", "g \" h", "'i'", "'\\''", "&", "j", "k"]);
        let kinds: Vec<TokenKind> = tokens("x \"x\" b\"x\" br").iter().map(|t| t.kind).collect();
        assert_eq!(kinds, [TokenKind::Word, TokenKind::Text, TokenKind::Text, TokenKind::Word]);
    }

    #[test]
    fn lines_are_counted_through_comments_and_strings() {
        let source = "/* 1\n2 */ \"3\n\" a\nb";
        let lines: Vec<usize> = tokens(source).iter().map(|token| token.line).collect();
        assert_eq!(lines, [2, 3, 4]);
    }

    #[test]
    fn items_of_tests_are_left_out() {
        let source = "#[cfg(test)]\nmod tests { fn a() { b } }\n#[cfg(not(test))]\nfn c() {}\n\
                      #[cfg(all(test, unix))]\n#[path = \"x\"]\nmod d;\n#[test]\nfn e() {} fn f() {}";
        let all = tokens(source);
        let names: Vec<&str> = functions(&without_tests(&all)).iter().map(|f| f.name).collect();
        assert_eq!(names, ["c", "f"]);
    }

    #[test]
    fn a_function_has_its_lines_and_parameters() {
        let source = "fn a<F: Fn(u8) -> Vec<u8>>(f: F, (x, y): (u8, u8))\nwhere F: Copy {\n {}\n}\n\
                      trait T { fn b(&self);\n}";
        let all = tokens(source);
        let found = functions(&all);
        let shown: Vec<_> = found.iter().map(|f| (f.name, f.line, f.end)).collect();
        assert_eq!(shown, [("a", 1, 4), ("b", 5, 5)]);
        let parameters: String = found[0].parameters.iter().map(|token| token.text).collect();
        assert_eq!(parameters, "f:F,(x,y):(u8,u8)");
    }
}
