//! `cargo xtask docs`: pages of the manual that are made from the tables.

mod capabilities;
mod facts;
mod failures;
mod knobs;
mod lists;
mod ratios;
mod readme;
mod survivors;
mod typed;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use quelea_core::algorithms::{ALGORITHMS, Codecs, Entry};
use quelea_core::codec::CODECS;
use quelea_core::options::{OptionKind, Options};
use quelea_core::properties::{Budget, DeployedFrom, TopologyRequirement};

use crate::{cargo, execute, licences, papers};

pub(crate) fn run() -> Result<()> {
    write(&algorithms_file(), &algorithms())?;
    let python = page_file("python.md");
    write(&python, &capabilities::renewed(&fs::read_to_string(&python)?)?)?;
    for (name, mark, table) in [facts::TABLE, failures::TABLE, knobs::TABLE] {
        let file = page_file(name);
        write(&file, &with_table(&fs::read_to_string(&file)?, mark, &table())?)?;
    }
    write(&page_file("papers.md"), &papers::page())?;
    write(&typed::file(), &typed::renewed()?)?;
    write(&page_file("licences.md"), &licences::page()?)?;
    let kept = readme::Kept::parse(&fs::read_to_string(page_file("benchmarks.json"))?)?;
    write(&page_file("images/straggler.svg"), &readme::straggler_svg(&kept)?)?;
    let file = root().join("README.md");
    let page = with_table(&fs::read_to_string(&file)?, readme::MARK, &readme::numbers(&kept)?)?;
    write(&file, &page)?;
    let file = page_file(survivors::PAGE);
    let table = survivors::table(&kept);
    write(&file, &with_table(&fs::read_to_string(&file)?, survivors::MARK, &table)?)?;
    for table in ratios::TABLES {
        let file = page_file(table.page);
        write(&file, &table.renewed(&fs::read_to_string(&file)?, &kept)?)?;
    }
    lists::check()
}

/// A page, the mark before its table, and what makes that table.
type PageTable = (&'static str, &'static str, fn() -> String);

/// A page with the table after `mark` renewed.
fn with_table(page: &str, mark: &str, table: &str) -> Result<String> {
    const END: &str = "<!-- End of what is made from the table. -->";
    let (before, rest) = page.split_once(mark).context("the page has no start mark")?;
    let (_, after) = rest.split_once(END).context("the page has no end mark")?;
    Ok(format!("{before}{mark}{table}{END}{after}"))
}

fn write(file: &Path, page: &str) -> Result<()> {
    let beside = file.with_extension("new");
    fs::write(&beside, page)?;
    fs::rename(&beside, file)?;
    println!("{} is up to date", file.display());
    Ok(())
}

/// Trains with everything, or with the algorithms `names`; a9a is used where the shared data are.
pub(crate) fn matrix(names: &[String]) -> Result<()> {
    let (page, data) = (root().join("docs/convergence.md"), root().join("../shared/data/libsvm"));
    let run = ["run", "--release", "--quiet", "-p", "quelea-conformance", "--bin", "matrix", "--"];
    execute(cargo().args(run).arg(page).arg(data).args(names))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent")
}

fn algorithms_file() -> PathBuf {
    page_file("algorithms.md")
}

fn page_file(name: &str) -> PathBuf {
    root().join("docs").join(name)
}

fn algorithms() -> String {
    let mut page = String::from(
        "# Algorithms\n\nMade from the table by `cargo xtask docs`; do not edit. `quelea list \
         algorithms` prints the same.\n\n| name | in one line | synchronous | topology | codecs | deployed \
         |\n|---|---|---|---|---|---|\n",
    );
    for entry in ALGORITHMS {
        let properties = (entry.properties)(&Options::defaults(entry.meta.options));
        let synchronous = if properties.synchronous { "yes" } else { "no" };
        let deployed = match properties.deploy {
            DeployedFrom::Workers => "mean of the workers",
            DeployedFrom::Servers => "the servers' model",
        };
        let (name, summary) = (entry.meta.name, entry.meta.summary);
        let topology = topology(properties.topology);
        let codecs = (entry.codecs)(&Options::defaults(entry.meta.options)).words();
        let _ = writeln!(
            page,
            "| [`{name}`](#{name}) | {summary} | {synchronous} | {topology} | {codecs} | {deployed} |"
        );
    }
    ALGORITHMS.iter().for_each(|entry| section(&mut page, entry));
    page.push_str(
        "\n## Codecs\n\nWhat a vector of d elements takes on the wire beside the 80 bytes of a frame \
         and, if it is encoded, 4 bytes for d.\n\n| name | in one line | bytes | paper |\n\
         |---|---|---|---|\n",
    );
    for codec in CODECS {
        let (name, summary, wire, paper) =
            (codec.meta.name, codec.meta.summary, codec.wire, codec.meta.paper);
        let _ = writeln!(page, "| `{name}` | {summary} | {wire} | {paper} |");
    }
    page
}

fn section(page: &mut String, entry: &Entry) {
    let properties = (entry.properties)(&Options::defaults(entry.meta.options));
    let ends = match properties.budget {
        Budget::Rounds => "after `steps` rounds of every worker",
        Budget::TotalGradients => "after `workers × steps` gradients in all",
    };
    let resumes = if properties.synchronous {
        "bit for bit; workers are saved as they pass the step, and nothing waits"
    } else {
        "the run rests before it is saved, so that nothing is on its way"
    };
    let _ = write!(
        page,
        "\n## {}\n\n{}\n\n- Paper: {}\n- Sends: {}\n- Topology: {}\n- Codecs: {}\n- Ends: {ends}\n- Loses a \
         worker: {}\n- Resumes from a checkpoint: {resumes}\n- Resumes with another number of workers: \
         {}\n- File: [{}](../{})\n",
        entry.meta.name,
        sentence(entry.meta.summary),
        entry.meta.paper,
        entry.sends,
        topology(properties.topology),
        codecs(entry),
        entry.lost_peer,
        entry.resized,
        entry.meta.file.rsplit('/').next().unwrap_or(entry.meta.file),
        entry.meta.file
    );
    if entry.meta.options.is_empty() {
        return;
    }
    page.push_str("\n| key | default | meaning |\n|---|---|---|\n");
    for key in entry.meta.options {
        let choices = match key.kind {
            OptionKind::Choice(words) => format!(" ({})", words.join(", ")),
            _ => String::new(),
        };
        let _ = writeln!(
            page,
            "| `{}` | `{}` | {}{choices} |",
            key.name,
            key.kind.default(),
            key.help.replace('|', "\\|")
        );
    }
}

fn codecs(entry: &Entry) -> String {
    match (entry.codecs)(&Options::defaults(entry.meta.options)) {
        codecs @ (Codecs::Exact(why) | Codecs::Rounding(why)) => {
            format!("{}: {why}", codecs.words())
        }
        codecs => codecs.words().to_string(),
    }
}

fn topology(need: TopologyRequirement) -> &'static str {
    match need {
        TopologyRequirement::Nothing => "none",
        TopologyRequirement::Mixing => "any",
        TopologyRequirement::StaticSymmetric => "the same symmetric weights at every step",
        TopologyRequirement::MildlyNegative => {
            "the same symmetric weights at every step, eigenvalues ≥ −1/3"
        }
        TopologyRequirement::Edges => "any, also one-way edges",
        TopologyRequirement::Pairs => "any; its edges between two halves of the workers",
    }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_algorithms_is_what_the_table_says() {
        let page = fs::read_to_string(algorithms_file()).expect("the page is there");
        assert!(page == algorithms(), "docs/algorithms.md is out of date: run `cargo xtask docs`");
    }

    #[test]
    fn the_page_of_papers_is_what_the_tables_say() {
        let page = fs::read_to_string(page_file("papers.md")).expect("the page is there");
        assert!(page == papers::page(), "docs/papers.md is out of date: run `cargo xtask docs`");
    }

    #[test]
    fn the_tables_inside_pages_are_those_of_the_code() {
        for (name, mark, table) in [facts::TABLE, failures::TABLE, knobs::TABLE] {
            let page = fs::read_to_string(page_file(name)).expect("the page is there");
            let renewed = with_table(&page, mark, &table()).expect("the page has its marks");
            assert!(page == renewed, "docs/{name} is out of date: run `cargo xtask docs`");
        }
    }

    #[test]
    fn every_entry_names_a_file_that_exists() {
        for entry in ALGORITHMS {
            let root =
                algorithms_file().parent().and_then(Path::parent).expect("two up").to_owned();
            assert!(
                root.join(entry.meta.file).is_file(),
                "{}: {}",
                entry.meta.name,
                entry.meta.file
            );
        }
    }
}
