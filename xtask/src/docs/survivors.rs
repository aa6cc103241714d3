//! The measured table of docs/when-machines-fail.md, made from `docs/benchmarks.json`.

use std::fmt::Write as _;

use serde_json::Value;

use super::readme::Kept;

pub(super) const PAGE: &str = "when-machines-fail.md";
/// Above the table.
pub(super) const MARK: &str =
    "<!-- Made from docs/benchmarks.json by `cargo xtask docs`; do not edit. -->\n";

/// What followed a SIGKILL under every contestant.
pub(super) fn table(kept: &Kept) -> String {
    let mut table = String::from(
        "| contestant | kills | a step before | survivors' next step with an exchange | full membership | steps lost | samples lost | how |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for row in kept.of_bench("survive") {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_string();
        let pair = |key: &str, unit: &str| pair(row, key, unit);
        let lost = row["steps_lost"].as_f64();
        let samples =
            lost.map_or("–".to_string(), |lost| format!("{:.0}", lost * SAMPLES_PER_STEP));
        let problem = match row["problem"].as_str() {
            Some(problem) => format!("; **{}**", problem.replace('|', "\\|")),
            None => String::new(),
        };
        let _ = writeln!(
            table,
            "| {} | {} of {} | {} | {} | {} | {} | {samples} | {}{problem} |",
            text("name"),
            row["kills"],
            row["kills_asked"],
            row["step_seconds"].as_f64().map_or("–".into(), |s| format!("{:.0} ms", s * 1e3)),
            pair("next_step_seconds", " s"),
            pair("full_seconds", " s"),
            lost.map_or("–".to_string(), |lost| format!("{lost:.0}")),
            text("note"),
        );
    }
    table
}

/// The size of a mini-batch in `survive.py`.
const SAMPLES_PER_STEP: f64 = 4.0;

/// The median and the worst.
fn pair(row: &Value, key: &str, unit: &str) -> String {
    match (row[key].as_f64(), row[format!("{key}_worst")].as_f64()) {
        (Some(median), Some(worst)) => format!("{median:.2}{unit} (worst {worst:.2}{unit})"),
        _ => "–".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_what_was_measured() {
        let root = super::super::root();
        let read = |name: &str| std::fs::read_to_string(root.join(name)).expect("it is there");
        let kept = Kept::parse(&read("docs/benchmarks.json")).expect("rows");
        let page = read("docs/when-machines-fail.md");
        assert!(page.contains(&format!("{MARK}{}", table(&kept))), "run `cargo xtask docs`");
    }

    #[test]
    fn a_contestant_that_did_not_run_is_shown_with_its_problem() {
        let rows = r#"[{"bench":"survive","name":"x","kills":0,"kills_asked":3,"note":"n","problem":"a|b"},
            {"bench":"survive","name":"y","kills":2,"kills_asked":2,"note":"m","step_seconds":0.16,
             "next_step_seconds":0.3,"next_step_seconds_worst":0.4,"steps_lost":10.4}]"#;
        let table = table(&Kept::parse(rows).expect("rows"));
        assert!(table.contains("| x | 0 of 3 | – | – | – | – | – | n; **a\\|b** |"), "{table}");
        assert!(
            table.contains("| y | 2 of 2 | 160 ms | 0.30 s (worst 0.40 s) | – | 10 | 42 | m |")
        );
    }
}
