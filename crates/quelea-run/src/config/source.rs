//! From text to a table: a run file, and `--set key=value` on top of it.

use std::path::Path;

pub use toml::Table;
use toml::Value;

use crate::error::RequestError;
use crate::files::limited::read_limited;

/// The longest run file, and the longest summary.
const FILE_BYTES: u64 = 64 << 20;
/// The longest file of a topology.
pub const TOPOLOGY_BYTES: u64 = 256 << 20;

/// One `--set`, taken apart.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigSetting {
    /// The dotted key.
    pub path: Vec<String>,
    /// What it becomes.
    pub value: Value,
}

/// Reads a run file, or the configuration of a run that has ended from its `summary.json`.
pub fn read(path: &Path) -> Result<Table, RequestError> {
    let is_summary = path.extension().is_some_and(|extension| extension == "json");
    let parse = if is_summary { parse_summary } else { parse };
    read_text(path, FILE_BYTES)
        .and_then(|text| parse(&text))
        .map_err(|problem| RequestError::file(path, problem))
}

/// The configuration that the text of a summary holds.
fn parse_summary(text: &str) -> Result<Table, String> {
    let mut summary: serde_json::Value =
        serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
    let config = summary.get_mut("config").map(serde_json::Value::take);
    let config = config.ok_or("has no `config`; a file that ends in .json must be a summary")?;
    serde_json::from_value(config).map_err(|error| format!("`config` is not a table: {error}"))
}

/// Reads a text file of at most `most` bytes; the error says why it cannot be read.
pub fn read_text(path: &Path, most: u64) -> Result<String, String> {
    let bytes = read_limited(path, most).map_err(|error| why(&error))?;
    String::from_utf8(bytes).map_err(|_| "is not a text file".to_string())
}

/// Reads a run file's text; the error says where it stops being TOML.
pub fn parse(text: &str) -> Result<Table, String> {
    check_depth(text)?;
    text.parse::<Table>().map_err(|error| format!("is not TOML: {}", error.to_string().trim_end()))
}

/// Tables and lists inside each other, and parts of a dotted key: more than any key of a run has.
const DEPTH_MAX: usize = 32;

/// Refuses text that nests without end: reading it takes time that grows with the square of the depth.
fn check_depth(text: &str) -> Result<(), String> {
    let (mut depth, mut dots) = (0usize, 0usize);
    let mut quote = None;
    let mut is_comment = false;
    for (place, byte) in text.bytes().enumerate() {
        match (byte, quote) {
            (b'\n', _) => (is_comment, quote, dots) = (false, None, 0),
            _ if is_comment => {}
            (byte, Some(open)) if byte == open => quote = None,
            (_, Some(_)) => {}
            (b'"' | b'\'', None) => quote = Some(byte),
            (b'#', None) => is_comment = true,
            (b'[' | b'{', None) => depth += 1,
            (b']' | b'}', None) => depth = depth.saturating_sub(1),
            (b'.', None) => dots += 1,
            (b'=' | b',', None) => dots = 0,
            _ => {}
        }
        if depth > DEPTH_MAX || dots > DEPTH_MAX {
            let line = 1 + text.as_bytes()[..place].iter().filter(|byte| **byte == b'\n').count();
            return Err(format!("line {line} nests more than {DEPTH_MAX} deep"));
        }
    }
    Ok(())
}

/// What an error of the system means, in words that a person would use.
pub fn why(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file".to_string(),
        std::io::ErrorKind::IsADirectory => "is a folder, not a file".to_string(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_string(),
        _ => error.to_string(),
    }
}

/// Takes `key=value` apart. The value is TOML; what is not TOML is taken as text, so that names
/// and paths need no quotes.
pub fn setting(given: &str) -> Result<ConfigSetting, RequestError> {
    let refuse = |problem: &str| RequestError::Setting {
        given: given.to_string(),
        problem: problem.to_string(),
    };
    let (key, text) = given
        .split_once('=')
        .ok_or_else(|| refuse("must be key=value, for example --set optimizer.lr=0.1"))?;
    let path: Vec<String> = key.trim().split('.').map(|part| unquoted(part.trim())).collect();
    if path.iter().any(String::is_empty) {
        return Err(refuse("the key has an empty part; write it as in optimizer.lr"));
    }
    let text = text.trim();
    if path.len() > DEPTH_MAX {
        return Err(refuse(&format!("the key has {} parts", path.len())));
    }
    check_depth(text).map_err(|problem| refuse(&problem))?;
    let value = match format!("value = {text}").parse::<Table>() {
        Ok(mut table) if table.len() == 1 => {
            table.remove("value").unwrap_or_else(|| Value::String(text.to_string()))
        }
        Err(_) if is_integer(text) => {
            return Err(refuse(
                "the number is too large; whole numbers end at 9223372036854775807",
            ));
        }
        Err(_) if text.starts_with(['[', '{', '"', '\'']) => {
            return Err(refuse("the value begins like TOML but is not TOML"));
        }
        _ => Value::String(text.to_string()),
    };
    Ok(ConfigSetting { path, value })
}

fn is_integer(text: &str) -> bool {
    let digits = text.trim_start_matches(['+', '-']);
    !digits.is_empty() && !digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit())
}

fn unquoted(part: &str) -> String {
    let inner = part.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.unwrap_or(part).to_string()
}

/// Puts a setting into the table, making tables on the way.
pub fn apply(table: &mut Table, setting: &ConfigSetting) -> Result<(), RequestError> {
    let (last, tables) = setting.path.split_last().expect("a setting has at least one part");
    let mut place = table;
    for (depth, name) in tables.iter().enumerate() {
        let entry = place.entry(name.clone()).or_insert_with(|| Value::Table(Table::new()));
        place = match entry {
            Value::Table(inner) => inner,
            other => {
                let path = setting.path[..=depth].join(".");
                let problem = "is a value, not a table: nothing can be set inside it";
                return Err(RequestError::field(path, other, problem));
            }
        };
    }
    place.insert(last.clone(), setting.value.clone());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(given: &str) -> Value {
        setting(given).expect("a good setting").value
    }

    #[test]
    fn values_are_toml_and_else_text() {
        assert_eq!(value("workers=4"), Value::Integer(4));
        assert_eq!(value("optimizer.lr = 0.1"), Value::Float(0.1));
        assert_eq!(value("algorithm.name=d-psgd"), Value::String("d-psgd".into()));
        assert_eq!(value("algorithm.name=\"d-psgd\""), Value::String("d-psgd".into()));
        assert_eq!(value("task.data=some/file.gz"), Value::String("some/file.gz".into()));
        assert_eq!(value("algorithm.track_mean=true"), Value::Boolean(true));
        assert_eq!(value("task.start=[1, 2]").to_string(), "[1, 2]");
        assert_eq!(value("x=1\ny = 2"), Value::String("1\ny = 2".into()));
    }

    #[test]
    fn a_number_that_is_too_large_is_no_text() {
        let message = setting("workers=99999999999999999999").expect_err("refused").to_string();
        assert!(message.contains("the number is too large"), "{message}");
        assert_eq!(value("algorithm.name=99-red"), Value::String("99-red".into()));
    }

    #[test]
    fn what_nests_without_end_is_refused_before_it_is_read() {
        for open in ["[", "a = {", "a."] {
            let text = format!("a = 1\nb = {}", open.repeat(1_000_000));
            assert_eq!(parse(&text), Err("line 2 nests more than 32 deep".to_string()));
            let told =
                setting(&format!("x={}", open.repeat(100))).expect_err("too deep").to_string();
            assert!(told.contains("nests more than 32 deep"), "{told}");
        }
        let told = setting(&format!("{}b=1", "a.".repeat(100))).expect_err("too deep").to_string();
        assert!(told.contains("the key has 101 parts"), "{told}");
        // Brackets and dots in texts and comments, and many beside each other, are none.
        let flat =
            format!("a = \"{0}\" # {0}\nb = [{1}]\n", "[.".repeat(100), "[0.5], ".repeat(1000));
        assert_eq!(parse(&flat).expect("good")["b"].as_array().map(Vec::len), Some(1000));
    }

    #[test]
    fn keys_may_have_quoted_parts() {
        let setting = setting("cluster.slow.\"3\"=10").expect("good");
        assert_eq!(setting.path, ["cluster", "slow", "3"]);
    }

    #[test]
    fn settings_go_into_tables_that_need_not_exist() {
        let mut table = parse("seed = 1\n[optimizer]\nlr = 0.1").expect("good");
        for given in ["optimizer.lr=0.2", "cluster.slow.3=10", "cluster.slow.4=2"] {
            apply(&mut table, &setting(given).expect("good")).expect("applied");
        }
        assert_eq!(table["optimizer"]["lr"], Value::Float(0.2));
        assert_eq!(table["cluster"]["slow"].to_string(), "{ 3 = 10, 4 = 2 }");
        let refused = apply(&mut table, &setting("seed.x=1").expect("good"));
        assert!(refused.expect_err("a value").to_string().starts_with("`seed` = 1: is a value"));
    }

    #[test]
    fn half_written_settings_are_refused() {
        for given in ["workers", "=3", "optimizer..lr=1", "task.start=[1, 2"] {
            let message = setting(given).expect_err("refused").to_string();
            assert!(message.starts_with(&format!("--set {given}: ")), "{message}");
        }
    }
}
