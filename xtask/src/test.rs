//! `cargo xtask test`: everything that must hold, cheapest first.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Error, Result, bail};

use crate::{cargo, edges, environment, execute, exists, python, rules, tidy, tutorials, wheel};

pub(crate) fn run(words: &[String]) -> Result<()> {
    let quick = match words {
        [] => false,
        [word] if word == "--quick" => true,
        _ => bail!("usage: cargo xtask test [--quick]"),
    };
    execute(cargo().args(["fmt", "--all", "--check"]))?;
    tidy::check()?;
    rules::run(&[])?;
    edges::check()?;
    execute(&mut packages())?;
    if !quick {
        execute(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
        let docs = ["doc", "--workspace", "--no-deps", "--document-private-items"];
        execute(cargo().args(docs).env("RUSTDOCFLAGS", "-D warnings"))?;
    }
    let missing = OPTIONAL.iter().filter(|tool| !tool.provide());
    let mut skipped: Vec<String> = missing.map(Optional::skipped).collect();
    let left_out = missing_clusters();
    let mut tests = cargo();
    if left_out.is_empty() {
        tests.env("QUELEA_LABS", "required");
    }
    if exists("cargo-nextest") {
        tests.args(["nextest", "run", "--workspace", "--no-fail-fast"]);
    } else {
        tests.args(["test", "--workspace", "--tests", "--bins", "--no-fail-fast"]);
    }
    let python = if quick {
        environment::found().ok_or_else(|| "there is no Python environment yet".to_string())
    } else {
        python_environment()
    };
    skipped.extend(provide_readers(&mut tests, &python));
    execute(&mut tests)?;
    execute(cargo().args(["test", "--workspace", "--doc", "--quiet"]))?;
    if quick {
        println!(
            "left out by --quick: clippy, docs, the Python package's tests, its wheel, the tutorials"
        );
    } else {
        match &python {
            Ok(python) => {
                skipped.extend(python::run_with_all(python)?);
                wheel::test(python)?;
            }
            Err(why) => skipped.push(format!("the Python package's tests ({why})")),
        }
        tutorials::follow(python.as_deref().ok(), &[])?;
    }
    left_out
        .iter()
        .for_each(|tests| println!("left out, because this machine does not allow it: {tests}"));
    skipped.iter().for_each(|skipped| println!("skipped: {skipped}"));
    if !skipped.is_empty() && std::env::var_os("CI").is_some() {
        bail!("CI must not skip tests");
    }
    println!("\nall good{}", if skipped.is_empty() { "" } else { ", but for what was skipped" });
    Ok(())
}

/// Tells tests where packages of Python are that read what they write; those that cannot be had.
fn provide_readers(tests: &mut Command, python: &Result<PathBuf, String>) -> Vec<String> {
    let mut skipped = Vec::new();
    match python.clone().map_err(Error::msg).and_then(environment::tensorboard) {
        Ok(tensorboard) => {
            tests.env("QUELEA_TENSORBOARD_PYTHON", tensorboard.python);
            tests.env("QUELEA_TENSORBOARD_PATH", tensorboard.path);
        }
        Err(problem) => skipped.push(format!("TensorBoard's reader ({problem:#})")),
    }
    let validator = python.clone().map_err(Error::msg);
    match validator.and_then(|python| Ok((environment::kubernetes_validate(&python)?, python))) {
        Ok((path, python)) => {
            tests.env("QUELEA_KUBERNETES_PYTHON", python).env("QUELEA_KUBERNETES_PATH", path);
        }
        Err(problem) => skipped.push(format!("Kubernetes' schema ({problem:#})")),
    }
    skipped
}

/// Packs every crate that can be published, without building it again.
fn packages() -> Command {
    let mut package = cargo();
    package.args([
        "package",
        "--workspace",
        "--no-verify",
        "--allow-dirty",
        "--offline",
        "--quiet",
    ]);
    // What is not published may depend on what is not.
    for unpublished in ["xtask", "quelea-py"] {
        package.args(["--exclude", unpublished]);
    }
    package
}

/// The interpreter of the Python environment, which is made if need be, or why there is none.
fn python_environment() -> Result<PathBuf, String> {
    if environment::refusal().is_some() {
        // Debian has Python's venv in a package of its own.
        install("python3-venv");
    }
    if let Some(why) = environment::refusal() {
        return Err(why);
    }
    environment::provide().map_err(|problem| format!("no environment: {problem:#}"))
}

/// Programs of the system and the packages that have them.
#[derive(Clone, Copy)]
pub(crate) struct SystemPrograms {
    pub(crate) programs: &'static [&'static str],
    pub(crate) packages: &'static [&'static str],
}

/// A Slurm cluster.
pub(crate) const SLURM: SystemPrograms = SystemPrograms {
    programs: &["slurmctld", "slurmd", "sbatch", "munged"],
    packages: &["slurm-wlm", "munge"],
};

/// What tests of clusters on this machine need. A machine on which nothing can be installed may leave them out,
/// in CI too.
const CLUSTERS: &[(SystemPrograms, &str)] = &[
    (SLURM, "jobs in a Slurm cluster"),
    (
        SystemPrograms {
            programs: &["sshd", "ssh", "ip"],
            packages: &["openssh-server", "openssh-client", "iproute2"],
        },
        "runs over SSH, addresses, doctor",
    ),
];

/// The tests that are left out because what they need cannot be had. Where nothing is missing, they must run.
fn missing_clusters() -> Vec<&'static str> {
    let can_be_made = has_namespaces();
    let missing = CLUSTERS.iter().filter(|(programs, _)| !provide(*programs) || !can_be_made);
    missing.map(|(_, tests)| *tests).collect()
}

/// Whether this process may make the namespaces in which those clusters run.
fn has_namespaces() -> bool {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--uts", "--fork", "true"]);
    command.output().is_ok_and(|output| output.status.success())
}

/// Whether programs are here, if need be after installing their packages.
pub(crate) fn provide(wanted: SystemPrograms) -> bool {
    let are_here = || wanted.programs.iter().all(|program| is_installed(program));
    are_here() || (wanted.packages.iter().all(|package| install(package)) && are_here())
}

/// Whether a program is where shells or root look for programs; not all of them know `--version`.
fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/sbin"]);
    folders.map(|folder| Path::new(folder).join(program)).any(|path| path.is_file())
}

/// A program that some tests need and the project does not build.
struct Optional {
    program: &'static str,
    package: &'static str,
    tests: &'static str,
}

const OPTIONAL: &[Optional] = &[
    Optional { program: "mpirun", package: "openmpi-bin", tests: "runs under the real mpirun" },
    Optional { program: "chromium", package: "chromium", tests: "the page in a browser" },
    Optional {
        program: "chromedriver",
        package: "chromium-driver",
        tests: "the page in a browser",
    },
    Optional { program: "promtool", package: "prometheus", tests: "metrics under promtool" },
];

impl Optional {
    /// Whether it is here, if need be after installing it (which needs root and apt).
    fn provide(&self) -> bool {
        exists(self.program) || (install(self.package) && exists(self.program))
    }

    fn skipped(&self) -> String {
        let Optional { program, package, tests } = self;
        format!("{tests} ({program} is not here; install the package {package})")
    }
}

/// Installs a package of the system, where that can be done without asking anybody.
fn install(package: &str) -> bool {
    if !is_root() || !exists("apt-get") {
        return false;
    }
    let quiet = ["-y", "-qq", "--no-install-recommends", "install", package];
    let update = execute(Command::new("apt-get").args(["-qq", "update"]));
    let install =
        execute(Command::new("apt-get").args(quiet).env("DEBIAN_FRONTEND", "noninteractive"));
    update.and(install).is_ok()
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.starts_with(b"0\n"))
}
