//! The table of docs/records.md that lists what algorithms measure.

use std::fmt::Write as _;

use quelea_record::FACTS;

pub(super) const TABLE: super::PageTable = (
    "records.md",
    "<!-- Made from `FACTS` of quelea-record by `cargo xtask docs`; do not edit. -->\n",
    table,
);

fn table() -> String {
    let mut table = String::from(
        "| `kind` | further keys | frequent | when | in the summary | what |\n|---|---|---|---|---|---|\n",
    );
    for kind in FACTS {
        let number = kind.number.map_or(String::new(), |key| format!("`{key}`"));
        let frequent = if kind.is_frequent { "yes" } else { "no" };
        let _ = writeln!(
            table,
            "| `{}` | {number} | {frequent} | {} | `{}` | {} |",
            kind.name, kind.meaning, kind.summary.key, kind.summary.meaning
        );
    }
    table
}
