// long: one environment after another, each with what it installs
//! The Python environment of tests and benchmarks: made once, outside the repository.
//!
//! It lies in the user's cache, or is the one whose interpreter `QUELEA_PYTHON` names. A note in
//! it says what was asked for when it was complete: an environment without the right note is
//! checked, and made anew if something is missing, as after a run that was killed. Whoever makes
//! one holds a lock, so that two runs at once do not disturb each other.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

use crate::{execute, output};

/// What the tests need beside Python, with the oldest versions that do.
const PACKAGES: &[&str] = &["torch>=2.1", "numpy", "pytest>=7"];
/// The same with the oldest PyTorch that the package supports; NumPy 2 is too new for it.
const OLDEST_PACKAGES: &[&str] = &["torch==2.1.2", "numpy<2", "pytest>=7"];
/// Versions of Python that it has been built for.
const PYTHONS_OF_OLDEST: std::ops::RangeInclusive<u32> = 8..=11;
/// Lies in a complete environment, and holds what was asked for.
const NOTE: &str = "quelea-complete";
/// The package is built for this Python and all that follow.
const OLDEST: &str = "3.10";

/// Why no environment can be made here, if so, and what to do.
pub(crate) fn refusal() -> Option<String> {
    if named().is_some() {
        return None;
    }
    let try_python = |code: &str| output(Command::new("python3").args(["-c", code]));
    let version = "import sys; print('%d.%d' % sys.version_info[:2])";
    let Ok(version) = try_python(version) else {
        return Some("python3 is not here; install the package python3-venv".into());
    };
    if minor(&version) < minor(OLDEST) {
        return Some(format!("python3 is {}; {OLDEST} or later is needed", version.trim()));
    }
    let venv = try_python("import venv, ensurepip");
    venv.is_err().then(|| "Python's venv is not here; install the package python3-venv".into())
}

/// The minor version of the oldest Python that the package supports.
pub(crate) fn oldest_minor() -> u32 {
    minor(OLDEST)
}

/// Makes an empty environment of this interpreter in a folder, unless it is there and complete.
pub(crate) fn make(interpreter: &Path, folder: &Path) -> Result<()> {
    let _lock = lock()?;
    let note = folder.join(NOTE);
    if note.exists() && folder.join("bin/python").exists() {
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    execute(Command::new(interpreter).args(["-m", "venv"]).arg(folder))?;
    Ok(fs::write(note, "")?)
}

/// `3.11` → 11; the next Python 3 is never a Python 2.
fn minor(version: &str) -> u32 {
    let minor = version.trim().strip_prefix("3.").and_then(|minor| minor.parse().ok());
    minor.unwrap_or(0)
}

fn named() -> Option<PathBuf> {
    std::env::var_os("QUELEA_PYTHON").map(PathBuf::from)
}

/// Where environments are kept.
pub(crate) fn cache() -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = cache.or_else(home).context("neither HOME nor XDG_CACHE_HOME is set")?;
    Ok(cache.join("quelea"))
}

/// The interpreter of an environment that is there, complete or not.
pub(crate) fn found() -> Option<PathBuf> {
    let kept = || Some(cache().ok()?.join("torch/bin/python"));
    named().or_else(kept).filter(|python| python.exists())
}

/// The interpreter of an environment with [`PACKAGES`], which is made if need be.
pub(crate) fn provide() -> Result<PathBuf> {
    if let Some(python) = named() {
        let checked = check(&python, "import", PACKAGES);
        checked.with_context(|| format!("QUELEA_PYTHON={}", python.display()))?;
        return Ok(python);
    }
    provide_with(Path::new("python3"), "torch", PACKAGES)
}

/// The interpreter of an environment with the oldest PyTorch that the package supports, which is made if need
/// be; nothing where no interpreter of these is one that it was built for.
pub(crate) fn provide_oldest(interpreters: &[PathBuf]) -> Result<Option<PathBuf>> {
    let version = ["-c", "import sys; print('%d.%d' % sys.version_info[:2])"];
    for interpreter in interpreters {
        let version = output(Command::new(interpreter).args(version))?;
        if PYTHONS_OF_OLDEST.contains(&minor(&version)) {
            return provide_with(interpreter, "torch-2.1.2", OLDEST_PACKAGES).map(Some);
        }
    }
    Ok(None)
}

/// The interpreter of the environment of this name, with these packages.
fn provide_with(interpreter: &Path, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let lock = lock()?;
    let folder = cache()?.join(name);
    let (python, note) = (folder.join("bin/python"), folder.join(NOTE));
    let asked = packages.join("\n");
    let is_noted = fs::read_to_string(&note).is_ok_and(|noted| noted == asked);
    if let Err(problem) = check(&python, if is_noted { "installed" } else { "import" }, packages) {
        if folder.exists() {
            println!("{}: {problem:#}; it is made anew", folder.display());
            fs::remove_dir_all(&folder)?;
        }
        execute(Command::new(interpreter).args(["-m", "venv"]).arg(&folder))?;
        pip_install(&python, &lock, packages)?;
        check(&python, "import", packages)?;
    }
    fs::write(note, asked)?;
    Ok(python)
}

/// A package of its own folder in the cache, for `PYTHONPATH`: what it brings along does not
/// disturb the environment.
pub(crate) fn provide_beside(python: &Path, packages: &[&str]) -> Result<PathBuf> {
    provide_named(python, &packages.join("+").replace("==", "-"), packages)
}

/// The same in a folder of this name.
pub(crate) fn provide_named(python: &Path, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let lock = lock()?;
    let (folder, beside) = (cache()?.join(name), cache()?.join(format!("new-{name}")));
    if folder.exists() {
        return Ok(folder);
    }
    if beside.exists() {
        fs::remove_dir_all(&beside)?;
    }
    let target = [OsStr::new("--no-deps"), OsStr::new("--target"), beside.as_os_str()];
    pip_install(python, &lock, target.into_iter().chain(packages.iter().map(OsStr::new)))?;
    fs::rename(&beside, &folder)?;
    Ok(folder)
}

/// TensorBoard's reader of event files, beside an environment that has NumPy.
pub(crate) struct TensorboardReader {
    /// The interpreter.
    pub(crate) python: PathBuf,
    /// For its `PYTHONPATH`.
    pub(crate) path: PathBuf,
}

/// What reads event files, without what only TensorBoard's own page needs.
const TENSORBOARD: &[&str] = &["tensorboard", "protobuf", "absl-py", "packaging"];

/// Provides TensorBoard's reader beside the environment of this interpreter.
pub(crate) fn tensorboard(python: PathBuf) -> Result<TensorboardReader> {
    let path = provide_beside(&python, TENSORBOARD)?;
    Ok(TensorboardReader { python, path })
}

/// What holds manifests against Kubernetes' schema and the types of Kubeflow Trainer and JobSet.
const KUBERNETES: &[&str] = &[
    "kubernetes-validate",
    "jsonschema",
    "jsonschema-specifications",
    "referencing",
    "rpds-py",
    "attrs",
    "PyYAML",
    "importlib-resources",
    "packaging",
    "typing-extensions",
    "kubeflow-trainer-api==2.3.0",
    "pydantic==2.14.3",
    "pydantic-core==2.50.4",
    "annotated-types",
    "typing-inspection",
    "python-dateutil",
    "six",
];

/// Provides the validators beside the environment of this interpreter: what goes into the path.
pub(crate) fn kubernetes_validate(python: &Path) -> Result<PathBuf> {
    provide_named(python, "kubernetes-validate+kubeflow-trainer-api-2.3.0", KUBERNETES)
}

/// What loads records into tables, beside an environment that has NumPy.
const TABLES: &[&str] = &["pandas", "python-dateutil", "six", "polars", "polars-runtime-32"];

/// Provides pandas and polars beside the environment of this interpreter: what goes into the path.
pub(crate) fn tables(python: &Path) -> Result<PathBuf> {
    provide_beside(python, TABLES)
}

/// Jupyter's kernel, what runs a notebook with it and what draws the notebook, with what they need.
const JUPYTER: &[&str] = &[
    "asttokens",
    "attrs",
    "beautifulsoup4",
    "bleach",
    "comm",
    "debugpy",
    "defusedxml",
    "executing",
    "fastjsonschema",
    "ipykernel==7.4.0",
    "ipython",
    "ipython-pygments-lexers",
    "jedi",
    "jinja2",
    "jsonschema",
    "jsonschema-specifications",
    "jupyter-client",
    "jupyter-core",
    "jupyterlab-pygments",
    "markupsafe",
    "matplotlib-inline",
    "mistune",
    "nbclient==0.11.0",
    "nbconvert==7.17.2",
    "nbformat",
    "nest-asyncio2",
    "packaging",
    "pandocfilters",
    "parso",
    "pexpect",
    "platformdirs",
    "prompt-toolkit",
    "psutil",
    "ptyprocess",
    "pure-eval",
    "pygments",
    "python-dateutil",
    "pyzmq",
    "referencing",
    "rpds-py",
    "six",
    "soupsieve",
    "stack-data",
    "tinycss2",
    "tornado",
    "traitlets",
    "typing-extensions",
    "wcwidth",
    "webencodings",
];

/// Provides Jupyter beside the environment of this interpreter: what goes into the path.
pub(crate) fn jupyter(python: &Path) -> Result<PathBuf> {
    provide_named(python, "nbclient-0.11.0+nbconvert-7.17.2+ipykernel-7.4.0", JUPYTER)
}

/// Transformers, TRL and Lightning, and what they need beside an environment that has PyTorch and pytest.
const FRAMEWORKS: &[&str] = &[
    "accelerate==1.15.0",
    "anyio",
    "certifi",
    "charset-normalizer",
    "click",
    "datasets==5.2.0",
    "dill",
    "h11",
    "httpcore2",
    "httpx2",
    "huggingface-hub>=1.31,<3",
    "idna",
    "lightning==2.6.6",
    "lightning-utilities",
    "multiprocess",
    "pandas",
    "psutil",
    "pyarrow",
    "python-dateutil",
    "pyyaml",
    "regex",
    "requests",
    "safetensors",
    "six",
    "tokenizers>=0.23.1,<0.24",
    "torchmetrics",
    "tqdm",
    "transformers==5.22.2",
    "trl==1.16.0",
    "truststore",
    "typer",
    "urllib3",
    "xxhash",
];

/// Provides the frameworks beside the environment of this interpreter: what goes into the path.
pub(crate) fn frameworks(python: &Path) -> Result<PathBuf> {
    provide_named(python, "transformers-5.22.2+trl-1.16.0+lightning-2.6.6", FRAMEWORKS)
}

/// Ray with Ray Train, and what they need beside an environment that has PyTorch.
const RAY: &[&str] = &[
    "ray==2.60.0",
    "annotated-types",
    "attrs",
    "certifi",
    "charset-normalizer",
    "click",
    "filelock",
    "idna",
    "jsonschema",
    "jsonschema-specifications",
    "msgpack",
    "packaging",
    "pandas",
    "protobuf",
    "pyarrow",
    "pydantic",
    "pydantic-core",
    "python-dateutil",
    "pyyaml",
    "referencing",
    "requests",
    "rpds-py",
    "six",
    "tensorboardX",
    "typing-extensions",
    "typing-inspection",
    "urllib3",
];

/// Provides Ray beside the environment of this interpreter: what goes into the path.
pub(crate) fn ray(python: &Path) -> Result<PathBuf> {
    provide_named(python, "ray-train-2.60.0", RAY)
}

/// The peers that survive a lost process, and what they need beside an environment that has PyTorch.
const SURVIVORS: &[&str] = &[
    "annotated-types",
    "base58",
    "blake3",
    "certifi",
    "cffi",
    "charset-normalizer",
    "ConfigArgParse",
    "cryptography",
    "googleapis-common-protos",
    "grpcio",
    "grpcio-tools",
    "hivemind==1.1.12",
    "idna",
    "mmh3",
    "morphys",
    "msgpack",
    "netaddr",
    "opentelemetry-api",
    "opentelemetry-exporter-http-transport",
    "opentelemetry-exporter-otlp-common",
    "opentelemetry-exporter-otlp-proto-common",
    "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-proto",
    "opentelemetry-sdk",
    "opentelemetry-semantic-conventions",
    "prefetch_generator",
    "protobuf",
    "py-cid",
    "py-multibase",
    "py-multicodec",
    "py-multihash",
    "pycparser",
    "pydantic-core==2.50.4",
    "pydantic==2.14.3",
    "python-baseconv",
    "PyYAML",
    "requests",
    "scipy",
    "six",
    "sortedcontainers",
    "torchft==0.2.0",
    "typing-inspection",
    "urllib3",
    "uvloop",
    "varint",
];

/// Provides torchft and hivemind beside the environment of this interpreter: what goes into the path.
pub(crate) fn survivors(python: &Path) -> Result<PathBuf> {
    provide_named(python, "torchft-0.2.0+hivemind-1.1.12", SURVIVORS)
}

/// Installs; if this process is killed meanwhile, the installer holds the lock until it has ended.
fn pip_install(
    python: &Path,
    lock: &File,
    words: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<()> {
    let quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    execute(Command::new(python).args(quiet).args(words).stdin(lock.try_clone()?))
}

/// Held by whoever looks at or makes an environment, until the file is dropped or its process ends.
fn lock() -> Result<File> {
    let folder = cache()?;
    fs::create_dir_all(&folder)?;
    let file = File::create(folder.join("lock"))?;
    if file.try_lock().is_err() {
        println!("waiting for another run that makes the Python environment …");
        file.lock()?;
    }
    Ok(file)
}

/// Whether everything is installed and new enough; with "import", whether it is whole. Prints the
/// versions.
fn check(python: &Path, load: &str, packages: &[&str]) -> Result<()> {
    if !python.exists() {
        bail!("{} is not here", python.display());
    }
    let code = include_str!("environment.py");
    let said = output(Command::new(python).args(["-c", code, load]).args(packages));
    let said = said.map_err(|error| anyhow!("{}", last_line(&error.to_string())))?;
    if load == "import" && named().is_none() {
        // A package that was not unpacked to its end has no record, and others miss it.
        output(Command::new(python).args(["-m", "pip", "check", "--disable-pip-version-check"]))?;
    }
    println!("environment: {}", said.trim());
    Ok(())
}

fn last_line(text: &str) -> &str {
    text.trim_end().lines().next_back().unwrap_or_default()
}
