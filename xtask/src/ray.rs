//! `cargo xtask ray`: runs on a real Ray cluster of several nodes on this machine. Ray is installed once, outside the
//! repository; it is no part of `cargo xtask test`.

use anyhow::{Result, bail};

use crate::{cargo, environment, execute, python};

pub(crate) fn run(words: &[String]) -> Result<()> {
    if !words.is_empty() {
        bail!("usage: cargo xtask ray");
    }
    let interpreter = environment::provide()?;
    let packages = environment::ray(&interpreter)?;
    execute(cargo().args(["build", "-p", "quelea-py"]))?;
    let path = std::env::join_paths([python::lay_out("debug")?, packages.clone()])?;
    let mut pytest = std::process::Command::new(interpreter);
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_ray.py"]);
    pytest.current_dir(python::root().join("crates/quelea-py"));
    pytest.env("PYTHONPATH", path).env("QUELEA_RAY_PATH", packages);
    execute(pytest.env("PYTHONDONTWRITEBYTECODE", "1").env("OMP_NUM_THREADS", "1"))
}
