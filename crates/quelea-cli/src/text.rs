//! Text for people: aligned columns, numbers with units, complaints.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::sync::{Mutex, PoisonError};

use indicatif::ProgressBar;

/// Prints an error to standard error, in red on a terminal, with its causes where the message
/// does not name them already.
pub fn complain(error: &anyhow::Error) {
    let text = plain(&told(error));
    mention(&format!("{} {text}", paint("error:", "31;1", std::io::stderr().is_terminal())));
}

/// Without characters that a terminal would act on: parts of an error may come from elsewhere.
fn plain(text: &str) -> String {
    let is_plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    let escape = |c: char| if is_plain(c) { c.to_string() } else { c.escape_debug().to_string() };
    text.chars().map(escape).collect()
}

fn told(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            let _ = write!(text, ": {cause}");
        }
    }
    text
}

/// Prints a line to standard error. Nobody can be told where that fails.
pub fn mention(line: &str) {
    let write = || {
        let _ = writeln!(std::io::stderr(), "{line}");
    };
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// The bar that is on the terminal: lines go above it.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// From now on lines go above this bar, or there is none any more.
pub fn keep_above(bar: Option<ProgressBar>) {
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// The first line that could not be printed.
static UNSAID: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line to standard output; [`unsaid`] tells at the end whether that went well.
pub fn say(line: &str) {
    if let Err(error) = writeln!(std::io::stdout(), "{line}") {
        UNSAID.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// Why something could not be printed, if so. A reader that has gone away (`quelea list | head`)
/// has seen enough.
pub fn unsaid() -> Option<io::Error> {
    let error = UNSAID.lock().unwrap_or_else(PoisonError::into_inner).take();
    error.filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
}

/// `text` in bold where standard output is a terminal.
pub fn bold(text: &str) -> String {
    paint(text, "1", std::io::stdout().is_terminal())
}

/// `text` in a pale colour where standard output is a terminal.
pub fn pale(text: &str) -> String {
    paint(text, "2", std::io::stdout().is_terminal())
}

fn paint(text: &str, code: &str, is_terminal: bool) -> String {
    // https://no-color.org
    let wanted = is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if wanted { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
}

/// Columns: the first to the left, the others to the right, two spaces between.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(line, "{cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A span of time.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 7200.0 => format!("{:.2} h", s / 3600.0),
        s if s >= 600.0 => format!("{:.1} min", s / 60.0),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s if s > 0.0 => format!("{:.2} µs", s * 1e6),
        _ => "0".to_string(),
    }
}

/// An amount of data, in units of a thousand.
pub fn bytes(bytes: u64) -> String {
    let amount = bytes as f64;
    match amount {
        b if b >= 1e12 => format!("{:.2} TB", b / 1e12),
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.2} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.2} kB", b / 1e3),
        _ => format!("{bytes} B"),
    }
}

/// A whole number with its thousands apart.
pub fn whole(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number with about four digits that count.
pub fn number(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_string(),
        x if !(1e-4..1e6).contains(&x) => format!("{number:.3e}"),
        x if x >= 100.0 => format!("{number:.1}"),
        x if x >= 1.0 => format!("{number:.3}"),
        _ => format!("{number:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let source = || io::Error::from_raw_os_error(28);
        let path = "run/trace.json".into();
        let named = quelea_run::error::RunError::Write { path, source: source() };
        let expected = format!("cannot write run/trace.json: {}", source());
        assert_eq!(told(&anyhow::Error::new(named)), expected);
        let with_context = anyhow::Error::new(source()).context("no picture");
        assert_eq!(told(&with_context), format!("no picture: {}", source()));
    }

    #[test]
    fn an_error_has_nothing_that_a_terminal_acts_on() {
        assert_eq!(plain("a\u{1b}[2J\u{9b}1m\tb\nc"), "a\\u{1b}[2J\\u{9b}1m\tb\nc");
    }

    #[test]
    fn columns_are_aligned_by_characters() {
        let rows = [vec!["a".into(), "1 µs".into()], vec!["long".into(), "12".into()]];
        assert_eq!(columns(&rows), "a     1 µs\nlong    12\n");
    }

    #[test]
    fn numbers_have_units_a_person_would_choose() {
        assert_eq!(seconds(0.0), "0");
        assert_eq!(seconds(0.000_002), "2.00 µs");
        assert_eq!(seconds(59.5), "59.50 s");
        assert_eq!(seconds(36_000.0), "10.00 h");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(2_500_000), "2.50 MB");
        assert_eq!(whole(1_234_567), "1,234,567");
        assert_eq!(
            (whole(12), whole(123), whole(1234)),
            ("12".into(), "123".into(), "1,234".into())
        );
        assert_eq!(number(0.081_23), "0.0812");
        assert_eq!(number(1e-9), "1.000e-9");
    }
}
