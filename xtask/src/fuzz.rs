//! `cargo xtask fuzz`: inputs to everything that reads bytes or text from outside. The program is in `fuzz/`.

use anyhow::Result;

use crate::{cargo, execute};

/// Further words go to the program. It is built as tests are: sums that overflow are panics.
pub(crate) fn run(words: &[String]) -> Result<()> {
    execute(cargo().args(["run", "--quiet", "--package", "quelea-fuzz", "--"]).args(words))
}
