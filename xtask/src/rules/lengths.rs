//! Files and functions stay short, or say why they do not.
//!
//! A line `// long: REASON` (`# long: REASON`) above the first line of a file, or directly above a
//! function with its comments and attributes, allows it to be longer.

use super::SourceFile;
use super::{python, rust};

/// Lines of a file before its tests.
const FILE_LINES_MAX: usize = 400;
/// Lines of a function, from `fn` to its last bracket.
const FUNCTION_LINES_MAX: usize = 60;

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    problems(files.iter())
}

fn problems<'a>(files: impl Iterator<Item = &'a SourceFile>) -> Vec<String> {
    let of_file = |file| {
        let found = too_long(file).into_iter();
        found.map(|(what, lines, most)| format!("{what} has {lines} lines, more than {most}"))
    };
    files.filter(|file| !file.is_test()).flat_map(of_file).collect()
}

/// What is too long in a file: its name, its lines, the most that is allowed.
fn too_long(file: &SourceFile) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    let lines: Vec<&str> = file.text.lines().collect();
    let before_tests = lines_before_tests(&lines);
    if before_tests > FILE_LINES_MAX && !lines.first().is_some_and(|line| is_reason(line)) {
        found.push((file.path.clone(), before_tests, FILE_LINES_MAX));
    }
    for (name, line, end) in functions(file) {
        let count = end - line + 1;
        if count > FUNCTION_LINES_MAX && !has_reason_above(&lines, line) {
            found.push((format!("{} {name}", file.path), count, FUNCTION_LINES_MAX));
        }
    }
    found
}

/// Lines before the first module of tests, or all.
fn lines_before_tests(lines: &[&str]) -> usize {
    let is_tests = |pair: &[&str]| {
        pair[0].starts_with("#[cfg(")
            && pair[0].contains("test")
            && pair[1].starts_with("mod ")
            && pair[1].ends_with('{')
    };
    lines.windows(2).position(is_tests).unwrap_or(lines.len())
}

/// Name, first and last line of every function outside tests.
fn functions(file: &SourceFile) -> Vec<(String, usize, usize)> {
    if file.is_python() {
        let scanned = python::scan(&file.text);
        let found = python::functions(&file.text, &scanned);
        return found.iter().map(|f| (f.name.to_string(), f.line, f.end)).collect();
    }
    let all = rust::tokens(&file.text);
    let found = rust::functions(&rust::without_tests(&all));
    found.iter().map(|f| (f.name.to_string(), f.line, f.end)).collect()
}

fn is_reason(line: &str) -> bool {
    let line = line.trim_start();
    let comment = line.strip_prefix("//").or_else(|| line.strip_prefix('#'));
    let reason = comment.and_then(|comment| comment.trim_start().strip_prefix("long:"));
    reason.is_some_and(|reason| !reason.trim().is_empty())
}

/// Whether one of the comments and attributes above a line is a reason.
fn has_reason_above(lines: &[&str], line: usize) -> bool {
    let above = lines[..line - 1].iter().rev().map(|line| line.trim_start());
    let mut belonging = above.take_while(|line| {
        ["//", "#", "@", "pub"].iter().any(|start| line.starts_with(start)) || line.ends_with(")]")
    });
    belonging.any(is_reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::file;

    fn wrong(text: &str) -> Vec<String> {
        problems([file("crates/a/src/a.rs", text)].iter())
    }

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_may_have_sixty_lines_and_no_more() {
        assert_eq!(wrong(&function(60)), Vec::<String>::new());
        let expected = "crates/a/src/a.rs long has 61 lines, more than 60";
        assert_eq!(wrong(&function(61)), [expected]);
    }

    #[test]
    fn a_file_may_have_four_hundred_lines_before_its_tests() {
        let tests = "#[cfg(test)]\nmod tests {\n".to_string() + &"\n".repeat(300) + "}\n";
        assert_eq!(wrong(&("\n".repeat(400) + &tests)), Vec::<String>::new());
        let expected = "crates/a/src/a.rs has 401 lines, more than 400";
        assert_eq!(wrong(&("\n".repeat(401) + &tests)), [expected]);
    }

    #[test]
    fn a_reason_above_is_heard_and_an_empty_one_is_not() {
        let reason = "// long: one table of signs\n/// Does it.\n#[inline]\n".to_string();
        assert_eq!(wrong(&(reason + &function(61))), Vec::<String>::new());
        assert_eq!(wrong(&("// long:\n".to_string() + &function(61))).len(), 1);
        assert_eq!(wrong(&("// long: a\n\nuse b;\n".to_string() + &function(61))).len(), 1);
        let whole = "// long: one list\n//! A list.\n".to_string() + &"\n".repeat(400);
        assert_eq!(wrong(&whole), Vec::<String>::new());
    }

    #[test]
    fn a_python_function_is_measured_too() {
        let text = "def long():\n".to_string() + &"    step()\n".repeat(60);
        let found = problems([file("crates/a/python/a.py", &text)].iter());
        assert_eq!(found, ["crates/a/python/a.py long has 61 lines, more than 60"]);
    }
}
