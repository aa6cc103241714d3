//! `cargo xtask fuzz`: campaigns over all targets or one, each in a process of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use quelea_fuzz::campaign::{self, HANG_STATUS, InputRange};
use quelea_fuzz::corpus;
use quelea_fuzz::mutation::InputMaker;
use quelea_fuzz::target::{self, FuzzTarget, InputFolder};

const HELP: &str = "\
Fuzzes everything that reads bytes or text from outside.

usage: cargo xtask fuzz [--target NAME] [--inputs N] [--seed S]     N inputs over all targets, or to one
       cargo xtask fuzz --target NAME [--seed S] --input I          one input again
       cargo xtask fuzz --target NAME --file PATH                   the input in a file
       cargo xtask fuzz --list                                      the table of targets
       cargo xtask fuzz --seeds                                     new seeds of handshakes and certificates
";

/// Inputs without `--inputs`.
const INPUTS: u64 = 10_000_000;

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FuzzRequest {
    target: Option<String>,
    inputs: Option<u64>,
    seed: u64,
    input: Option<u64>,
    file: Option<PathBuf>,
    is_list: bool,
    makes_seeds: bool,
    /// This process runs the inputs itself and writes here how far it is.
    progress: Option<PathBuf>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match request(&words).and_then(|request| run(&request)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn request(words: &[String]) -> Result<FuzzRequest> {
    let mut request = FuzzRequest { seed: 1, ..FuzzRequest::default() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--list" {
            request.is_list = true;
            continue;
        }
        if word == "--seeds" {
            request.makes_seeds = true;
            continue;
        }
        let Some(value) = words.next() else { bail!("`{word}` needs a value\n\n{HELP}") };
        let number = || value.replace('_', "").parse().with_context(|| format!("`{word} {value}`"));
        match word.as_str() {
            "--target" => request.target = Some(value.clone()),
            "--inputs" => request.inputs = Some(number()?),
            "--seed" => request.seed = number()?,
            "--input" => request.input = Some(number()?),
            "--file" => request.file = Some(value.into()),
            "--progress" => request.progress = Some(value.into()),
            other => bail!("unknown option `{other}`\n\n{HELP}"),
        }
    }
    Ok(request)
}

/// Whether no input failed.
fn run(request: &FuzzRequest) -> Result<bool> {
    if request.is_list {
        list();
        return Ok(true);
    }
    if request.makes_seeds {
        quelea_fuzz::targets::net::save_seeds()?;
        return Ok(true);
    }
    let named = request.target.as_deref().map(named).transpose()?;
    let (inputs, seed) = (request.inputs.unwrap_or(INPUTS), request.seed);
    match (named, &request.file, request.input, &request.progress) {
        (Some(target), Some(path), ..) => {
            let bytes = std::fs::read(path).with_context(|| format!("{}", path.display()))?;
            again(target, &bytes)
        }
        (Some(target), None, Some(number), _) => {
            again(target, &InputMaker::new(target, seed).input(number))
        }
        (None, Some(_), ..) | (None, None, Some(_), _) => bail!("which target? --target NAME"),
        (Some(target), None, None, Some(progress)) => own(target, seed, inputs, progress),
        (Some(target), None, None, None) => child(target, seed, inputs),
        (None, None, None, _) => all(seed, inputs),
    }
}

fn named(name: &str) -> Result<&'static FuzzTarget> {
    target::find(name).with_context(|| {
        let names: Vec<&str> = target::all().map(|target| target.name).collect();
        format!("there is no target `{name}`; there are {}", names.join(", "))
    })
}

fn list() {
    println!("{:<18} {:>9}  function", "target", "memory");
    for target in target::all() {
        println!("{:<18} {:>7} k  {}", target.name, target.memory_bytes >> 10, target.function);
    }
}

/// Every target gets its share of the inputs.
fn all(seed: u64, inputs: u64) -> Result<bool> {
    let shares: u64 = target::all().map(|target| target.share).sum();
    let mut is_good = true;
    for target in target::all() {
        let count = (u128::from(inputs) * u128::from(target.share)).div_ceil(u128::from(shares));
        is_good &= child(target, seed, count as u64)?;
    }
    println!("{}", if is_good { "no failure" } else { "there were failures, see above" });
    Ok(is_good)
}

/// One target in a process of its own: what ends it ends nobody else.
fn child(target: &'static FuzzTarget, seed: u64, inputs: u64) -> Result<bool> {
    let folder = InputFolder::new()?;
    let progress = folder.path().join("progress");
    let program = std::env::current_exe().context("this program has no name")?;
    let status = Command::new(program)
        .args(["--target", target.name, "--seed", &seed.to_string()])
        .args(["--inputs", &inputs.to_string(), "--progress"])
        .arg(&progress)
        .status()
        .context("cannot start a process")?;
    match status.code() {
        Some(0) => Ok(true),
        Some(1 | HANG_STATUS) => Ok(false),
        Some(_) => bail!("{}: {status}", target.name),
        None => {
            let number = std::fs::read(&progress).ok().and_then(|bytes| bytes.try_into().ok());
            let number = u64::from_le_bytes(number.unwrap_or_default());
            corpus::save(target.name, seed, number, &InputMaker::new(target, seed).input(number))?;
            let command = campaign::command(target, seed, number);
            println!("{}: the process died ({status})\n  repeat it with: {command}", target.name);
            Ok(false)
        }
    }
}

/// Runs the inputs in this process.
fn own(target: &'static FuzzTarget, seed: u64, count: u64, progress: &Path) -> Result<bool> {
    let report = campaign::run(target, InputRange { seed, first: 0, count }, Some(progress))?;
    println!(
        "{:<18} {:>9} inputs  {:>8.0} /s  at most {:>7} k of {:>7} k",
        target.name,
        report.inputs,
        report.inputs as f64 / report.seconds.max(1e-9),
        report.peak_bytes >> 10,
        target.memory_bytes >> 10
    );
    if let Some(failure) = &report.failure {
        println!("{failure}");
    }
    Ok(report.failure.is_none())
}

fn again(target: &'static FuzzTarget, bytes: &[u8]) -> Result<bool> {
    println!("{}: {} bytes: {}", target.name, bytes.len(), bytes.escape_ascii());
    let mut peak = 0;
    let attempted = campaign::attempt(target, bytes, &InputFolder::new()?, &mut peak);
    match &attempted {
        Ok(()) => println!("good; it held at most {peak} bytes"),
        Err(problem) => println!("{problem}"),
    }
    Ok(attempted.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read() {
        let read = |line: &str| request(&line.split(' ').map(String::from).collect::<Vec<_>>());
        let wanted = FuzzRequest {
            target: Some("frame".into()),
            inputs: Some(10_000),
            seed: 5,
            ..FuzzRequest::default()
        };
        assert_eq!(read("--target frame --inputs 10_000 --seed 5").expect("good"), wanted);
        assert!(
            read("--inputs").is_err() && read("--inputs x").is_err() && read("--all 1").is_err()
        );
        assert!(run(&read("--target none").expect("words")).is_err());
    }
}
