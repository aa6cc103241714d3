//! The project's own commands: `cargo xtask test`, `cargo xtask bench`, `cargo xtask docs`.

mod accuracy;
mod bench;
mod book;
mod capture;
mod chaos;
mod compile;
mod docs;
mod edges;
mod environment;
mod fuzz;
mod groups;
mod guests;
mod licences;
mod links;
mod many;
mod markdown;
mod mpi;
mod network;
mod papers;
mod peers;
mod python;
mod ray;
mod reality;
mod rules;
mod sanitize;
mod slurm;
mod soak;
mod survive;
mod test;
mod tidy;
mod tutorials;
mod wheel;

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

const HELP: &str = "\
The project's own commands.

usage: cargo xtask COMMAND

  test          everything that must hold: format, tidy, rules, dependency edges, clippy, docs,
                tests, the Python package's too
  test --quick  without clippy, docs and Python, for working
  rules [NAME…] only the rules over the text of the sources: types, names, lengths, tuples,
                old-name, packages, licences
  bench         whole-program ratios, us and the peer or the physical limit in one run
  bench NAME…   only these (see `bench --list`)
  bench --keep  also renew these numbers in docs/benchmarks.json
  chaos         300 random runs with random faults in the virtual cluster; --seeds N --from S, --seed S
  chaos --real  kill processes of real runs, eight algorithms; --kills K --mean-seconds S --seed N
  chaos --shared-memory  kill and pause processes in exchanges through shared memory, 1,000 times each; --rounds N
                --algorithms A,B
  fuzz          10^7 inputs to everything that reads bytes of others; --target, --inputs, --seed, --list
  capture       what somebody between the machines can read of a run: with a secret, nothing
  sanitize      the tests of unsafe code under AddressSanitizer, ThreadSanitizer or valgrind; NAME…
  slurm         jobs in a real Slurm cluster on this machine, with a real time limit; some minutes
  mpi           MPI as a transport, with the system's Open MPI: lints and tests; --bench times it beside
                MPI_Allreduce
  python        the Python package's tests, with PyTorch; further words go to pytest
  soak          what takes too long for `test`: PyTorch's own tests of process groups, losses in frameworks;
                NAME…, --list
  ray           runs on a real Ray cluster of several nodes on this machine
  wheel         the Python package as a file that pip installs, in target/wheels; --portable links it
                for older versions of the C library
  docs          make the pages of the manual that come from the tables
  book          make a book of the pages, with mdBook (installed once, outside the repository)
  guests        build, test and measure the crates for Burn and candle; --keep as for bench
  tutorials     run what the tutorials and the README print; further words choose pages
  matrix        train with every algorithm, optimizer and codec; writes docs/convergence.md
  matrix NAME…  measure these algorithms only, and keep the other lines
  matrix --missing
                measure only what the page lacks, after an optimizer or a codec was added
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.first().map(String::as_str) {
        Some("test") => test::run(&words[1..]),
        Some("rules") => rules::run(&words[1..]),
        Some("bench") => bench::run(&words[1..]),
        Some("chaos") => chaos::run(&words[1..]),
        Some("fuzz") => fuzz::run(&words[1..]),
        Some("capture") => capture::run(&words[1..]),
        Some("sanitize") => sanitize::run(&words[1..]),
        Some("slurm") => slurm::run(&words[1..]),
        Some("mpi") => mpi::run(&words[1..]),
        Some("python") => python::run(&words[1..]),
        Some("soak") => soak::run(&words[1..]),
        Some("ray") => ray::run(&words[1..]),
        Some("wheel") => wheel::run(&words[1..]),
        Some("docs") => docs::run(),
        Some("book") => book::run(&words[1..]),
        Some("guests") => guests::run(&words[1..]),
        Some("tutorials") => tutorials::run(&words[1..]),
        Some("matrix") => docs::matrix(&words[1..]),
        None | Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            Ok(())
        }
        Some(other) => {
            eprint!("unknown command `{other}`\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The command as a person would type it.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Runs a command with its output visible.
fn execute(command: &mut Command) -> Result<()> {
    println!("\n$ {}", shown(command));
    let status = command.status().with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", shown(command));
    }
    Ok(())
}

/// Runs a command and returns what it printed.
fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}):\n{said}", shown(command), output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string()));
    // What cargo tells this program about itself is not true of what is built: build scripts that
    // look at it would run again, and all that depends on them.
    let told = |name: &String| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST");
    for name in std::env::vars().map(|(name, _)| name).filter(told) {
        command.env_remove(name);
    }
    command
}

/// Whether a program can be started.
fn exists(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output();
    found.is_ok_and(|output| output.status.success())
}
