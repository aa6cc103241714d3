//! Tables of measured ratios inside pages, made from `docs/benchmarks.json`.

use std::fmt::Write as _;

use super::readme::{Kept, MARK};

/// A table of one bench: two times and their ratio.
pub(super) struct RatioTable {
    /// Where it is shown.
    pub(super) page: &'static str,
    bench: &'static str,
    /// The fields of the two times, and what the head of the table calls them.
    fields: [&'static str; 2],
    heads: [&'static str; 2],
    unit: &'static str,
}

/// All of them.
pub(super) const TABLES: [RatioTable; 2] = [
    RatioTable {
        page: "own-algorithm.md",
        bench: "events",
        fields: ["rust_us", "python_us"],
        heads: ["Rust", "Python"],
        unit: "µs",
    },
    RatioTable {
        page: "guests.md",
        bench: "guests",
        fields: ["alone_ms", "ours_ms"],
        heads: ["alone", "as a worker"],
        unit: "ms",
    },
];

impl RatioTable {
    /// Its rows.
    pub(super) fn text(&self, kept: &Kept) -> String {
        let [first, second] = self.heads;
        let mut table = format!("| measured | {first} | {second} | ratio |\n|---|---|---|---|\n");
        for row in kept.of_bench(self.bench) {
            let name = row["name"].as_str().unwrap_or_default();
            let number = |field: &str| row[field].as_f64().unwrap_or(f64::NAN);
            let [first, second] = self.fields.map(number);
            let (unit, ratio) = (self.unit, number("ratio"));
            let _ =
                writeln!(table, "| {name} | {first:.1} {unit} | {second:.1} {unit} | {ratio:.2} |");
        }
        table
    }

    /// The page with what was measured.
    pub(super) fn renewed(&self, page: &str, kept: &Kept) -> anyhow::Result<String> {
        super::with_table(page, MARK, &self.text(kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_show_what_was_measured() {
        let docs = super::super::root().join("docs");
        let read = |name: &str| std::fs::read_to_string(docs.join(name)).expect("it is there");
        let kept = Kept::parse(&read("benchmarks.json")).expect("rows");
        for table in TABLES {
            let page = read(table.page);
            let renewed = table.renewed(&page, &kept).expect("the page has its marks");
            assert!(page == renewed, "docs/{}: run `cargo xtask docs`", table.page);
            assert!(table.text(&kept).lines().count() > 2, "nothing of `{}` is kept", table.bench);
        }
    }
}
