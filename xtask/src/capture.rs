//! `cargo xtask capture`: what somebody between the machines can read of a run.
//!
//! Three processes train on hosts of their own, while everything that the first one sends and
//! receives is written down. The learning rate is zero, so every message has the parameters that the run ends with. With
//! a secret the capture must contain nothing of them, of the secret or of the configuration; without one it
//! must, or the search would find nothing whatever is sent.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::network::{self, Kept, ScratchFolder, ShapedNetwork};
use crate::{output, reality};

const HOSTS: usize = 3;
/// Megabits per second.
const RATE: u32 = 1000;
const PORT: u16 = 29_470;
const SECRET: &str = "a-secret-that-nobody-may-read-5f2c";
const ALGORITHM: &str = "d-psgd";
const SCRIPT: &str = include_str!("capture.py");
/// The longest that a run may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of a piece of the parameters that is searched: four numbers.
const PIECE: usize = 16;

/// Shorter ones occur in ten megabytes by chance.
const SHORTEST_WORD: usize = 6;

/// `cargo xtask capture`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    if !words.is_empty() {
        bail!("usage: cargo xtask capture");
    }
    if let Some(why) = network::refusal() {
        bail!("hosts cannot be made here: {why}");
    }
    let program = reality::program()?;
    for secret in [None, Some(SECRET)] {
        let found = search(&program, secret)?;
        let how = if secret.is_some() { "with a secret" } else { "without a secret" };
        println!(
            "{how}: {} KB captured; {} of {} pieces of the parameters, words: {}",
            found.captured / 1000,
            found.pieces,
            found.of_pieces,
            if found.words.is_empty() { "none".into() } else { found.words.join(", ") },
        );
        let reveals = found.pieces > 0 || !found.words.is_empty();
        if reveals == secret.is_some() {
            bail!(if reveals {
                "the run can be read"
            } else {
                "the search finds nothing even in plain text"
            });
        }
    }
    Ok(())
}

/// What was found in a capture.
struct Findings {
    captured: usize,
    pieces: usize,
    of_pieces: usize,
    words: Vec<String>,
}

/// Trains and captures; looks for what must not be seen.
fn search(program: &Path, secret: Option<&str>) -> Result<Findings> {
    let folder = ScratchFolder::new("capture")?;
    let network = ShapedNetwork::new(HOSTS, RATE)?;
    let file = folder.path.join("packets");
    let mut tap = Command::new("python3");
    tap.args(["-c", SCRIPT, &network.cable(0)]).arg(&file).stdout(Stdio::piped());
    let mut tap = Kept(tap.spawn()?);
    let mut said = String::new();
    BufReader::new(tap.0.stdout.take().context("it was asked for")?).read_line(&mut said)?;
    if said.trim() != "captures" {
        bail!("packets cannot be captured here");
    }
    let ranks = (0..HOSTS).map(|rank| {
        let mut command = network.inside(rank);
        command.arg(program).args(["train", "-q", "--set", "task.name=digits-mlp"]);
        command.args(["--set", "algorithm.name=d-psgd", "--set", "topology.name=ring"]);
        command.args(["--set", "optimizer.lr=0.0", "--set", "steps=30", "--out"]);
        command.arg(folder.path.join("run"));
        command.env("QUELEA_RANK", rank.to_string()).env("QUELEA_WORLD_SIZE", HOSTS.to_string());
        command.env("QUELEA_RENDEZVOUS", format!("{}:{PORT}", network::address(0)));
        match secret {
            Some(secret) => command.env("QUELEA_SECRET", secret),
            None => command.env("QUELEA_INSECURE", "1"),
        };
        Ok(Kept(command.spawn()?))
    });
    network::finish_all(ranks.collect::<Result<_>>()?, LIMIT)?;
    // It writes every packet before it asks for the next, and the last ones are of the run's end.
    output(Command::new("kill").arg(tap.0.id().to_string()))?;
    tap.0.wait()?;
    let (packets, model) = (fs::read(&file)?, parameters(&folder.path.join("run"))?);
    let pieces: HashSet<&[u8]> =
        model.chunks_exact(PIECE).step_by(16).filter(|piece| varies(piece)).collect();
    let mut seen = HashSet::new();
    for window in packets.windows(PIECE) {
        if pieces.contains(window) {
            seen.insert(window);
        }
    }
    let host = output(&mut Command::new("hostname")).unwrap_or_default();
    let mut words = vec![SECRET, ALGORITHM, "digits-mlp", host.trim()];
    words.retain(|word| word.len() >= SHORTEST_WORD);
    let is_there = |word: &&str| packets.windows(word.len()).any(|part| part == word.as_bytes());
    Ok(Findings {
        captured: packets.len(),
        pieces: seen.len(),
        of_pieces: pieces.len(),
        words: words.into_iter().filter(is_there).map(String::from).collect(),
    })
}

/// Whether these bytes would not be met by chance: no run of zeros.
fn varies(piece: &[u8]) -> bool {
    piece.iter().collect::<HashSet<_>>().len() > PIECE / 2
}

/// The bytes of the final model.
fn parameters(run: &Path) -> Result<Vec<u8>> {
    let file = fs::read(run.join("final.safetensors")).context("the run has a final model")?;
    let (length, rest) = file.split_first_chunk().context("a file of safetensors")?;
    let header = u64::from_le_bytes(*length) as usize;
    Ok(rest.get(header..).context("a whole file of safetensors")?.to_vec())
}
