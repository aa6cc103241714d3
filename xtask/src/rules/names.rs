//! No driver, no command and no Python file knows an algorithm by its name: what they need to know
//! is a property that the algorithm's entry states.

use quelea_core::algorithms::ALGORITHMS;

use super::SourceFile;
use super::rust::{TokenKind, tokens, without_tests};
use super::{python, rust};

/// Where algorithms must not be named.
const WHERE: &[&str] = &[
    "crates/quelea-control/src/",
    "crates/quelea-sim/src/",
    "crates/quelea-net/src/",
    "crates/quelea-run/src/",
    "crates/quelea-page/src/",
    "crates/quelea-plan/src/",
    "crates/quelea-cli/src/",
    "crates/quelea-py/src/",
    "crates/quelea-py/python/",
];

/// At the end of a line that gives a default value, a help text or an example.
const MARKER: &str = "names: default";

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    let names: Vec<&str> = ALGORITHMS.iter().map(|entry| entry.meta.name).collect();
    problems(files, &names)
}

fn problems(files: &[SourceFile], names: &[&str]) -> Vec<String> {
    let mut wrong = Vec::new();
    let is_inside = |file: &&SourceFile| WHERE.iter().any(|folder| file.path.starts_with(folder));
    for file in files.iter().filter(is_inside).filter(|file| !file.is_test()) {
        let lines: Vec<&str> = file.text.lines().collect();
        for (text, number) in literals(file) {
            let line = lines.get(number - 1).copied().unwrap_or_default();
            if names.contains(&text) && !is_marked(line) {
                wrong.push(format!(
                    "{}:{number}: knows the algorithm `{text}` by its name: {}",
                    file.path,
                    line.trim()
                ));
            }
        }
    }
    wrong
}

/// Every string of a file that is a value, with its line.
fn literals(file: &SourceFile) -> Vec<(&str, usize)> {
    if file.is_python() {
        let strings = python::scan(&file.text).strings;
        return strings.iter().map(|string| (string.text, string.line)).collect();
    }
    let all: Vec<rust::Token> = tokens(&file.text);
    let texts = without_tests(&all).into_iter().filter(|token| token.kind == TokenKind::Text);
    texts.map(|token| (token.text, token.line)).collect()
}

/// Whether a line says that it gives a default, a help text or an example. One that branches cannot.
fn is_marked(line: &str) -> bool {
    let branches = ["==", "!=", "=>", "matches!", " in "].iter().any(|sign| line.contains(sign));
    let line = line.trim_end();
    let is_marked = ["// ", "# "].iter().any(|sign| line.ends_with(&format!("{sign}{MARKER}")));
    is_marked && !branches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::file;

    const NAMES: &[&str] = &["asp", "d-psgd"];

    fn wrong(path: &str, text: &str) -> Vec<String> {
        problems(&[file(path, text)], NAMES)
    }

    #[test]
    fn a_driver_that_branches_on_a_name_is_wrong() {
        let found = wrong("crates/quelea-sim/src/driver.rs", "fn f(n: &str) {\n  n == \"asp\";\n}");
        let expected = "crates/quelea-sim/src/driver.rs:2: knows the algorithm `asp` by its name: n == \"asp\";";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_python_table_of_names_is_wrong_and_a_docstring_is_not() {
        let text = "\"\"\"d-psgd\"\"\"\n# asp\nTABLE = {'asp': 1}\nx = 'aspic'\n";
        let found = wrong("crates/quelea-py/python/quelea/torch.py", text);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("torch.py:3:"), "{found:?}");
    }

    #[test]
    fn comments_tests_defaults_and_papers_may_name_them() {
        let text = "/// d-psgd\nconst D: &str = \"asp\"; // names: default\n\
                    #[cfg(test)]\nmod tests { const A: &str = \"asp\"; }";
        assert_eq!(wrong("crates/quelea-run/src/config.rs", text), Vec::<String>::new());
        assert_eq!(wrong("crates/quelea-papers/src/lib.rs", "x(\"asp\")"), Vec::<String>::new());
        let default = "def f(algorithm='asp'):  # names: default\n    pass\n";
        assert_eq!(wrong("crates/quelea-py/python/quelea/torch.py", default), Vec::<String>::new());
    }

    #[test]
    fn a_line_that_branches_cannot_be_marked_as_a_default() {
        let text = "fn f(n: &str) { n == \"asp\" } // names: default";
        assert_eq!(wrong("crates/quelea-net/src/rank.rs", text).len(), 1);
        let text = "if name in ('asp', 'b'):  # names: default\n    pass\n";
        assert_eq!(wrong("crates/quelea-py/python/quelea/torch.py", text).len(), 1);
    }
}
