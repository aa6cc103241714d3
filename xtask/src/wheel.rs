//! `cargo xtask wheel`: the Python package as a file that pip installs, and the tests of it.
//!
//! A wheel needs neither Rust nor a compiler where it is installed. It is built by maturin, which the
//! package index has, and installed into environments that contain nothing else, outside the repository:
//! one of the oldest and one of the newest Python that is here, and two that see the oldest and the newest
//! PyTorch. One more is installed from the sources, as the README has it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{environment, execute, output, python};

/// What builds wheels.
const MATURIN: &[&str] = &["maturin==1.14.1"];
/// The linker of another toolchain, for wheels that run with older versions of the C library.
const ZIG: &[&str] = &["ziglang==0.15.2"];

/// `cargo xtask wheel [--portable]`: builds the wheel that is published.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let portable = match words {
        [] => false,
        [word] if word == "--portable" => true,
        _ => bail!("usage: cargo xtask wheel [--portable]"),
    };
    let python = environment::provide()?;
    let mut more = vec!["--profile", "dist", "--strip"];
    if portable {
        more.extend(["--zig", "--compatibility", "manylinux2014"]);
    }
    let wheel = build(&python, &more, portable)?;
    let size = fs::metadata(&wheel)?.len() as f64 / 1e6;
    println!("\n{} ({size:.1} MB)", wheel.display());
    Ok(())
}

/// The tests of a wheel that is built as the tests are, from what is compiled already.
pub(crate) fn test(torch: &Path) -> Result<()> {
    let wheel = build(torch, &["--profile", "dev"], false)?;
    let interpreters = interpreters()?;
    for interpreter in &interpreters {
        let installed = InstalledWheel::new(interpreter, &wheel)?;
        installed.trains_without_pytorch()?;
    }
    InstalledWheel::beside_pytorch(torch, &wheel, "wheel-torch")?.trains_with_pytorch()?;
    match environment::provide_oldest(&interpreters)? {
        Some(oldest) => {
            let installed = InstalledWheel::beside_pytorch(&oldest, &wheel, "wheel-torch-oldest")?;
            installed.trains_with_pytorch()?;
            python::test_with_oldest(&oldest)?;
        }
        None => println!("skipped: the oldest PyTorch (no Python 3.10 or 3.11 is here)"),
    }
    InstalledWheel::from_sources(torch)?.trains_with_pytorch()
}

/// Builds a wheel; returns where it is.
fn build(python: &Path, more: &[&str], portable: bool) -> Result<PathBuf> {
    let tools = environment::provide_beside(python, MATURIN)?;
    let out = python::target_folder()?.join("wheels");
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    let mut maturin = Command::new(tools.join("bin/maturin"));
    maturin.current_dir(python::root()).args(["build", "--quiet", "--out"]).arg(&out).args(more);
    if portable {
        let zig = environment::provide_beside(python, ZIG)?;
        maturin.env("PYTHONPATH", &zig).env("CARGO_ZIGBUILD_PYTHON_PATH", python);
    }
    execute(&mut maturin)?;
    let made = fs::read_dir(&out)?.filter_map(Result::ok).map(|entry| entry.path());
    let mut wheels = made.filter(|path| path.extension().is_some_and(|ending| ending == "whl"));
    wheels.next().context("maturin has made no wheel")
}

/// The oldest and the newest Python of this machine that the package supports.
fn interpreters() -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> =
        (environment::oldest_minor()..30).filter_map(interpreter).collect();
    if found.is_empty() {
        bail!("no Python that the package supports is here");
    }
    let newest = found.pop();
    found.truncate(1);
    found.extend(newest);
    Ok(found)
}

/// Python 3.`minor`, by its name or where pyenv keeps it.
fn interpreter(minor: u32) -> Option<PathBuf> {
    let name = format!("python3.{minor}");
    let version = ["-c", "import venv, ensurepip, sys; print(sys.executable)"];
    let runs = |path: &Path| output(Command::new(path).args(version)).ok();
    if let Some(said) = runs(Path::new(&name)) {
        return Some(PathBuf::from(said.trim()));
    }
    let home = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv")))?;
    let kept = fs::read_dir(home.join("versions")).ok()?.filter_map(Result::ok);
    let mut kept: Vec<PathBuf> = kept.map(|entry| entry.path().join("bin").join(&name)).collect();
    kept.sort();
    kept.into_iter().find(|path| path.exists() && runs(path).is_some())
}

/// An environment with the wheel and nothing else.
struct InstalledWheel {
    folder: PathBuf,
}

impl InstalledWheel {
    /// Makes the environment if it is not there, and installs the wheel in place of an older one.
    fn new(interpreter: &Path, wheel: &Path) -> Result<InstalledWheel> {
        let version = ["-c", "import sys; print('%d.%d' % sys.version_info[:2])"];
        let version = output(Command::new(interpreter).args(version))?;
        InstalledWheel::in_folder(interpreter, wheel, &format!("wheel-{}", version.trim()))
    }

    /// The same, where Python also finds the packages of an environment that has PyTorch.
    fn beside_pytorch(torch: &Path, wheel: &Path, name: &str) -> Result<InstalledWheel> {
        let installed = InstalledWheel::in_folder(torch, wheel, name)?;
        installed.sees(torch)?;
        Ok(installed)
    }

    /// `pip install .` in this repository, with a build for tests and a maturin that is here already.
    fn from_sources(torch: &Path) -> Result<InstalledWheel> {
        let installed = InstalledWheel { folder: environment::cache()?.join("wheel-sources") };
        environment::make(torch, &installed.folder)?;
        let tools = environment::provide_beside(torch, MATURIN)?;
        let old = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(tools.join("bin")).chain(std::env::split_paths(&old));
        let mut pip = Command::new(installed.program("python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]);
        pip.args(["--no-build-isolation", "--force-reinstall", "."]).current_dir(python::root());
        pip.env("PYTHONPATH", &tools).env("PATH", std::env::join_paths(path)?);
        pip.env("MATURIN_PEP517_ARGS", "--profile dev");
        pip.env("CARGO_TARGET_DIR", python::target_folder()?);
        execute(&mut pip)?;
        installed.sees(torch)?;
        Ok(installed)
    }

    /// Lets Python find the packages of another environment.
    fn sees(&self, torch: &Path) -> Result<()> {
        let folder = ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"];
        let theirs = output(Command::new(torch).args(folder))?;
        let own = output(Command::new(self.program("python")).args(folder))?;
        Ok(fs::write(Path::new(own.trim()).join("pytorch.pth"), theirs)?)
    }

    fn in_folder(interpreter: &Path, wheel: &Path, name: &str) -> Result<InstalledWheel> {
        let installed = InstalledWheel { folder: environment::cache()?.join(name) };
        environment::make(interpreter, &installed.folder)?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"];
        let again = ["--no-deps", "--force-reinstall"];
        let python = installed.program("python");
        execute(Command::new(python).args(pip).args(again).arg(wheel))?;
        Ok(installed)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    /// Runs one of its programs in an empty folder, without what the caller's environment says of Rust
    /// and Python; returns what it printed.
    fn run(&self, name: &str, words: &[&str]) -> Result<String> {
        let place = self.folder.join("scratch");
        if place.exists() {
            fs::remove_dir_all(&place)?;
        }
        fs::create_dir(&place)?;
        let mut command = Command::new(self.program(name));
        command.args(words).current_dir(&place).env_clear().env("HOME", &place);
        command.env("PATH", self.folder.join("bin")).env("OMP_NUM_THREADS", "1");
        output(&mut command)
    }

    /// The command and the module, where there is no PyTorch.
    fn trains_without_pytorch(&self) -> Result<()> {
        let listed = self.run("quelea", &["list", "algorithms"])?;
        let imported =
            self.run("python", &["-c", "import quelea; print(len(quelea.algorithms()))"])?;
        let count: usize = imported.trim().parse()?;
        anyhow::ensure!(
            count > 20 && listed.lines().count() > count,
            "quelea list printed {listed}"
        );
        let run = ["--set", "workers=2", "--set", "steps=20", "--json", "--out", "run"];
        for driver in [&["simulate"][..], &["train"], &["train", "--processes"]] {
            let said = self.run("quelea", &[driver, &run].concat())?;
            let summary: serde_json::Value = serde_json::from_str(&said)?;
            let loss = summary["loss"].as_f64();
            anyhow::ensure!(loss.is_some_and(f64::is_finite), "{driver:?} printed {said}");
        }
        println!("{}: imports, lists, simulates, trains", self.folder.display());
        Ok(())
    }

    /// A script under `wrap` in two processes, with an algorithm in Python.
    fn trains_with_pytorch(&self) -> Result<()> {
        let script = python::root().join("examples/python/algorithms/train.py");
        let script = script.to_string_lossy();
        let said = self.run("quelea", &["launch", "-n", "2", &script])?;
        anyhow::ensure!(said.contains("loss"), "the script printed {said}");
        println!("{}: {}", self.folder.display(), said.trim());
        Ok(())
    }
}
