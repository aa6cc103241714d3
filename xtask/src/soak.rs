//! `cargo xtask soak`: what takes too long for the test command. Every part is a script of the Python binding that fails
//! when something does not hold.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{environment, execute, python};

/// Parts, and what each takes.
const PARTS: [(&str, &str); 2] = [
    ("process-groups", "all of PyTorch's own tests of process groups, with gloo and with quelea"),
    ("frameworks", "losses of the examples for Transformers, Lightning and Ray, against DDP's"),
];

pub(crate) fn run(words: &[String]) -> Result<()> {
    let known = |word: &String| PARTS.iter().any(|(part, _)| part == word);
    if words.iter().any(|word| word == "--list") {
        PARTS.iter().for_each(|(part, what)| println!("{part:15} {what}"));
        return Ok(());
    }
    if let Some(unknown) = words.iter().find(|word| !known(word)) {
        bail!("no soak test `{unknown}`; `cargo xtask soak --list` shows all");
    }
    let interpreter = environment::provide()?;
    let package = python::release()?;
    let frameworks = environment::frameworks(&interpreter)?;
    let ray = environment::ray(&interpreter)?;
    for (part, _) in
        PARTS.iter().filter(|(part, _)| words.is_empty() || words.iter().any(|word| word == part))
    {
        let script = format!("crates/quelea-py/soak/{}.py", part.replace('-', "_"));
        let mut soak = Command::new(&interpreter);
        soak.arg("-u").arg(python::root().join(script));
        soak.env("PYTHONPATH", &package).env("PYTHONDONTWRITEBYTECODE", "1");
        soak.env("QUELEA_FRAMEWORKS_PATH", &frameworks).env("QUELEA_RAY_PATH", &ray);
        execute(soak.env("OMP_NUM_THREADS", "1").env("CUDA_VISIBLE_DEVICES", ""))?;
    }
    Ok(())
}
