//! No parameter is a tuple of unrelated things: they are parameters of their own, or a struct.

use super::SourceFile;
use super::rust::{Function, Token, after_bracket, functions, tokens, without_tests};

/// Tuples that are one thing, wherever they are taken, and what they are.
const ONE_THING: &[(&str, &str)] = &[("(Rank, Rank)", "the two ends of a link, sender first")];

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    problems(files, ONE_THING)
}

fn problems(files: &[SourceFile], one_thing: &[(&str, &str)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| file.is_rust() && !file.is_test()) {
        let all = tokens(&file.text);
        for function in functions(&without_tests(&all)) {
            let taken = tuples(&function).into_iter();
            for taken in taken.filter(|taken| one_thing.iter().all(|(kind, _)| kind != taken)) {
                wrong.push(format!(
                    "{}:{}: `{}` takes {taken}; give it the parts, or a struct",
                    file.path, function.line, function.name
                ));
            }
        }
    }
    wrong
}

/// The types of the parameters that are tuples, or references to tuples.
fn tuples(function: &Function) -> Vec<String> {
    let mut found = Vec::new();
    let parameters = &function.parameters;
    let mut start = 0;
    while start < parameters.len() {
        let end = next_comma(parameters, start);
        found.extend(tuple(&parameters[start..end]));
        start = end + 1;
    }
    found
}

/// The next comma that is in no bracket. Those of generics do not matter: what follows them has no
/// colon.
fn next_comma(tokens: &[Token], mut at: usize) -> usize {
    while at < tokens.len() && !tokens[at].is(",") {
        let opens = ["(", "[", "{"].iter().any(|open| tokens[at].is(open));
        at = if opens { after_bracket(tokens, at) } else { at + 1 };
    }
    at.min(tokens.len())
}

/// The type of one parameter, if it is a tuple of two or more.
fn tuple(parameter: &[Token]) -> Option<String> {
    let mut at = 0;
    while at < parameter.len() && !parameter[at].is(":") {
        let opens = parameter[at].is("(") || parameter[at].is("[");
        at = if opens { after_bracket(parameter, at) } else { at + 1 };
    }
    let mut kind = parameter.get(at + 1..)?;
    while let Some((first, rest)) = kind.split_first() {
        if first.is("(") {
            break;
        }
        let is_reference = first.is("&") || first.is("mut") || is_lifetime(first);
        if !is_reference {
            return None;
        }
        kind = rest;
    }
    let inside = kind.get(1..kind.len().checked_sub(1)?)?;
    let is_tuple = next_comma(inside, 0) < inside.len();
    is_tuple.then(|| spelled(kind))
}

fn is_lifetime(token: &Token) -> bool {
    token.kind == super::rust::TokenKind::Other
}

/// A type as one writes it, without lifetimes.
fn spelled(kind: &[Token]) -> String {
    let mut text = String::new();
    for token in kind.iter().filter(|token| !is_lifetime(token)) {
        match token.text {
            "," => text.push_str(", "),
            "mut" | "dyn" | "impl" => text.push_str(&format!("{} ", token.text)),
            other => text.push_str(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::file;

    fn wrong(text: &str) -> Vec<String> {
        let point = ("(f64, f64)", "a place in the plane");
        problems(&[file("crates/a/src/a.rs", text)], &[point])
    }

    #[test]
    fn a_parameter_that_is_a_tuple_is_wrong() {
        let found = wrong("fn f(a: u8,\n (size, words): &'a mut (usize, Vec<u8>)) {}");
        let expected =
            "crates/a/src/a.rs:1: `f` takes (usize, Vec<u8>); give it the parts, or a struct";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn points_closures_results_and_lists_of_tuples_are_fine() {
        let text = "fn f(at: (f64, f64), g: impl Fn((u8, String)) -> u8, all: &[(u8, String)], \
                    map: BTreeMap<u8, (u8, String)>, (): ()) -> (u8, String) { |(a, b): (u8, i8)| a }";
        assert_eq!(wrong(text), Vec::<String>::new());
        assert_eq!(wrong("#[cfg(test)]\nmod tests { fn f(a: (u8, i8)) {} }"), Vec::<String>::new());
    }
}
