//! The agents of a launch as the launching command sees them: one connection per host.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::bail;

use super::hosts::RemoteHost;
use super::wire::{
    AgentCommand, AgentMessage, BEAT, OrderedProcess, StartOrder, line_of, next_line,
};

/// How long all hosts together may take to answer.
const HELLO_SECONDS: u64 = 30;
/// How long connections may take to close.
const CLOSE_GRACE: Duration = Duration::from_secs(5);
/// As much as is kept of what `ssh` itself said.
const KEPT_BYTES: usize = 2048;
/// How often it is looked whether a connection has closed.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How hosts are reached.
#[derive(Clone, Debug)]
pub struct RemoteShell {
    /// `ssh`, with options.
    pub words: Vec<String>,
    /// This program on the hosts.
    pub program: Vec<String>,
}

/// A process of a launch that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedProcess {
    /// Its number.
    pub rank: u32,
    /// Where it was.
    pub host: String,
    /// Its exit status; nothing where it was a signal, or the host is gone.
    pub status: Option<i32>,
    /// "worker 3 on b ended with status 1 (its last line)".
    pub how: String,
}

/// A line that a process has printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteLine {
    /// The number of the process.
    pub rank: u32,
    /// Where it is.
    pub host: String,
    /// Whether it went to standard error.
    pub error: bool,
    /// The line.
    pub text: String,
}

impl RemoteLine {
    /// With where it comes from.
    pub fn labelled(&self) -> String {
        format!("[{}:{}] {}", self.host, self.rank, self.text)
    }
}

/// Hosts with an agent each. Dropping it ends everything that was started.
pub struct Fleet {
    agents: Vec<RemoteAgent>,
    said: Receiver<HostMessage>,
    /// The hosts of those that run, by rank.
    running: Mutex<BTreeMap<u32, usize>>,
}

struct RemoteAgent {
    host: RemoteHost,
    input: Arc<Mutex<Option<ChildStdin>>>,
    child: Child,
    /// What `ssh` itself said.
    errors: Arc<Mutex<Vec<u8>>>,
}

/// Something that came from a host; nothing where its connection has closed.
struct HostMessage {
    host: usize,
    said: Option<AgentMessage>,
}

impl Fleet {
    /// Connects with all hosts and compares their versions with this program's. Everything that is wrong is
    /// said at once, host by host.
    pub fn connect(hosts: &[RemoteHost], shell: &RemoteShell) -> anyhow::Result<Fleet> {
        let (heard, said) = channel();
        let mut agents = Vec::new();
        for (number, host) in hosts.iter().enumerate() {
            agents.push(RemoteAgent::start(number, host, shell, heard.clone())?);
        }
        let fleet = Fleet { agents, said, running: Mutex::default() };
        fleet.check_versions()?;
        fleet.keep_beating();
        Ok(fleet)
    }

    /// Waits until every agent has said its version.
    fn check_versions(&self) -> anyhow::Result<()> {
        let until = Instant::now() + Duration::from_secs(HELLO_SECONDS);
        let own = env!("CARGO_PKG_VERSION");
        let mut awaited: BTreeSet<usize> = (0..self.agents.len()).collect();
        let mut problems = Vec::new();
        while !awaited.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left) {
                Ok(HostMessage { host, said }) if awaited.remove(&host) => match said {
                    Some(AgentMessage::Hello { version }) if version == own => {}
                    Some(AgentMessage::Hello { version }) => {
                        let name = &self.agents[host].host.name;
                        problems.push(format!("{name} has quelea {version}, this is {own}"));
                    }
                    _ => problems.push(self.agents[host].explain()),
                },
                Ok(_) => {}
                Err(_) => {
                    let late = |host: &usize| {
                        let name = &self.agents[*host].host.name;
                        format!("{name} did not answer within {HELLO_SECONDS} s")
                    };
                    problems.extend(awaited.iter().map(late));
                    break;
                }
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        bail!("not all hosts can take part: {}", problems.join("; "))
    }

    /// Tells the agents that this command is there, as long as it is.
    fn keep_beating(&self) {
        let inputs: Vec<_> = self.agents.iter().map(|agent| Arc::downgrade(&agent.input)).collect();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(BEAT);
                let living: Vec<_> = inputs.iter().filter_map(std::sync::Weak::upgrade).collect();
                if living.is_empty() {
                    return;
                }
                living.iter().for_each(|input| tell(input, &AgentCommand::Beat));
            }
        });
    }

    /// Starts the processes; `words` and `env` are those of one rank on a host.
    pub fn start(
        &self,
        folder: Option<&str>,
        program: Option<&str>,
        mut process: impl FnMut(&RemoteHost, u32) -> (Vec<String>, BTreeMap<String, String>),
    ) {
        for (number, agent) in self.agents.iter().enumerate() {
            let ranks = agent.host.first_rank..agent.host.first_rank + agent.host.slots;
            let processes = ranks.clone().map(|rank| {
                let (words, env) = process(&agent.host, rank);
                OrderedProcess { rank, words, env }
            });
            let processes = processes.collect();
            self.running().extend(ranks.map(|rank| (rank, number)));
            let (folder, program) = (folder.map(str::to_string), program.map(str::to_string));
            tell(&agent.input, &AgentCommand::Start(StartOrder { folder, program, processes }));
        }
    }

    /// Starts this program once more on one host, as process `rank`.
    pub fn start_one(
        &self,
        host: usize,
        rank: u32,
        words: Vec<String>,
        env: BTreeMap<String, String>,
    ) {
        self.running().insert(rank, host);
        let processes = vec![OrderedProcess { rank, words, env }];
        let order = StartOrder { folder: None, program: None, processes };
        tell(&self.agents[host].input, &AgentCommand::Start(order));
    }

    /// Lets all processes save what they have and end.
    pub fn interrupt(&self) {
        self.agents.iter().for_each(|agent| tell(&agent.input, &AgentCommand::Interrupt));
    }

    /// Whether processes are still running.
    pub fn is_running(&self) -> bool {
        !self.running().is_empty()
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<u32, usize>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows what was printed, and returns the processes that have ended; waits for `limit` at most.
    pub fn attend(&self, limit: Duration, show: &mut dyn FnMut(RemoteLine)) -> Vec<EndedProcess> {
        let mut ended = Vec::new();
        let mut wait = limit;
        while let Ok(HostMessage { host, said }) = self.said.recv_timeout(wait) {
            wait = Duration::ZERO;
            let agent = &self.agents[host];
            let name = &agent.host.name;
            match said {
                Some(AgentMessage::Line { rank, error, text }) => {
                    show(RemoteLine { rank, host: name.clone(), error, text });
                }
                Some(AgentMessage::Ended { rank, status, how }) if self.forget(rank) => {
                    let how = format!("rank {rank} on {name} {how}");
                    ended.push(EndedProcess { rank, host: name.clone(), status, how });
                }
                Some(AgentMessage::Failed { reason }) => ended.extend(self.lose(host, &reason)),
                None => ended.extend(self.lose(host, &agent.explain())),
                Some(AgentMessage::Hello { .. } | AgentMessage::Ended { .. }) => {}
            }
            if ended.len() > 1024 {
                break;
            }
        }
        ended
    }

    /// A process has ended; whether it was running.
    fn forget(&self, rank: u32) -> bool {
        self.running().remove(&rank).is_some()
    }

    /// All processes of a host are gone.
    fn lose(&self, number: usize, reason: &str) -> Vec<EndedProcess> {
        let name = &self.agents[number].host.name;
        let mut running = self.running();
        let gone: Vec<u32> =
            running.iter().filter(|(_, host)| **host == number).map(|(rank, _)| *rank).collect();
        running.retain(|_, host| *host != number);
        let ended = |rank| EndedProcess {
            rank,
            host: name.clone(),
            status: None,
            how: format!("rank {rank} on {name} was lost: {reason}"),
        };
        gone.into_iter().map(ended).collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for agent in &self.agents {
            tell(&agent.input, &AgentCommand::End);
            // The end of its input is the end of an agent that missed the word.
            drop(agent.input.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
        let until = Instant::now() + CLOSE_GRACE;
        for agent in &mut self.agents {
            while matches!(agent.child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(POLL_INTERVAL);
            }
            let _ = agent.child.kill();
            let _ = agent.child.wait();
        }
    }
}

impl RemoteAgent {
    fn start(
        number: usize,
        host: &RemoteHost,
        shell: &RemoteShell,
        heard: Sender<HostMessage>,
    ) -> anyhow::Result<RemoteAgent> {
        let (first, options) = shell.words.split_first().expect("a shell has a name");
        let mut command = Command::new(first);
        command.args(options).args(SSH_OPTIONS).arg(&host.name).args(&shell.program).arg("agent");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for this command, which then ends what is on the hosts in its own way.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let spawned = command.spawn();
        let mut child =
            spawned.map_err(|error| anyhow::anyhow!("cannot start {first}: {error}"))?;
        let (output, errors) = (child.stdout.take(), Arc::new(Mutex::new(Vec::new())));
        std::thread::spawn(move || {
            let mut lines = BufReader::new(output.expect("it was asked for"));
            while let Ok(Some(line)) = next_line::<AgentMessage>(&mut lines) {
                if heard.send(HostMessage { host: number, said: Some(line) }).is_err() {
                    return;
                }
            }
            let _ = heard.send(HostMessage { host: number, said: None });
        });
        let (stderr, kept) = (child.stderr.take(), Arc::clone(&errors));
        std::thread::spawn(move || keep(stderr.expect("it was asked for"), &kept));
        let input = Arc::new(Mutex::new(child.stdin.take()));
        Ok(RemoteAgent { host: host.clone(), input, child, errors })
    }

    /// Why its connection has closed, in a sentence.
    fn explain(&self) -> String {
        // What `ssh` says comes beside the end of its output.
        std::thread::sleep(POLL_INTERVAL * 5);
        let said = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let said = String::from_utf8_lossy(&said).into_owned();
        let last = said.lines().rev().map(str::trim).find(|line| !line.is_empty());
        let last = quelea_run::drive::shown_line(last.unwrap_or("the connection was closed"));
        format!("{}: {last}", self.host.name)
    }
}

/// Never ask a person; notice a connection that is gone.
const SSH_OPTIONS: [&str; 7] =
    ["-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"];

/// A line to an agent. One that is gone is noticed by its reader.
fn tell(input: &Mutex<Option<ChildStdin>>, told: &AgentCommand) {
    if let Some(input) = &mut *input.lock().unwrap_or_else(PoisonError::into_inner) {
        let _ = input.write_all(&line_of(told)).and_then(|()| input.flush());
    }
}

/// Keeps the end of what `ssh` says.
fn keep(mut stream: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut piece = [0; 512];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return,
            Ok(count) => {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&piece[..count]);
                let beyond = kept.len().saturating_sub(KEPT_BYTES);
                kept.drain(..beyond);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
