//! Tables as YAML, for manifests that people read.

use serde_json::{Map, Value};

/// What comes before all other keys of a table.
const FIRST: [&str; 4] = ["apiVersion", "kind", "metadata", "name"];

/// A table in block style; keys in a fixed order.
pub fn document(value: &Value) -> String {
    let mut text = String::new();
    block(value, 0, &mut text);
    text
}

fn block(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(table) if !table.is_empty() => {
            for (key, inside) in ordered(table) {
                text.push_str(&format!("{indent}{}:", scalar(&Value::from(key.as_str()))));
                after(inside, depth, text);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for inside in list {
                if let Value::String(lines) = inside
                    && is_block(lines)
                {
                    text.push_str(&format!("{indent}- |\n"));
                    lines.lines().for_each(|line| text.push_str(&format!("{indent}  {line}\n")));
                    continue;
                }
                let mut part = String::new();
                block(inside, depth + 1, &mut part);
                // The dash takes the place of the first line's indent.
                text.push_str(&format!("{indent}- {}", part.trim_start()));
            }
        }
        plain => text.push_str(&format!("{indent}{}\n", scalar(plain))),
    }
}

/// What follows a key.
fn after(value: &Value, depth: usize, text: &mut String) {
    match value {
        Value::Object(table) if !table.is_empty() => {
            text.push('\n');
            block(value, depth + 1, text);
        }
        Value::Array(list) if !list.is_empty() => {
            text.push('\n');
            block(value, depth, text);
        }
        Value::String(lines) if is_block(lines) => {
            text.push_str(" |\n");
            let indent = "  ".repeat(depth + 1);
            lines.lines().for_each(|line| text.push_str(&format!("{indent}{line}\n")));
        }
        plain => text.push_str(&format!(" {}\n", scalar(plain))),
    }
}

/// Whether a text is several whole lines that need no escapes.
fn is_block(text: &str) -> bool {
    let is_plain = |line: &str| !line.is_empty() && !line.ends_with(' ') && !line.contains('\t');
    text.contains('\n')
        && text.ends_with('\n')
        && !text.starts_with(' ')
        && text.lines().all(is_plain)
}

fn ordered(table: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut entries: Vec<_> = table.iter().collect();
    let place = |key: &str| FIRST.iter().position(|first| *first == key).unwrap_or(FIRST.len());
    entries.sort_by_key(|(key, _)| (place(key), key.to_string()));
    entries
}

/// A text that could be taken for something else is written as JSON writes it, which YAML reads too.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) if is_bare(text) => text.clone(),
        other => other.to_string(),
    }
}

fn is_bare(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(inner)
        && !words.contains(&text.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_lists_and_texts_are_written_as_people_write_them() {
        let value = json!({
            "spec": { "env": [{ "value": "8", "name": "COUNT" }, { "name": "M", "value": "a b" }], "empty": {}, "none": [] },
            "kind": "Job",
            "apiVersion": "batch/v1",
            "script": "if x; then\n  y\nfi\n",
            "flag": true,
            "no": "yes",
            "list": [["a", 1], "b:c", "x\ny\n"],
        });
        let expected = "\
apiVersion: batch/v1
kind: Job
flag: true
list:
- - a
  - 1
- \"b:c\"
- |
  x
  y
\"no\": \"yes\"
script: |
  if x; then
    y
  fi
spec:
  empty: {}
  env:
  - name: COUNT
    value: \"8\"
  - name: M
    value: \"a b\"
  none: []
";
        assert_eq!(document(&value), expected);
    }
}
