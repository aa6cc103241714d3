//! `cargo xtask mpi`: MPI as a transport, with the system's Open MPI: its lints, its tests under the real `mpirun`, and
//! its times.
//!
//! The feature needs the headers of an MPI and clang's library, which the rest of the project does not.

use anyhow::{Result, bail};

use crate::test::{SystemPrograms, provide};
use crate::{cargo, execute};

/// Open MPI, and what reads its headers.
const OPEN_MPI: SystemPrograms = SystemPrograms {
    programs: &["mpirun", "mpicc", "clang"],
    packages: &["openmpi-bin", "libopenmpi-dev", "clang", "libclang-dev"],
};

/// `cargo xtask mpi [--bench]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let is_timed = match words {
        [] => false,
        [word] if word == "--bench" => true,
        _ => bail!("usage: cargo xtask mpi [--bench]"),
    };
    if !provide(OPEN_MPI) {
        let packages = OPEN_MPI.packages.join(", ");
        bail!("Open MPI is not here and cannot be installed; its packages are {packages}");
    }
    if is_timed {
        let bench = ["bench", "-p", "quelea-net", "--features", "mpi", "--bench", "local"];
        return execute(cargo().args(bench));
    }
    let features = "quelea-net/mpi,quelea-cli/mpi,quelea-conformance/mpi";
    let packages = ["-p", "quelea-net", "-p", "quelea-cli", "-p", "quelea-conformance"];
    let mut clippy = cargo();
    clippy.arg("clippy").args(packages).args(["--features", features, "--all-targets"]);
    execute(clippy.args(["--", "-D", "warnings"]))?;
    let tests: [&[&str]; 3] = [
        &["-p", "quelea-net", "--features", "mpi", "--lib", "mpi"],
        &["-p", "quelea-conformance", "--features", "mpi", "--test", "mpi"],
        &["-p", "quelea-cli", "--features", "mpi", "--test", "mpi"],
    ];
    tests.iter().try_for_each(|words| execute(cargo().arg("test").args(*words)))
}
