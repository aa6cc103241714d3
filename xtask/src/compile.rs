//! `cargo xtask bench compile`: how long a project that uses the library compiles from nothing.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use crate::rules::root;
use crate::{cargo, output, python};

pub(crate) const NAME: &str = "compile";
pub(crate) const WHAT: &str =
    "a new project that uses the library, built from nothing; the ratio is to the goal";

/// A user who only simulates waits so many seconds at most, on two cores.
const SIM_SECONDS: f64 = 30.0;

const PROGRAM: &str = "\
//! Four workers, four opinions.

fn main() {
    let run = quelea::Run::new([0.0]).workers(4).steps(50).gradient(|batch, x, grad| {
        grad[0] = x[0] - batch.worker as f32;
        0.5 * grad[0] * grad[0]
    });
    let outcome = run.simulate(&quelea::Cluster::default()).expect(\"it ends well\");
    println!(\"{:.3}\", outcome.model()[0]);
}
";

/// Builds the project with the virtual cluster only, and with the default features.
pub(crate) fn measure() -> Result<Vec<Value>> {
    let folder = python::target_folder()?.join("compile");
    let mut rows = Vec::new();
    for (name, features) in [
        ("feature sim only", "default-features = false, features = [\"sim\"]"),
        ("default features", "default-features = true"),
    ] {
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let seconds = build(&folder, features)?;
        let goal = (name == "feature sim only").then_some(SIM_SECONDS);
        let mut row = json!({ "name": name, "seconds": seconds, "packages": packages(&folder)? });
        if let Some(goal) = goal {
            row["ratio"] = Value::from(seconds / goal);
            row["goal"] = Value::from(1.0);
        }
        rows.push(row);
    }
    fs::remove_dir_all(&folder)?;
    Ok(rows)
}

/// Seconds of `cargo build` in an empty folder.
fn build(folder: &Path, features: &str) -> Result<f64> {
    fs::create_dir_all(folder.join("src"))?;
    fs::write(folder.join("src/main.rs"), PROGRAM)?;
    let library = root().join("crates/quelea");
    let manifest = format!(
        "[package]\nname = \"compile\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\nquelea = {{ path = {:?}, {features} }}\n",
        library.display().to_string()
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    // The versions that are here already: what is measured is the compiler, not the network.
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let target = folder.join("target");
    let begin = Instant::now();
    let words = ["build", "--offline", "--quiet", "--timings"];
    output(cargo().args(words).arg("--target-dir").arg(target).current_dir(folder))?;
    Ok(begin.elapsed().as_secs_f64())
}

/// How many packages it consists of, without itself.
fn packages(folder: &Path) -> Result<usize> {
    let words = ["tree", "--offline", "--prefix", "none", "--format", "{p}", "--no-dedupe"];
    let tree = output(cargo().args(words).args(["--edges", "normal,build"]).current_dir(folder))?;
    let names: std::collections::BTreeSet<&str> = tree.lines().skip(1).collect();
    Ok(names.len())
}
