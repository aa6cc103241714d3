//! What tests of the page share: runs, servers, plain HTTP, a browser.

#![allow(dead_code, reason = "each test binary uses some of it")]

pub mod browser;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn quelea() -> Command {
    Command::new(env!("CARGO_BIN_EXE_quelea"))
}

/// A command of ours that serves a page; killed when dropped.
pub struct Serving {
    pub child: Child,
    pub address: String,
}

impl Serving {
    /// Starts it and waits until it says where its page is.
    pub fn start(command: &mut Command) -> Serving {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command is built");
        let mut lines = BufReader::new(child.stderr.take().expect("piped"));
        let mut said = String::new();
        let address = loop {
            let mut line = String::new();
            let read = lines.read_line(&mut line).expect("text");
            assert!(read > 0, "it ended without a page: {said}");
            said.push_str(&line);
            if let Some((_, rest)) = line.split_once("the page is at http://") {
                break rest.split('/').next().expect("an address").to_string();
            }
        };
        // The pipe must not fill up.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Serving { child, address }
    }

    pub fn json(&self, path: &str) -> Value {
        let answer = http(&self.address, path, &[]);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        serde_json::from_str(&answer.body).expect("JSON")
    }

    /// Waits until the state is as wanted.
    pub fn wait_for(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        wait(what, || Some(self.json("/api/state")).filter(|state| is_so(state)))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks until there is an answer.
pub fn wait<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < until, "waited too long for {what}");
        std::thread::yield_now();
    }
}

/// An answer.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

pub fn http(address: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    request(address, "GET", path, headers, "")
}

/// One exchange by HTTP/1.0, which ends with the connection.
pub fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let is_named = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host"));
    let host = if is_named { String::new() } else { format!("Host: {address}\r\n") };
    let extra: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    // chromedriver knows HTTP/1.1 only; by 1.0 our server sends streams as they are.
    let version = if body.is_empty() && method != "DELETE" { "1.0" } else { "1.1" };
    let request = format!(
        "{method} {path} HTTP/{version}\r\n{host}{extra}Connection: close\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = Vec::new();
    // Some servers keep the connection open: the length says where the answer ends.
    let mut chunk = [0; 65536];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => break,
            Ok(read) => answer.extend_from_slice(&chunk[..read]),
        }
        if is_whole(&answer) {
            break;
        }
    }
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_lowercase(), body: body.to_string() }
}

fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|length| length.trim().parse::<usize>().ok());
    length.is_some_and(|length| answer.len() >= end + 4 + length)
}

/// Runs a command of ours to its end.
pub fn run(words: &[&str], folder: &Path) -> String {
    let output = quelea().args(words).current_dir(folder).output().expect("the command is built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

pub fn summary(run: &Path) -> Value {
    let bytes = std::fs::read(run.join("summary.json")).expect("the run has ended");
    serde_json::from_slice(&bytes).expect("JSON")
}

/// Whether a program can be started.
pub fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}
