//! Text of other processes, made fit to be shown.

/// Characters that are shown of a warning.
pub const WARNING_CHARS: usize = 200;
/// Characters that are shown of what ends a run.
pub const REASON_CHARS: usize = 2000;

/// What another process has said, fit to be shown: no control characters, at most `most` characters.
pub fn shown(text: &str, most: usize) -> String {
    let is_plain = |c: char| matches!(c, '"' | '\'' | '\\');
    let escape = |c: char| if is_plain(c) { c.to_string() } else { c.escape_debug().to_string() };
    let mut shown: String = text.chars().take(most).map(escape).collect();
    if text.chars().nth(most).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_is_shown_on_one_line_and_not_at_any_length() {
        assert_eq!(shown("a \"b\"\n\u{1b}[31m", 200), "a \"b\"\\n\\u{1b}[31m");
        assert_eq!(shown("abcd", 3), "abc…");
    }
}
