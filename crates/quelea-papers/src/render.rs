//! A report as text, as JSON and as a page that needs no other file.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::report::{PaperReport, ReportCell, ReportTable};

/// What `--json` prints.
pub fn json(report: &PaperReport) -> Value {
    let cells = report.tables.iter().flat_map(|table| {
        table.cells.iter().map(|cell| {
            json!({
                "table": table.title,
                "row": cell.row,
                "column": cell.column,
                "paper": cell.paper.map(|figure| figure.value),
                "ours": cell.ours,
                "spread": cell.spread,
                "error": cell.error(),
                "fitted": cell.fitted,
            })
        })
    });
    let parameters = report.parameters.iter().map(|parameter| {
        json!({
            "name": parameter.name,
            "value": parameter.value,
            "source": parameter.source.to_string(),
        })
    });
    let claims =
        report.claims.iter().map(|claim| json!({ "claim": claim.text, "holds": claim.holds }));
    json!({
        "name": report.name,
        "title": report.title,
        "paper": report.paper,
        "seed": report.seed,
        "cells": cells.collect::<Vec<_>>(),
        "parameters": parameters.collect::<Vec<_>>(),
        "claims": claims.collect::<Vec<_>>(),
        "notes": report.notes,
        "not_run": report.not_run,
    })
}

/// Rows, columns and the text at each place: the form that every output shares.
pub struct Grid {
    /// Names of the columns, the rows' own first.
    pub head: Vec<String>,
    /// One line each, as long as the head.
    pub rows: Vec<Vec<String>>,
}

/// A table as text: `theirs / ours (difference)`, `theirs / fitted`, `[theirs] / ours` where theirs
/// is of another task, or `ours` alone.
pub fn grid(table: &ReportTable) -> Grid {
    let mut columns: Vec<&str> = Vec::new();
    let mut rows: Vec<&str> = Vec::new();
    for cell in &table.cells {
        if !columns.contains(&cell.column.as_str()) {
            columns.push(&cell.column);
        }
        if !rows.contains(&cell.row.as_str()) {
            rows.push(&cell.row);
        }
    }
    let at = |row: &str, column: &str| {
        let cell = table.cells.iter().find(|cell| cell.row == row && cell.column == column);
        cell.map_or(String::new(), shown)
    };
    let line = |row: &&str| {
        let cells = columns.iter().map(|column| at(row, column));
        std::iter::once((*row).to_string()).chain(cells).collect()
    };
    let head = std::iter::once(String::new()).chain(columns.iter().map(|c| (*c).to_string()));
    Grid { head: head.collect(), rows: rows.iter().map(line).collect() }
}

fn shown(cell: &ReportCell) -> String {
    match (cell.paper, cell.error()) {
        (Some(figure), Some(error)) => {
            let (theirs, ours) = (digits(figure.value), digits(cell.ours));
            format!("{theirs} / {ours}{} ({:+.1} %)", spread(cell, digits), 100.0 * error)
        }
        (Some(figure), None) if cell.fitted => format!("{} / fitted", digits(figure.value)),
        (Some(figure), None) => {
            let as_printed = |value: f64| format!("{value:.*}", figure.decimals());
            let (theirs, ours) = (as_printed(figure.value), as_printed(cell.ours));
            format!("[{theirs}] / {ours}{}", spread(cell, as_printed))
        }
        _ => digits(cell.ours) + &spread(cell, digits),
    }
}

/// How far seeds are from the mean, where there are several.
fn spread(cell: &ReportCell, text: impl Fn(f64) -> String) -> String {
    cell.spread.map_or(String::new(), |spread| format!(" ± {}", text(spread)))
}

/// Three significant digits, at least.
fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{value:.2e}"),
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.2}"),
        v if v >= 0.001 => format!("{value:.4}"),
        _ => format!("{value:.2e}"),
    }
}

/// A report as a section of Markdown; pictures are looked for in `pictures`.
pub fn markdown(report: &PaperReport, pictures: Option<&str>) -> String {
    let mut page = format!("## {}\n\n{}. {}.\n", report.name, report.title, report.paper);
    if let Some(reason) = &report.not_run {
        let _ = writeln!(page, "\nNot run: {reason}.");
        return page;
    }
    for table in &report.tables {
        let Grid { head, rows } = grid(table);
        let _ = write!(page, "\n**{}**\n\n| {} |\n", table.title, head.join(" | "));
        let _ = writeln!(page, "|{}", "---|".repeat(head.len()));
        for row in rows {
            let _ = writeln!(page, "| {} |", row.join(" | "));
        }
    }
    if let Some(folder) = pictures {
        for (name, chart) in &report.charts {
            let _ = writeln!(page, "\n![{}]({folder}/{}-{name}.svg)", chart.title(), report.name);
        }
    }
    page.push_str("\n| what must hold | |\n|---|---|\n");
    for claim in &report.claims {
        let _ = writeln!(
            page,
            "| {} | {} |",
            claim.text,
            if claim.holds == Some(false) { "**no**" } else { claim.answer() }
        );
    }
    page.push_str("\n| parameter | value | source |\n|---|---|---|\n");
    for p in &report.parameters {
        let _ = writeln!(page, "| {} | {} | {} |", p.name, p.value, p.source);
    }
    page.push('\n');
    for note in &report.notes {
        let _ = writeln!(page, "- {note}");
    }
    page
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;color:#282c34;max-width:980px;\
margin:2em auto;padding:0 1em}table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .8em;\
border-bottom:1px solid #e4e7ec;text-align:right;font-variant-numeric:tabular-nums}td:first-child,\
th:first-child{text-align:left}.words td{text-align:left}.no{color:#b00020;font-weight:600}\
.yes{color:#0a7d4f}svg{max-width:100%;height:auto}footer{color:#6e7480;margin-top:3em}";

/// How to read a cell.
pub const LEGEND: &str = "Published figure / ours (relative difference). A figure on which a \
    parameter was fitted is marked as fitted and predicts nothing. A figure in brackets was \
    published for another task: only the order in its column can be compared. ± is the distance of the \
    farthest seed from the mean over seeds. A line without yes or no had no tolerance that was fixed \
    beforehand.";

/// Reports as one page that needs no other file.
pub fn html(reports: &[PaperReport]) -> String {
    let title = match reports {
        [one] => escaped(&one.title),
        _ => "The papers' experiments, reproduced".to_string(),
    };
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n\
         <p>{LEGEND}</p>\n"
    );
    reports.iter().for_each(|report| section(&mut page, report));
    page.push_str("<footer>Made by quelea reproduce.</footer>\n</body></html>\n");
    page
}

fn section(page: &mut String, report: &PaperReport) {
    let (name, title, paper) = (&report.name, escaped(&report.title), escaped(&report.paper));
    let _ = writeln!(
        page,
        "<h2 id=\"{name}\">{title}</h2>\n<p><code>{name}</code>. {paper}. Seed {}.</p>",
        report.seed
    );
    if let Some(reason) = &report.not_run {
        let _ = writeln!(page, "<p>Not run: {}.</p>", escaped(reason));
        return;
    }
    for table in &report.tables {
        let Grid { head, rows } = grid(table);
        let _ = writeln!(page, "<h3>{}</h3>", escaped(&table.title));
        html_table(page, &head, &rows, "");
    }
    report.charts.iter().for_each(|(_, chart)| page.push_str(&chart.svg()));
    page.push_str("<h3>What must hold</h3>\n<ul>\n");
    for claim in &report.claims {
        let word = claim.answer();
        let _ = writeln!(
            page,
            "<li><span class=\"{word}\">{word}</span>: {}</li>",
            escaped(&claim.text)
        );
    }
    page.push_str("</ul>\n<h3>What it rests on</h3>\n");
    let words =
        |p: &crate::report::Parameter| vec![p.name.clone(), p.value.clone(), p.source.to_string()];
    let rows: Vec<Vec<String>> = report.parameters.iter().map(words).collect();
    html_table(page, &["parameter", "value", "source"].map(String::from), &rows, "words");
    for note in &report.notes {
        let _ = writeln!(page, "<p>{}</p>", escaped(note));
    }
}

fn html_table(page: &mut String, head: &[String], rows: &[Vec<String>], class: &str) {
    let line = |tag: &str, cells: &[String]| {
        let cells: String =
            cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let body: String = rows.iter().map(|row| line("td", row)).collect();
    let _ = write!(page, "<table class=\"{class}\">\n{}{body}</table>\n", line("th", head));
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
