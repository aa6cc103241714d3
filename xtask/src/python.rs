//! `cargo xtask python`: the Python package's tests, in an environment outside the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{cargo, environment, execute, output};

/// Builds the module, lays the package beside the build, runs pytest with `words`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let python = environment::provide()?;
    // Scripts are also launched by the command line.
    execute(cargo().args(["build", "-p", "quelea-py", "-p", "quelea-cli"]))?;
    let skipped = test(&python, words)?;
    skipped.iter().for_each(|skipped| println!("skipped: {skipped}"));
    Ok(())
}

/// As part of the whole test command, which has built all tests before. With them, the module is
/// built of the same parts; by itself it would be built of its own, with fewer features. Returns what was skipped.
pub(crate) fn run_with_all(python: &Path) -> Result<Vec<String>> {
    execute(cargo().args(["build", "--workspace", "--lib", "--bins", "--tests", "-q"]))?;
    test(python, &[])
}

/// What is tested with the oldest PyTorch too: how scripts use the package, and the bits of equations.
const OF_OLDEST: &[&str] = &["tests/test_use.py", "tests/test_equations.py"];

/// The tests of what depends on PyTorch's version, in the environment of the oldest. The module is built.
pub(crate) fn test_with_oldest(python: &Path) -> Result<()> {
    execute(pytest(python)?.args(OF_OLDEST))
}

/// pytest over the package that is built.
fn pytest(python: &Path) -> Result<Command> {
    let package = lay_out("debug")?;
    let mut pytest = Command::new(python);
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    pytest.current_dir(root().join("crates/quelea-py"));
    pytest.env("PYTHONPATH", package).env("PYTHONDONTWRITEBYTECODE", "1");
    pytest.env("QUELEA_PROGRAM", target_folder()?.join("debug/quelea"));
    // Several processes share the cores.
    pytest.env("OMP_NUM_THREADS", "1");
    Ok(pytest)
}

/// Runs pytest; returns the tests that were skipped because their packages cannot be had.
fn test(python: &Path, words: &[String]) -> Result<Vec<String>> {
    let mut pytest = pytest(python)?;
    let skipped = name_packages(&mut pytest, |provide| provide(python));
    execute(pytest.args(words))?;
    Ok(skipped)
}

type Provide = fn(&Path) -> Result<PathBuf>;
/// Packages beside the environment: the variable that tests find them by, how they are provided, and what is skipped
/// without them.
const BESIDE: [(&str, Provide, &str); 3] = [
    ("QUELEA_TABLES_PATH", environment::tables, "records in pandas and polars"),
    ("QUELEA_JUPYTER_PATH", environment::jupyter, "notebooks in Jupyter"),
    ("QUELEA_FRAMEWORKS_PATH", environment::frameworks, "Transformers and Lightning"),
];

/// Tells the tests where packages are; returns what is skipped without those that `provided` does not give.
fn name_packages(
    pytest: &mut Command,
    provided: impl Fn(Provide) -> Result<PathBuf>,
) -> Vec<String> {
    let mut skipped = Vec::new();
    for (variable, provide, tests) in BESIDE {
        match provided(provide) {
            Ok(path) => {
                pytest.env(variable, path);
            }
            Err(problem) => skipped.push(format!("{tests} ({problem:#})")),
        }
    }
    skipped
}

/// The package, built for speed: what goes into the path.
pub(crate) fn release() -> Result<PathBuf> {
    execute(cargo().args(["build", "--release", "-q", "-p", "quelea-py"]))?;
    lay_out("release")
}

/// How long events of algorithms in Python take, against those in Rust: rows of the benchmark.
pub(crate) fn event_times() -> Result<Vec<Value>> {
    let python = environment::provide()?;
    let mut script = Command::new(python);
    script.arg(root().join("crates/quelea-py/benches/events.py"));
    let printed = output(script.env("PYTHONPATH", release()?).env("OMP_NUM_THREADS", "1"))?;
    printed.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent")
}

/// Where cargo builds.
pub(crate) fn target_folder() -> Result<PathBuf> {
    let said = output(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let after =
        said.split("\"target_directory\":\"").nth(1).and_then(|rest| rest.split('"').next());
    Ok(PathBuf::from(after.context("cargo does not say where it builds")?))
}

/// Puts the package's files and the built module into one folder; returns what goes into the path.
pub(crate) fn lay_out(profile: &str) -> Result<PathBuf> {
    let target = target_folder()?;
    let module = target.join(profile).join(module_file()?);
    let path = target.join("python").join(profile);
    let folder = path.join("quelea");
    // What was removed from the package must not stay.
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    for entry in fs::read_dir(root().join("crates/quelea-py/python/quelea"))? {
        let path = entry?.path();
        if path.is_file() {
            fs::copy(&path, folder.join(path.file_name().expect("a file has a name")))?;
        }
    }
    fs::copy(&module, folder.join("_core.abi3.so"))
        .with_context(|| format!("{} was not built", module.display()))?;
    lay_out_entry_points(&path)?;
    Ok(path)
}

/// What an installed package says about itself, as far as PyTorch reads it.
fn lay_out_entry_points(path: &Path) -> Result<()> {
    let folder = path.join("quelea-0.1.0.dist-info");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("METADATA"), "Metadata-Version: 2.1\nName: quelea\nVersion: 0.1.0\n")?;
    let project = fs::read_to_string(root().join("pyproject.toml"))?;
    let group = "torch.distributed.backends";
    let header = format!("[project.entry-points.\"{group}\"]\n");
    let after = project.split_once(&header).map(|(_, after)| after);
    let lines = after.and_then(|after| after.split("\n\n").next());
    let lines = lines.context("pyproject.toml has no backend of torch.distributed")?;
    let entries = format!("[{group}]\n{}\n", lines.replace('"', ""));
    Ok(fs::write(folder.join("entry_points.txt"), entries)?)
}

fn module_file() -> Result<&'static str> {
    match std::env::consts::OS {
        "linux" => Ok("lib_core.so"),
        "macos" => Ok("lib_core.dylib"),
        other => bail!("the Python package is not tested on {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_without_their_packages_are_named_as_skipped() {
        let mut pytest = Command::new("pytest");
        let skipped = name_packages(&mut pytest, |_| bail!("pip cannot reach its index"));
        assert_eq!(skipped.len(), BESIDE.len());
        let of_all = BESIDE.iter().zip(&skipped);
        for ((_, _, tests), skipped) in of_all {
            assert!(skipped.starts_with(tests) && skipped.contains("its index"), "{skipped}");
        }
        assert_eq!(pytest.get_envs().count(), 0);
        let skipped = name_packages(&mut pytest, |_| Ok(PathBuf::from("/packages")));
        assert_eq!((skipped, pytest.get_envs().count()), (Vec::new(), BESIDE.len()));
    }
}
