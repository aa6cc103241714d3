//! `cargo xtask python`: the Python package's tests, in an environment outside the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{cargo, execute, output};

/// What the tests need beside Python.
const PACKAGES: &[&str] = &["torch", "numpy", "pytest"];

/// Builds the module, lays the package beside the build, runs pytest with `words`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let python = environment()?;
    execute(cargo().args(["build", "-p", "murmura-py"]))?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent");
    let target = target_folder()?;
    let package = lay_out(root, &target)?;
    let mut pytest = Command::new(python);
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).args(words);
    pytest.current_dir(root.join("crates/murmura-py"));
    pytest.env("PYTHONPATH", package).env("PYTHONDONTWRITEBYTECODE", "1");
    // Several processes share the cores.
    pytest.env("OMP_NUM_THREADS", "1");
    execute(&mut pytest)
}

/// The interpreter of an environment with [`PACKAGES`]: `MURMURA_PYTHON`, or one that is made once
/// in the user's cache.
fn environment() -> Result<PathBuf> {
    if let Some(python) = std::env::var_os("MURMURA_PYTHON") {
        return Ok(python.into());
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let folder = cache.context("neither HOME nor XDG_CACHE_HOME is set")?.join("murmura/torch");
    let python = folder.join("bin/python");
    if !python.exists() {
        execute(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    }
    let imports = PACKAGES.iter().map(|package| format!("import {package}"));
    let check = imports.collect::<Vec<_>>().join("; ");
    if output(Command::new(&python).args(["-c", &check])).is_err() {
        execute(Command::new(&python).args(["-m", "pip", "install", "-q"]).args(PACKAGES))?;
    }
    Ok(python)
}

/// Where cargo builds.
fn target_folder() -> Result<PathBuf> {
    let said = output(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let after =
        said.split("\"target_directory\":\"").nth(1).and_then(|rest| rest.split('"').next());
    Ok(PathBuf::from(after.context("cargo does not say where it builds")?))
}

/// Puts the package's files and the built module into one folder; returns what goes into the path.
fn lay_out(root: &Path, target: &Path) -> Result<PathBuf> {
    let module = target.join("debug").join(module_file()?);
    let folder = target.join("python/murmura");
    // What was removed from the package must not stay.
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    for entry in fs::read_dir(root.join("crates/murmura-py/python/murmura"))? {
        let path = entry?.path();
        if path.is_file() {
            fs::copy(&path, folder.join(path.file_name().expect("a file has a name")))?;
        }
    }
    fs::copy(&module, folder.join("_core.abi3.so"))
        .with_context(|| format!("{} was not built", module.display()))?;
    Ok(target.join("python"))
}

fn module_file() -> Result<&'static str> {
    match std::env::consts::OS {
        "linux" => Ok("lib_core.so"),
        "macos" => Ok("lib_core.dylib"),
        other => bail!("the Python package is not tested on {other}"),
    }
}
