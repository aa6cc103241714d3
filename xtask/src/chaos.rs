//! `cargo xtask chaos`: small random runs of every algorithm in the virtual cluster, with random faults, and
//! what must hold in them whatever goes wrong. A seed that fails is printed with the command that repeats it.
//! With `--real`, processes of real runs are killed instead.

mod real;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use quelea_sim::chaos::ChaosScenario;

/// Seeds of a run without arguments.
const SEEDS: u64 = 300;
/// Failures that are described; more are counted.
const SHOWN: usize = 10;

/// Which seeds to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SeedRange {
    first: u64,
    count: u64,
}

pub(crate) fn run(words: &[String]) -> Result<()> {
    if let Some(("--real", rest)) = words.split_first().map(|(first, rest)| (first.as_str(), rest))
    {
        return real::run(rest);
    }
    let seeds = seeds(words)?;
    let begun = Instant::now();
    let mut failures = Vec::new();
    for seed in seeds.first..seeds.first + seeds.count {
        if let Err(problem) = attempt(seed) {
            if failures.len() < SHOWN {
                println!("{problem}\n  repeat it with: cargo xtask chaos --seed {seed}\n");
            }
            failures.push(seed);
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    if failures.is_empty() {
        println!("{} seeds from {}, no failure, {seconds:.1} s", seeds.count, seeds.first);
        return Ok(());
    }
    let some = failures.iter().take(100).map(u64::to_string).collect::<Vec<_>>().join(" ");
    bail!("{} of {} seeds failed ({seconds:.1} s): {some}", failures.len(), seeds.count)
}

/// Runs one seed; a panic is a failure too.
fn attempt(seed: u64) -> Result<(), String> {
    let scenario = ChaosScenario::new(seed);
    match catch_unwind(AssertUnwindSafe(|| scenario.run())) {
        Ok(ended) => ended.map_err(|failure| failure.to_string()),
        Err(_) => Err(format!("it panicked (above)\n  {}", scenario.described())),
    }
}

fn seeds(words: &[String]) -> Result<SeedRange> {
    let mut seeds = SeedRange { first: 0, count: SEEDS };
    for pair in words.chunks(2) {
        let [name, value] = pair else {
            bail!("`{}` needs a number", pair[0]);
        };
        let number = value.parse().with_context(|| format!("`{name} {value}`: not a number"))?;
        match name.as_str() {
            "--seeds" => seeds.count = number,
            "--from" => seeds.first = number,
            "--seed" => seeds = SeedRange { first: number, count: 1 },
            other => bail!("unknown option `{other}`; there are --seeds, --from and --seed"),
        }
    }
    Ok(seeds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_those_that_were_asked_for() {
        let read = |line: &str| seeds(&line.split(' ').map(String::from).collect::<Vec<_>>());
        let range = |first, count| SeedRange { first, count };
        assert_eq!(seeds(&[]).expect("the default"), range(0, SEEDS));
        assert_eq!(read("--seeds 10000 --from 5").expect("good"), range(5, 10_000));
        assert_eq!(read("--seed 77").expect("good"), range(77, 1));
        assert!(read("--seeds").is_err() && read("--seeds x").is_err() && read("--all 1").is_err());
    }
}
