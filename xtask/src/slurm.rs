//! `cargo xtask slurm`: jobs in a real Slurm cluster on this machine, as long as they take.

use anyhow::{Result, bail};

use crate::test::{SLURM, provide};
use crate::{cargo, execute};

pub(crate) fn run(words: &[String]) -> Result<()> {
    if !words.is_empty() {
        bail!("usage: cargo xtask slurm");
    }
    if !provide(SLURM) {
        bail!("Slurm is not here and cannot be installed; its packages are slurm-wlm and munge");
    }
    let test = ["test", "-p", "quelea-cli", "--test", "slurm", "--", "--nocapture"];
    execute(cargo().args(test).env("QUELEA_SLURM", "full"))
}
