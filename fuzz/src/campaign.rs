//! Runs the inputs of a target one after the other: a panic, an input that takes too long, and memory above the
//! target's limit are failures.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::allocations::PeakMeter;
use crate::corpus;
use crate::mutation::InputMaker;
use crate::target::{FuzzTarget, InputFolder};

/// Processor time that one input may take: load on the machine does not count.
const INPUT_CPU: Duration = Duration::from_secs(5);
/// An input that takes this long waits for something that does not come.
const INPUT_WALL: Duration = Duration::from_secs(120);
const WATCH_INTERVAL: Duration = Duration::from_millis(250);
/// What a process that was ended by its watchdog exits with.
pub const HANG_STATUS: i32 = 3;

/// Which inputs of a target are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputRange {
    /// Of all random choices.
    pub seed: u64,
    /// The first number.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// An input that must not be.
#[derive(Debug)]
pub struct InputFailure {
    /// The target.
    pub target: &'static str,
    /// What happened.
    pub problem: String,
    /// What repeats it.
    pub command: String,
}

impl std::fmt::Display for InputFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let InputFailure { target, problem, command } = self;
        write!(f, "{target}: {problem}\n  repeat it with: {command}")
    }
}

/// What a campaign over one target came to.
#[derive(Debug)]
pub struct CampaignReport {
    /// Inputs that were run, those of the corpus too.
    pub inputs: u64,
    /// How long it took.
    pub seconds: f64,
    /// The most memory that one input held, in bytes.
    pub peak_bytes: usize,
    /// At most one, at which it ended.
    pub failure: Option<InputFailure>,
}

/// The command that runs one input again.
pub fn command(target: &FuzzTarget, seed: u64, number: u64) -> String {
    format!("cargo xtask fuzz --target {} --seed {seed} --input {number}", target.name)
}

/// Runs the inputs of the corpus and those of a range, until one fails. The number of the present input is
/// written to `progress`, for whoever finds that this process has died.
pub fn run(
    target: &'static FuzzTarget,
    range: InputRange,
    progress: Option<&Path>,
) -> Result<CampaignReport> {
    let begun = Instant::now();
    let (scratch, maker) = (InputFolder::new()?, InputMaker::new(target, range.seed));
    let progress = progress.map(File::create).transpose().context("cannot write the progress")?;
    let watched = Watched::start(target, range.seed);
    let mut report = CampaignReport { inputs: 0, seconds: 0.0, peak_bytes: 0, failure: None };
    for (path, bytes) in corpus::inputs(target.name) {
        report.inputs += 1;
        if let Err(problem) = attempt(target, &bytes, &scratch, &mut report.peak_bytes) {
            let command =
                format!("cargo xtask fuzz --target {} --file {}", target.name, path.display());
            report.failure = Some(InputFailure { target: target.name, problem, command });
            break;
        }
    }
    let numbers = range.first..range.first.saturating_add(range.count);
    for number in numbers {
        if report.failure.is_some() {
            break;
        }
        watched.number.store(number, Ordering::Relaxed);
        if let Some(file) = &progress {
            note(file, number)?;
        }
        report.inputs += 1;
        let bytes = maker.input(number);
        if let Err(problem) = attempt(target, &bytes, &scratch, &mut report.peak_bytes) {
            corpus::save(target.name, range.seed, number, &bytes)?;
            let command = command(target, range.seed, number);
            report.failure = Some(InputFailure { target: target.name, problem, command });
        }
    }
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

/// Runs one input; why it fails, if it does.
pub fn attempt(
    target: &FuzzTarget,
    bytes: &[u8],
    scratch: &InputFolder,
    peak_bytes: &mut usize,
) -> Result<(), String> {
    keep_panics();
    let meter = PeakMeter::start();
    let read = catch_unwind(AssertUnwindSafe(|| (target.read)(bytes, scratch)));
    let peak = meter.peak_bytes();
    *peak_bytes = peak.max(*peak_bytes);
    if read.is_err() {
        let said = std::mem::take(&mut *LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner));
        return Err(format!("{} bytes: it panicked: {said}", bytes.len()));
    }
    if peak > target.memory_bytes {
        let (len, most) = (bytes.len(), target.memory_bytes);
        return Err(format!("{len} bytes made it hold {peak} bytes; its limit is {most}"));
    }
    Ok(())
}

static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// Keeps the text of panics instead of printing it: of many, one is shown.
fn keep_panics() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            let mut last = LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner);
            // A thread's panic comes first and says more than that of the one who joins it.
            if last.is_empty() {
                *last = panic.to_string();
            }
        }));
    });
}

#[cfg(unix)]
fn note(file: &File, number: u64) -> Result<()> {
    Ok(std::os::unix::fs::FileExt::write_all_at(file, &number.to_le_bytes(), 0)?)
}

#[cfg(not(unix))]
fn note(_: &File, _: u64) -> Result<()> {
    Ok(())
}

/// What the watchdog sees.
struct Watched {
    number: Arc<AtomicU64>,
}

impl Watched {
    /// Starts the watchdog, which ends the process when an input takes too long, and ends with this.
    fn start(target: &'static FuzzTarget, seed: u64) -> Watched {
        let number = Arc::new(AtomicU64::new(u64::MAX));
        let seen = Arc::downgrade(&number);
        std::thread::spawn(move || {
            let mut last = (u64::MAX, Instant::now(), process_cpu());
            loop {
                std::thread::sleep(WATCH_INTERVAL);
                let Some(number) = seen.upgrade().map(|number| number.load(Ordering::Relaxed))
                else {
                    return;
                };
                let (before, since, cpu) = last;
                if number != before {
                    last = (number, Instant::now(), process_cpu());
                } else if process_cpu().saturating_sub(cpu) > INPUT_CPU
                    || since.elapsed() > INPUT_WALL
                {
                    let bytes = InputMaker::new(target, seed).input(number);
                    let _ = corpus::save(target.name, seed, number, &bytes);
                    let (name, command) = (target.name, command(target, seed, number));
                    println!(
                        "{name}: an input takes more than {INPUT_CPU:?}\n  repeat it with: {command}"
                    );
                    std::process::exit(HANG_STATUS);
                }
            }
        });
        Watched { number }
    }
}

/// Processor time of this process; zero where the system does not say.
fn process_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, which may have spaces in it, ends with a parenthesis.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = |place: usize| -> u64 {
        fields.split_ascii_whitespace().nth(place).and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    // User and system time, in hundredths of a second on every Linux.
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{InputFormat, as_it_is};

    fn target(read: fn(&[u8], &InputFolder)) -> FuzzTarget {
        FuzzTarget {
            name: "made-up",
            function: "",
            format: InputFormat::Binary,
            seeds: || vec![vec![1, 2, 3]],
            repair: as_it_is,
            read,
            share: 1,
            memory_bytes: 1 << 20,
        }
    }

    /// One test only: the meter and the hook are the process's.
    #[test]
    fn panics_and_large_allocations_are_failures_and_nothing_else_is() {
        let scratch = InputFolder::new().expect("a folder");
        let attempt = |read| attempt(&target(read), &[1, 2, 3], &scratch, &mut 0);
        attempt(|_, _| ()).expect("nothing happens");
        attempt(|bytes, _| drop(vec![0u8; bytes.len() << 10])).expect("within its limit");
        let told = attempt(|bytes, _| assert!(bytes.is_empty(), "so it is")).expect_err("a panic");
        assert!(told.contains("so it is"), "{told}");
        let told = attempt(|_, _| drop(vec![1u8; 3 << 20])).expect_err("too much");
        assert!(told.contains("its limit is 1048576"), "{told}");
    }
}
