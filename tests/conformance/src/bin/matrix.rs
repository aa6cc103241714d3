//! `cargo xtask matrix`: the whole matrix of convergence, as a page of the manual.
//!
//! The first argument is the page to write, the second the folder of a9a. Names of algorithms may follow,
//! or `--missing`: then only their lines are measured, or only what the page lacks, and all else is kept
//! from the page.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use conformance::matrix::{Cell, Data, Found, PARTITIONS, PartitionKind, cells, most};
use quelea_core::optim::OPTIMIZERS;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(PathBuf::from);
    let (Some(page), Some(folder)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: matrix PAGE FOLDER [--missing | ALGORITHM…]");
        return ExitCode::from(2);
    };
    let names: Vec<String> = arguments.map(|name| name.display().to_string()).collect();
    let old = if names.is_empty() { Ok(String::new()) } else { std::fs::read_to_string(&page) };
    let Ok(old) = old else {
        eprintln!("{}: there is nothing to keep lines from", page.display());
        return ExitCode::FAILURE;
    };
    let mut text = String::from(INTRODUCTION);
    let mut missed = 0;
    let there = folder.join("a9a.gz").is_file();
    for data in [Data::Embedded, Data::A9a].into_iter().filter(|data| there || *data != Data::A9a) {
        let kept = kept(&old, data);
        let is_meant = |cell: &Cell| match names.first().map(String::as_str) {
            None => true,
            Some("--missing") => !kept.contains_key(&place(cell)),
            Some(_) => names.iter().any(|name| name == cell.algorithm),
        };
        let found = all(data, &folder, cells().into_iter().filter(is_meant).collect());
        let is_miss = |(cell, found): &&(Cell, Found)| {
            found.loss > most(data, cell.partition) && is_asked(data, cell)
        };
        missed += found.iter().filter(is_miss).count();
        table(&mut text, data, &found, &kept);
    }
    let beside = page.with_extension("md.new");
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, &page));
    if let Err(error) = written {
        eprintln!("{}: {error}", page.display());
        return ExitCode::FAILURE;
    }
    println!("{} is written; {missed} cells missed their loss", page.display());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

const INTRODUCTION: &str = "\
# Convergence

Made by `cargo xtask matrix`; do not edit. Every algorithm with every optimizer and every codec that \
it takes: loss over all training data after 1,000 steps of 8 workers in the virtual cluster, seed 1. \
Logistic regression, batch 16, learning rate 0.2 for SGD, 0.01 for LAMB, 0.0025 for LARS (with `trust = 1`) and 0.005 for the others, \
of LAMB and LARS 2.5 times that for ASP and SSP; a fifth of \
it for methods with an outer momentum (BMUF, DiLoCo, EAMSGD, SlowMo; of BMUF and DiLoCo with AccumAdam \
a fifth of that, of SlowMo with LAMB and LARS two fifths); sparse codecs with a share of 10 %, \
`contract` where a codec has it, DiLoCo every 20 and SlowMo every 12 steps, \
EAMSGD with momentum 0.9, all else by default. *iid*: every worker sees the same distribution; *0.1*: \
labels by Dirichlet(0.1). `power-sgd` compresses matrices, of which these models have none. \
Steps of LAMB and LARS have a length of their own, whatever the gradient: where each worker takes its own \
steps and sees few labels, nothing says any more how much each step should count, and some of the runs on \
a9a miss the loss.\n";

/// These cells, on all cores; the order of the result does not depend on them.
fn all(data: Data, folder: &Path, cells: Vec<Cell>) -> Vec<(Cell, Found)> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found = cell.run(data, folder);
            let mut done = done.lock().expect("no run panics while it holds this");
            done.push((*cell, found));
            if done.len().is_multiple_of(100) {
                println!("{data:?}: {} of {}", done.len(), cells.len());
            }
        }
    };
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (0..cores).for_each(|_| drop(scope.spawn(work)));
    });
    let mut done = done.into_inner().expect("all threads are done");
    done.sort_by_key(|(cell, _)| cells.iter().position(|other| other == cell));
    done
}

/// Whether a cell has to reach its loss: LAMB and LARS of the larger data do not, as the page says.
fn is_asked(data: Data, cell: &Cell) -> bool {
    data != Data::A9a || !["lamb", "lars"].contains(&cell.optimizer)
}

/// What stands in the cells of a page, by line and column.
type Kept = BTreeMap<(String, String), String>;

/// The line and the column of a cell.
fn place(cell: &Cell) -> (String, String) {
    (line(cell), column(cell.optimizer, cell.partition))
}

fn line(cell: &Cell) -> String {
    format!("{} | {}", cell.algorithm, cell.codec)
}

fn column(optimizer: &str, partition: PartitionKind) -> String {
    match partition {
        PartitionKind::Iid => format!("{optimizer} iid"),
        PartitionKind::Dirichlet => format!("{optimizer} 0.1"),
    }
}

fn name(data: Data) -> &'static str {
    match data {
        Data::Embedded => "The embedded data (breast cancer, 455 + 114 samples)",
        Data::A9a => "a9a (32,561 + 16,281 samples)",
    }
}

/// What the page `old` has of these data.
fn kept(old: &str, data: Data) -> Kept {
    let mut kept = Kept::new();
    let section = old.split("\n## ").find(|section| section.starts_with(name(data)));
    let mut columns: Vec<&str> = Vec::new();
    for row in section.unwrap_or("").lines().filter(|row| row.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let Some(([algorithm, codec], values)) = cells.split_first_chunk() else { continue };
        if *algorithm == "algorithm" {
            columns = values.to_vec();
            continue;
        }
        let line = format!("{algorithm} | {codec}");
        for (column, value) in columns.iter().zip(values) {
            kept.insert((line.clone(), column.to_string()), value.to_string());
        }
    }
    kept
}

fn table(text: &mut String, data: Data, found: &[(Cell, Found)], kept: &Kept) {
    let bound = |partition| most(data, partition);
    let _ = write!(
        text,
        "\n## {}\n\nLoss at the start 0.693; to be reached: {} iid, {} unequal. A miss is bold; – stands \
         where the algorithm does not take the optimizer.\n\n| algorithm | codec |",
        name(data),
        bound(PartitionKind::Iid),
        bound(PartitionKind::Dirichlet)
    );
    let columns: Vec<String> = OPTIMIZERS
        .iter()
        .flat_map(|optimizer| PARTITIONS.map(|partition| column(optimizer.meta.name, partition)))
        .collect();
    for column in &columns {
        let _ = write!(text, " {column} |");
    }
    let _ = writeln!(text, "\n|---|---|{}", "---|".repeat(columns.len()));
    let cells = cells();
    for cells in cells.chunk_by(|one, other| line(one) == line(other)) {
        let _ = write!(text, "| {} |", line(&cells[0]));
        for column in &columns {
            let place = (line(&cells[0]), column.clone());
            let measured = found.iter().find(|(cell, _)| self::place(cell) == place);
            let is_taken = cells.iter().any(|cell| self::place(cell) == place);
            let value = match (measured, kept.get(&place)) {
                (Some((cell, found)), _) if found.loss <= bound(cell.partition) => {
                    format!("{:.3}", found.loss)
                }
                (Some((_, found)), _) => format!("**{:.3}**", found.loss),
                (None, Some(kept)) if is_taken => kept.clone(),
                (None, _) => "–".to_string(),
            };
            let _ = write!(text, " {value} |");
        }
        text.push('\n');
    }
}
