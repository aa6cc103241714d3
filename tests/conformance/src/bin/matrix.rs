//! `cargo xtask matrix`: the whole matrix of convergence, as a page of the manual.
//!
//! The first argument is the page to write, the second the folder of a9a. Names of algorithms may follow:
//! then only their lines are measured, and the others are kept from the page.

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
        eprintln!("usage: matrix PAGE FOLDER");
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
        let found = all(data, &folder, &names);
        missed +=
            found.iter().filter(|(cell, found)| found.loss > most(data, cell.partition)).count();
        table(&mut text, data, &found, &old);
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
Logistic regression, batch 16, learning rate 0.2 for SGD and 0.005 for the adaptive ones, a fifth of \
it for methods with an outer momentum (BMUF, DiLoCo, EAMSGD, SlowMo; of BMUF and DiLoCo with AccumAdam \
a fifth of that); sparse codecs with a share of 10 %, \
`contract` where a codec has it, DiLoCo every 20 and SlowMo every 12 steps, \
EAMSGD with momentum 0.9, all else by default. *iid*: every worker sees the same distribution; *0.1*: \
labels by Dirichlet(0.1). `power-sgd` compresses matrices, of which these models have none.\n";

/// Every cell, on all cores; the order of the result does not depend on them.
fn all(data: Data, folder: &Path, names: &[String]) -> Vec<(Cell, Found)> {
    let is_meant = |cell: &Cell| names.is_empty() || names.iter().any(|n| n == cell.algorithm);
    let cells: Vec<Cell> = cells().into_iter().filter(is_meant).collect();
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

fn table(text: &mut String, data: Data, found: &[(Cell, Found)], old: &str) {
    let (name, start) = match data {
        Data::Embedded => ("The embedded data (breast cancer, 455 + 114 samples)", 0.693),
        Data::A9a => ("a9a (32,561 + 16,281 samples)", 0.693),
    };
    let bound = |partition| most(data, partition);
    let _ = write!(
        text,
        "\n## {name}\n\nLoss at the start {start}; to be reached: {} iid, {} unequal. A miss is bold.\n\n| \
         algorithm | codec |",
        bound(PartitionKind::Iid),
        bound(PartitionKind::Dirichlet)
    );
    for optimizer in OPTIMIZERS {
        let _ = write!(text, " {0} iid | {0} 0.1 |", optimizer.meta.name);
    }
    let _ = writeln!(text, "\n|---|---|{}", "---|---|".repeat(OPTIMIZERS.len()));
    let section = old.split("\n## ").find(|section| section.starts_with(name)).unwrap_or("");
    for cells in cells().chunks(OPTIMIZERS.len() * PARTITIONS.len()) {
        let start = format!("| {} | {} |", cells[0].algorithm, cells[0].codec);
        let row: Vec<_> = found.iter().filter(|(cell, _)| cells.contains(cell)).collect();
        if row.is_empty() {
            let kept = section.lines().find(|line| line.starts_with(&start));
            text.extend(kept.into_iter().flat_map(|line| [line, "\n"]));
            continue;
        }
        text.push_str(&start);
        for (cell, found) in row {
            let bold = if found.loss <= bound(cell.partition) { "" } else { "**" };
            let _ = write!(text, " {bold}{:.3}{bold} |", found.loss);
        }
        text.push('\n');
    }
}
