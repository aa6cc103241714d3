//! Follows a page: writes its files, runs its commands, compares what they print.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::rules;

/// How long the commands of one block may take, on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(600);
/// How often it is looked whether they have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What a reader does.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Writes a file, below the folder of the moment.
    Write { name: String, text: String },
    /// Types commands.
    Run { line: usize, script: String },
    /// Compares what is printed with what the page shows.
    Expect { line: usize, shown: String },
}

/// Where pages are followed, and with what.
pub(super) struct Follower<'a> {
    /// The clone of the repository: where a page begins.
    pub(super) place: &'a Path,
    /// Where cargo builds.
    pub(super) target: &'a Path,
    /// The interpreter, where there is one.
    pub(super) python: Option<&'a Path>,
    /// What goes into its path.
    pub(super) package: Option<&'a Path>,
}

impl Follower<'_> {
    /// Follows a page from top to bottom; whether something was left out because there is no Python.
    pub(super) fn follow(&self, page: &str, steps: &[Step]) -> Result<bool> {
        let (mut folder, mut printed, mut left_out) = (self.place.to_path_buf(), None, false);
        for step in steps {
            match step {
                Step::Write { name, text } => {
                    let file = folder.join(name);
                    fs::create_dir_all(file.parent().context("a file is in a folder")?)?;
                    fs::write(file, text)?;
                }
                Step::Run { script, .. } if self.python.is_none() && needs_python(script) => {
                    (printed, left_out) = (None, true);
                }
                Step::Run { line, script } => {
                    let done = self.run(script, &folder)?;
                    if !done.status.success() {
                        let (status, said) = (done.status, done.said);
                        bail!("{page}:{line}: {status}\n{script}\n{said}");
                    }
                    (folder, printed) = (done.folder, Some(done.said));
                }
                Step::Expect { line, shown } => {
                    let missing =
                        printed.as_ref().and_then(|said| missing_line(shown, said).zip(Some(said)));
                    if let Some((missing, said)) = missing {
                        bail!("{page}:{line}: `{missing}` was not printed:\n{said}");
                    }
                }
            }
        }
        Ok(left_out)
    }

    fn run(&self, script: &str, folder: &Path) -> Result<Done> {
        let state = self.target.join("tutorials");
        fs::create_dir_all(&state)?;
        let (said, ended_in) = (state.join("said"), state.join("folder"));
        let out = File::create(&said)?;
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c"]);
        shell.arg(format!("trap 'pwd > \"$ENDED_IN\"' EXIT\n{script}\n"));
        shell.current_dir(folder).env("ENDED_IN", &ended_in).env("PATH", self.path()?);
        shell.env("CARGO_TARGET_DIR", state.join("build")).env("CARGO_NET_OFFLINE", "true");
        shell.env("REPOSITORY", rules::root()).env("TARGET", self.target);
        shell.env("OMP_NUM_THREADS", "1").env("PYTHONDONTWRITEBYTECODE", "1");
        if let Some(package) = self.package {
            shell.env("PYTHONPATH", package);
        }
        // What cargo tells this program about itself is not true of what is built here.
        let told =
            |name: &String| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST");
        for name in std::env::vars().map(|(name, _)| name).filter(told) {
            shell.env_remove(name);
        }
        shell.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).process_group(0);
        let status = wait(&mut shell.spawn().context("cannot start bash")?)?;
        let said = String::from_utf8_lossy(&fs::read(said)?).into_owned();
        let folder = PathBuf::from(fs::read_to_string(ended_in)?.trim_end());
        let Some(status) = status else {
            bail!("still running after {} s:\n{script}\n{said}", LIMIT.as_secs());
        };
        Ok(Done { status, said, folder })
    }

    /// The program that was built and the environment's interpreter come first.
    fn path(&self) -> Result<OsString> {
        let old = std::env::var_os("PATH").unwrap_or_default();
        let python = self.python.and_then(Path::parent).map(Path::to_path_buf);
        let own = [Some(self.target.join("debug")), python];
        Ok(std::env::join_paths(own.into_iter().flatten().chain(std::env::split_paths(&old)))?)
    }
}

/// What became of a block of commands.
struct Done {
    status: ExitStatus,
    said: String,
    /// Where it ended.
    folder: PathBuf,
}

/// Whether a script starts Python.
fn needs_python(script: &str) -> bool {
    script.lines().any(|line| {
        line.starts_with("python ")
            || line.starts_with("torchrun ")
            || line.starts_with("agent() { torchrun")
    })
}

/// Waits until it has ended; after the limit, it and its children are killed and there is no status.
fn wait(child: &mut Child) -> Result<Option<ExitStatus>> {
    let begin = Instant::now();
    while begin.elapsed() < LIMIT {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let group = format!("-{}", child.id());
    Command::new("kill").args(["-KILL", "--", &group]).status().context("cannot start kill")?;
    child.wait()?;
    Ok(None)
}

/// The first line of a page that is not in the output.
fn missing_line<'a>(shown: &'a str, said: &str) -> Option<&'a str> {
    shown.lines().find(|line| !said.lines().any(|said| is_like(line, said)))
}

/// Whether a printed line has all parts of a shown one, in order; `…` stands for anything.
fn is_like(shown: &str, said: &str) -> bool {
    let mut rest = said;
    shown.split('…').map(str::trim).all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ellipsis_stands_for_anything_and_the_rest_must_be_printed() {
        let said = "[0] rank 0: 400 steps in 1.23 s, 99% are right\nTake it.\n";
        assert_eq!(missing_line("rank 0: … steps in … right\n", said), None);
        assert_eq!(missing_line("Take it.\nrank 1: …\n", said), Some("rank 1: …"));
        assert_eq!(missing_line("right … rank\n", said), Some("right … rank"));
    }

    #[test]
    fn commands_and_files_follow_each_other_in_one_place() {
        let target = std::env::temp_dir().join(format!("quelea-follow-{}", std::process::id()));
        let place = target.join("tutorials/work");
        fs::create_dir_all(&place).expect("a temporary folder");
        let follower = Follower { place: &place, target: &target, python: None, package: None };
        let run = |line, script: &str| Step::Run { line, script: script.to_string() };
        let write = Step::Write { name: "a.txt".into(), text: "one\n".into() };
        let expect = |line, shown: &str| Step::Expect { line, shown: shown.to_string() };
        let steps = [
            run(1, "mkdir sub\ncd sub"),
            write,
            run(2, "cat a.txt"),
            expect(3, "one\n"),
            run(4, "python x"),
        ];
        assert!(follower.follow("page", &steps).expect("it can be followed"), "Python is left out");
        let error = follower.follow("page", &[run(5, "false\necho no")]).expect_err("it fails");
        assert!(error.to_string().starts_with("page:5: exit status: 1"), "{error}");
        let error =
            follower.follow("page", &[run(6, "echo a"), expect(7, "b\n")]).expect_err("other");
        assert_eq!(error.to_string(), "page:7: `b` was not printed:\na\n");
        fs::remove_dir_all(target).expect("it can be removed");
    }
}
