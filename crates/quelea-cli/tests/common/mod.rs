//! Machines in namespaces on this one: a shell script sets them up, then runs commands for a test.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a lab may take to start.
const START: Duration = Duration::from_secs(60);
/// How long one command may take.
const COMMAND: Duration = Duration::from_secs(120);

/// A shell in namespaces of its own. Everything in them goes with this.
pub struct Lab {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    folder: TempDir,
}

impl Lab {
    /// Starts `script` with the lab's folder and these words. Nothing, where a program is missing or this process may
    /// not make namespaces, unless `cargo xtask test` has found that both are here; a lab that does not start where
    /// it could is a failure.
    pub fn start(what: &str, script: &str, words: &[&str], needed: &[&str]) -> Option<Lab> {
        if let Some(why) = refusal(needed) {
            let is_required =
                std::env::var_os("QUELEA_LABS").is_some_and(|told| told == "required");
            assert!(!is_required, "QUELEA_LABS=required, but there is no lab for {what}: {why}");
            eprintln!("skipped: {what}: {why}");
            return None;
        }
        let lab = Lab::begin(script, words);
        Some(lab.unwrap_or_else(|why| panic!("the lab for {what} has not started: {why}")))
    }

    fn begin(script: &str, words: &[&str]) -> Result<Lab, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = folder.path().join("lab.sh");
        std::fs::write(&path, script).map_err(|error| error.to_string())?;
        let mut command = namespaces();
        command.arg("bash").arg(&path).arg(folder.path()).args(words).current_dir(folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().map_err(|error| format!("unshare: {error}"))?;
        let (send, lines) = channel();
        let output = BufReader::new(child.stdout.take().expect("it was asked for"));
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        let lab = Lab { child, input, lines, folder };
        match lab.lines.recv_timeout(START) {
            Ok(line) if line == "ready" => Ok(lab),
            Ok(line) => Err(line),
            Err(RecvTimeoutError::Timeout) => Err(format!("not ready after {} s", START.as_secs())),
            Err(RecvTimeoutError::Disconnected) => Err("its script has ended".into()),
        }
    }

    /// A file of the lab.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file of the lab.
    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("the folder is there");
    }

    /// What a command prints, and its status.
    pub fn run(&mut self, command: &str) -> (String, i32) {
        assert!(!command.contains('\n'), "one line");
        let input = self.input.as_mut().expect("it is open");
        writeln!(input, "{command}").expect("the lab is there");
        let mut text = String::new();
        loop {
            let line = self.lines.recv_timeout(COMMAND).unwrap_or_else(|error| {
                panic!("`{command}` has printed only this ({error}):\n{text}")
            });
            if let Some(status) = line.strip_prefix("=== ") {
                return (text, status.parse().expect("a number"));
            }
            text.push_str(&line);
            text.push('\n');
        }
    }

    /// What a command prints that must succeed.
    pub fn good(&mut self, command: &str) -> String {
        let (text, status) = self.run(command);
        assert_eq!(status, 0, "`{command}`:\n{text}");
        text
    }

    /// Waits until a command succeeds; `shown` tells what to look at where it never does.
    pub fn wait(&mut self, command: &str, shown: &str) {
        let until = Instant::now() + Duration::from_secs(180);
        while self.run(command).1 != 0 {
            if Instant::now() > until {
                panic!("waited in vain for `{command}`:\n{}", self.run(shown).0);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        drop(self.input.take());
        // The end of the first process of a PID namespace is the end of all.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a program is where shells or root look for programs.
fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/sbin"]);
    let mut found = folders.map(|folder| Path::new(folder).join(program));
    found.any(|path| path.is_file())
}

/// A program in namespaces of its own.
fn namespaces() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]);
    command
}

/// Why there can be no lab here, if so.
fn refusal(needed: &[&str]) -> Option<String> {
    if let Some(program) = needed.iter().find(|program| !is_installed(program)) {
        return Some(format!("{program} is not installed"));
    }
    let script = "PATH=$PATH:/usr/sbin:/sbin; mount -t tmpfs tmpfs /run && ip link set lo up && \
                  ip link add br0 type bridge && ip link add v0 type veth peer name v1";
    match namespaces().args(["sh", "-c", script]).stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let told = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            Some(format!("this process may not make namespaces: {told}"))
        }
        Err(error) => Some(format!("unshare: {error}")),
    }
}
