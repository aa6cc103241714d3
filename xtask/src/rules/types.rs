//! A public type's name is unique in the workspace, so that a reader who searches for it finds it.

use std::collections::BTreeMap;

use super::SourceFile;
use super::rust::{Token, TokenKind, after_bracket, tokens, without_tests};

/// Names that several definitions may share, and why. Once a name is unique its entry must go.
const JUSTIFIED: &[(&str, &str)] =
    &[("Entry", "one per table, always written with its module: `codec::Entry`")];

/// One type at the level of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Definition {
    name: String,
    /// `pub` without a restriction.
    is_public: bool,
    place: String,
}

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    problems(files, JUSTIFIED)
}

fn problems(files: &[SourceFile], justified: &[(&str, &str)]) -> Vec<String> {
    let mut by_name: BTreeMap<String, Vec<Definition>> = BTreeMap::new();
    for file in files.iter().filter(|file| is_library(file)) {
        let all = tokens(&file.text);
        for definition in definitions(&file.path, &without_tests(&all)) {
            by_name.entry(definition.name.clone()).or_default().push(definition);
        }
    }
    by_name.retain(|_, all| all.len() > 1 && all.iter().any(|one| one.is_public));
    let is_justified = |name: &str| justified.iter().any(|(known, _)| *known == name);
    let mut wrong = Vec::new();
    for (name, all) in by_name.iter().filter(|(name, _)| !is_justified(name)) {
        let places: Vec<&str> = all.iter().map(|one| one.place.as_str()).collect();
        wrong.push(format!("`{name}` is defined {} times: {}", all.len(), places.join(", ")));
    }
    for (name, _) in justified.iter().filter(|(name, _)| !by_name.contains_key(*name)) {
        wrong.push(format!("`{name}` is unique now: delete it from JUSTIFIED"));
    }
    wrong
}

/// Whether the file is compiled into a library or a program, rather than a test or an example.
fn is_library(file: &SourceFile) -> bool {
    file.is_rust() && file.path.contains("/src/") && !file.is_test()
}

/// The types at the level of modules; what is inside functions and implementations is not seen.
fn definitions(path: &str, tokens: &[Token]) -> Vec<Definition> {
    let mut found = Vec::new();
    let mut visibility = Visibility::Private;
    let mut at = 0;
    while at < tokens.len() {
        let token = &tokens[at];
        let next = tokens.get(at + 1);
        let is_kind = ["struct", "enum", "trait", "type", "union"].iter().any(|k| token.is(k));
        match next {
            Some(next) if is_kind && next.kind == TokenKind::Word => {
                found.push(Definition {
                    name: next.text.to_string(),
                    is_public: visibility == Visibility::Public,
                    place: format!("{path}:{}", next.line),
                });
                at = after_definition(tokens, at + 2);
                visibility = Visibility::Private;
            }
            Some(next) if token.is("mod") && next.kind == TokenKind::Word => {
                // What is in it is at the level of a module too.
                at += 3;
                visibility = Visibility::Private;
            }
            Some(next) if token.is("pub") => {
                let is_restricted = next.is("(");
                visibility =
                    if is_restricted { Visibility::Restricted } else { Visibility::Public };
                at = if is_restricted { after_bracket(tokens, at + 1) } else { at + 1 };
            }
            _ if token.is("{") || token.is("(") || token.is("[") => {
                at = after_bracket(tokens, at);
            }
            _ => {
                if token.is(";") || token.is("}") || token.is("fn") || token.is("impl") {
                    visibility = Visibility::Private;
                }
                at += 1;
            }
        }
    }
    found
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Visibility {
    Private,
    Restricted,
    Public,
}

/// The place after a type's body.
fn after_definition(tokens: &[Token], mut at: usize) -> usize {
    while at < tokens.len() {
        if tokens[at].is(";") {
            return at + 1;
        }
        if tokens[at].is("{") {
            return after_bracket(tokens, at);
        }
        at = if tokens[at].is("(") || tokens[at].is("[") {
            after_bracket(tokens, at)
        } else {
            at + 1
        };
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::file;

    #[test]
    fn a_public_name_with_two_definitions_is_wrong() {
        let files = [
            file("crates/a/src/lib.rs", "pub struct Plan;\nmod x { pub(crate) enum Word {} }"),
            file("crates/b/src/lib.rs", "fn f() { struct Word; }\ntrait Plan {}\nenum Word {}"),
        ];
        let expected = "`Plan` is defined 2 times: crates/a/src/lib.rs:1, crates/b/src/lib.rs:2";
        assert_eq!(problems(&files, &[]), [expected], "private names may repeat");
        assert_eq!(problems(&files, &[("Plan", "two ideas")]), Vec::<String>::new());
    }

    #[test]
    fn an_excuse_that_nobody_needs_is_wrong() {
        let files = [file("crates/a/src/lib.rs", "pub type Plan = u8;")];
        let wrong = problems(&files, &[("Plan", "two ideas")]);
        assert_eq!(wrong, ["`Plan` is unique now: delete it from JUSTIFIED"]);
    }

    #[test]
    fn tests_associated_types_and_words_in_text_do_not_count() {
        let files = [
            file("crates/a/src/lib.rs", "pub struct A(u8);\npub union U { a: u8 }"),
            file("crates/a/src/tests.rs", "pub struct A;"),
            file("crates/a/tests/t.rs", "pub struct A;"),
            file(
                "crates/b/src/lib.rs",
                "// pub struct A;\nconst T: &str = \"pub struct A\";\nimpl I for X { type A = u8; }\n\
                 pub trait B { type A; }\n#[cfg(test)]\nmod tests { pub struct A; }",
            ),
        ];
        assert_eq!(problems(&files, &[]), Vec::<String>::new());
    }
}
