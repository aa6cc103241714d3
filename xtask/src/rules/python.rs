//! Python source, as far as the rules need it: strings that are values, and functions.

/// One string that is not a comment or a docstring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PythonString<'a> {
    pub(crate) text: &'a str,
    /// Counted from 1.
    pub(crate) line: usize,
}

/// One `def`, from its line to the last one that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PythonFunction<'a> {
    pub(crate) name: &'a str,
    pub(crate) line: usize,
    pub(crate) end: usize,
}

/// What a scan finds.
pub(crate) struct Scanned<'a> {
    pub(crate) strings: Vec<PythonString<'a>>,
    /// For every line, whether a statement begins on it.
    begins: Vec<bool>,
}

/// Reads strings, comments and brackets.
pub(crate) fn scan(source: &str) -> Scanned<'_> {
    let mut scan = Scan { source, at: 0, depth: 0, begins: Vec::new(), strings: Vec::new() };
    scan.line_begins();
    while scan.at < source.len() {
        scan.step();
    }
    Scanned { strings: scan.strings, begins: scan.begins }
}

struct Scan<'a> {
    source: &'a str,
    at: usize,
    /// Open brackets.
    depth: usize,
    begins: Vec<bool>,
    strings: Vec<PythonString<'a>>,
}

impl<'a> Scan<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    /// Notes whether a statement begins on the line that begins here.
    fn line_begins(&mut self) {
        let line = self.rest().lines().next().unwrap_or_default().trim_start();
        let is_empty = line.is_empty() || line.starts_with('#');
        let continues = self.source[..self.at].trim_end_matches('\n').ends_with('\\');
        self.begins.push(self.depth == 0 && !is_empty && !continues);
    }

    fn step(&mut self) {
        let first = self.rest().chars().next().expect("not at the end");
        if first == '#' {
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
            return;
        }
        if let Some((open, quote)) = string_begins(self.source, self.at) {
            return self.string(open, quote);
        }
        match first {
            '(' | '[' | '{' => self.depth += 1,
            ')' | ']' | '}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.at += first.len_utf8();
        if first == '\n' && self.at < self.source.len() {
            self.line_begins();
        }
    }

    fn string(&mut self, open: usize, quote: &str) {
        let line = self.begins.len();
        let is_statement = {
            let start = self.source[..self.at].rfind('\n').map_or(0, |place| place + 1);
            self.begins[line - 1] && self.source[start..self.at].trim().is_empty()
        };
        let from = open + quote.len();
        let end =
            end_of_string(&self.source[from..], quote).map_or(self.source.len(), |e| e + from);
        let text = &self.source[from..end];
        self.begins.extend(text.matches('\n').map(|_| false));
        self.at = (end + quote.len()).min(self.source.len());
        let follows = self.rest().lines().next().unwrap_or_default().trim_start();
        let is_alone = follows.is_empty() || follows.starts_with('#');
        if !(is_statement && is_alone) {
            self.strings.push(PythonString { text, line });
        }
    }
}

/// Where the quote of a string stands and what it is, if one begins at `at`.
fn string_begins(source: &str, at: usize) -> Option<(usize, &'static str)> {
    let rest = &source[at..];
    let letters = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
    let before = source[..at].chars().next_back();
    let is_prefix = rest[..letters].chars().all(|c| "rbfuRBFU".contains(c)) && letters <= 2;
    let inside_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if !is_prefix || (letters > 0 && inside_word) {
        return None;
    }
    let quotes = ["\"\"\"", "'''", "\"", "'"];
    let quote = quotes.into_iter().find(|quote| rest[letters..].starts_with(quote))?;
    Some((at + letters, quote))
}

/// Where the closing quote stands.
fn end_of_string(text: &str, quote: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (place, c) in text.char_indices() {
        if is_escaped {
            is_escaped = false;
        } else if c == '\\' {
            is_escaped = true;
        } else if text[place..].starts_with(quote) {
            return Some(place);
        }
    }
    None
}

/// All functions and methods, also those inside others.
pub(crate) fn functions<'a>(source: &'a str, scanned: &Scanned) -> Vec<PythonFunction<'a>> {
    let lines: Vec<&str> = source.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let begins = |at: &usize| scanned.begins.get(*at).copied().unwrap_or(false);
    let mut found = Vec::new();
    for at in (0..lines.len()).filter(begins) {
        let statement = lines[at].trim_start();
        let definition = statement.strip_prefix("async ").unwrap_or(statement);
        let Some(rest) = definition.strip_prefix("def ") else { continue };
        let next =
            (at + 1..lines.len()).filter(begins).find(|k| indent(lines[*k]) <= indent(lines[at]));
        let body = &lines[at..next.unwrap_or(lines.len())];
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
        let count = body.iter().rposition(is_code).map_or(1, |last| last + 1);
        let name = rest.split('(').next().unwrap_or(rest).trim();
        found.push(PythonFunction { name, line: at + 1, end: at + count });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#""""A docstring with 'quotes'."""
x = ["a", f'b{"c"}', r"\d"]  # "comment"

def first(
    one="d",
):
    """Also
def a docstring: 'e'"""
    if one == "f":
        return """g
h"""

    def inner():
        pass

# about the next one
class C:
    async def second(self):
        return 1
"#;

    #[test]
    fn comments_and_docstrings_are_no_values() {
        let strings = scan(SOURCE).strings;
        let texts: Vec<(&str, usize)> = strings.iter().map(|s| (s.text, s.line)).collect();
        let expected = [("a", 2), ("b{\"c\"}", 2), ("\\d", 2), ("d", 5), ("f", 9), ("g\nh", 10)];
        assert_eq!(texts, expected);
    }

    #[test]
    fn functions_end_where_the_indentation_does() {
        let found = functions(SOURCE, &scan(SOURCE));
        let shown: Vec<_> = found.iter().map(|f| (f.name, f.line, f.end)).collect();
        assert_eq!(shown, [("first", 4, 14), ("inner", 13, 14), ("second", 18, 19)]);
    }
}
