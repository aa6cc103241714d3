//! `cargo xtask chaos --shared-memory`: processes are killed and paused in the middle of exchanges through shared
//! memory, as often as is asked for. The tests of `quelea-net` do the same a few times.

use anyhow::{Context, Result, bail};

use crate::{cargo, execute};

/// Kills, and pauses, of a run without arguments.
const ROUNDS: u32 = 1000;

pub(super) fn run(words: &[String]) -> Result<()> {
    let rounds = rounds(words)?;
    let mut command = cargo();
    command.args(["test", "--release", "-p", "quelea-net", "--test", "shared_memory", "--"]);
    command.args(["--nocapture", "a_process_that_is"]);
    execute(command.env("QUELEA_TEST_ROUNDS", rounds.to_string()))?;
    println!("{rounds} kills and {rounds} pauses: nobody was stuck, nothing was left behind");
    Ok(())
}

fn rounds(words: &[String]) -> Result<u32> {
    match words {
        [] => Ok(ROUNDS),
        [name, number] if name == "--rounds" => {
            number.parse().with_context(|| format!("`--rounds {number}`: not a number"))
        }
        _ => bail!("there is only `--rounds N`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_rounds_as_are_asked_for() {
        let read = |line: &str| rounds(&line.split(' ').map(String::from).collect::<Vec<_>>());
        assert_eq!(rounds(&[]).expect("the default"), ROUNDS);
        assert_eq!(read("--rounds 7").expect("good"), 7);
        assert!(read("--rounds x").is_err() && read("--seeds 7").is_err());
    }
}
