//! The agent of a launch on one host: starts processes, sends what they print, and ends them.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use quelea_run::drive;

use super::wire::{
    AgentCommand, AgentMessage, OrderedProcess, SILENCE, StartOrder, line_of, next_line,
};

/// How long processes that were interrupted may take to end by themselves.
const GRACE: Duration = Duration::from_secs(30);
/// How often it is looked whether a process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// As much of a line as is sent at once.
const LINE_BYTES: u64 = 64 << 10;

/// Does what comes over standard input, until it ends.
pub fn run() -> anyhow::Result<()> {
    let (told, orders) = channel();
    std::thread::spawn(move || {
        let mut input = BufReader::new(io::stdin());
        // A line that cannot be read is as good as the end: what was started must not outlive it.
        while let Ok(Some(line)) = next_line::<AgentCommand>(&mut input) {
            if told.send(line).is_err() {
                return;
            }
        }
    });
    let (said, lines) = channel();
    let writer = std::thread::spawn(move || write_lines(&lines));
    let hello = AgentMessage::Hello { version: env!("CARGO_PKG_VERSION").to_string() };
    let _ = said.send(hello);
    attend(&orders, &said);
    drop(said);
    let _ = writer.join();
    Ok(())
}

/// Sends lines as long as somebody takes them.
fn write_lines(lines: &Receiver<AgentMessage>) {
    let mut output = io::stdout().lock();
    for line in lines {
        if output.write_all(&line_of(&line)).and_then(|()| output.flush()).is_err() {
            return;
        }
    }
}

/// The processes that were started.
#[derive(Default)]
struct Started {
    children: Vec<(u32, Child)>,
    /// When those that were interrupted are ended.
    deadline: Option<Instant>,
}

/// Follows orders until it is told to end, or nobody is there to give any.
fn attend(orders: &Receiver<AgentCommand>, said: &Sender<AgentMessage>) {
    let mut started = Started::default();
    let mut heard = Instant::now();
    loop {
        match orders.recv_timeout(POLL_INTERVAL) {
            Ok(AgentCommand::Start(order)) => {
                if let Err(reason) = started.start(&order, said) {
                    let _ = said.send(AgentMessage::Failed { reason });
                    return;
                }
                heard = Instant::now();
            }
            Ok(AgentCommand::Interrupt) => started.interrupt(),
            Ok(AgentCommand::Beat) => heard = Instant::now(),
            Ok(AgentCommand::End) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        started.report(said);
        let is_late = started.deadline.is_some_and(|deadline| Instant::now() > deadline);
        if heard.elapsed() > SILENCE || is_late {
            return;
        }
    }
}

impl Started {
    fn start(&mut self, order: &StartOrder, said: &Sender<AgentMessage>) -> Result<(), String> {
        for process in &order.processes {
            let mut child = spawn(order, process)?;
            let streams: [Option<Box<dyn Read + Send>>; 2] = [
                child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
                child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
            ];
            for (stream, error) in streams.into_iter().flatten().zip([false, true]) {
                let (said, rank) = (said.clone(), process.rank);
                std::thread::spawn(move || send_lines(stream, rank, error, &said));
            }
            self.children.push((process.rank, child));
        }
        Ok(())
    }

    /// Says which have ended.
    fn report(&mut self, said: &Sender<AgentMessage>) {
        self.children.retain_mut(|(rank, child)| match child.try_wait() {
            Ok(Some(status)) => {
                let ended =
                    AgentMessage::Ended { rank: *rank, status: status.code(), how: how(status) };
                let _ = said.send(ended);
                false
            }
            _ => true,
        });
    }

    /// Lets them save what they have, for a while.
    fn interrupt(&mut self) {
        self.signal("-INT");
        self.deadline.get_or_insert(Instant::now() + GRACE);
    }

    fn signal(&self, signal: &str) {
        for (_, child) in &self.children {
            // Each is the leader of a group, with what it has started itself.
            let group = format!("-{}", child.id());
            let _ =
                Command::new("kill").args([signal, "--", &group]).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.signal("-KILL");
        for (_, child) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn spawn(order: &StartOrder, process: &OrderedProcess) -> Result<Child, String> {
    let mut command = match &order.program {
        Some(program) => Command::new(program),
        None => drive::again()
            .map_err(|error| format!("the agent does not know its program: {error}"))?,
    };
    command.args(&process.words).envs(&process.env);
    if let Some(folder) = &order.folder {
        if !std::path::Path::new(folder).is_dir() {
            return Err(format!("there is no folder {folder}; nothing is copied to other hosts"));
        }
        command.current_dir(folder);
    }
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    // A pipe that nobody writes to: it is closed when the agent is gone.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = command.get_program().to_string_lossy().into_owned();
    command.spawn().map_err(|error| format!("cannot start {name}: {error}"))
}

/// Sends what a process prints, line by line, until it ends.
fn send_lines(stream: Box<dyn Read + Send>, rank: u32, error: bool, said: &Sender<AgentMessage>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        match stream.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(1..) => {}
            _ => return,
        }
        let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_string();
        if said.send(AgentMessage::Line { rank, error, text }).is_err() {
            return;
        }
    }
}

fn how(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("was killed by signal {signal}");
    }
    status
        .code()
        .map_or_else(|| format!("ended: {status}"), |code| format!("ended with status {code}"))
}
