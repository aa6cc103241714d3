//! Hosts in network namespaces on one bridge, every link shaped by a token bucket in both directions.
//!
//! Needs root and iproute2. Everything is taken down again, also after a failure; what a run that
//! was killed has left behind is taken down by the next one.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::output;

/// How often somebody who waits for a process looks whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Whether this machine can do it; says why not.
pub(crate) fn refusal() -> Option<&'static str> {
    let is_root = output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    let has = |program: &str| Command::new(program).arg("-V").output().is_ok();
    match (is_root, has("ip") && has("tc")) {
        (false, _) => Some("needs root, for network namespaces"),
        (_, false) => Some("needs iproute2 (ip, tc)"),
        _ => None,
    }
}

/// Hosts on one bridge; taken down when dropped.
pub(crate) struct ShapedNetwork {
    /// What all names begin with.
    prefix: String,
    /// Megabits per second.
    pub(crate) rate: u32,
    hosts: usize,
}

impl ShapedNetwork {
    pub(crate) fn new(hosts: usize, rate: u32) -> Result<ShapedNetwork> {
        remove_left_behind();
        // Names of interfaces have at most 15 letters.
        let network = ShapedNetwork { prefix: format!("mm{}", std::process::id()), rate, hosts };
        network.build()?;
        Ok(network)
    }

    /// The interface that all packets of a host pass.
    pub(crate) fn cable(&self, host: usize) -> String {
        format!("{}v{host}", self.prefix)
    }

    fn build(&self) -> Result<()> {
        let bridge = format!("{}b", self.prefix);
        ip(&["link", "add", &bridge, "type", "bridge"])?;
        ip(&["link", "set", &bridge, "up"])?;
        for host in 0..self.hosts {
            let (space, cable) = (self.space(host), self.cable(host));
            ip(&["netns", "add", &space])?;
            ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &space])?;
            ip(&["link", "set", &cable, "master", &bridge, "up"])?;
            let address = format!("{}/24", address(host));
            ip(&["-n", &space, "addr", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &space, "link", "set", "eth0", "up"])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
            let rate = format!("{}mbit", self.rate);
            let shape = ["root", "tbf", "rate", &rate, "burst", "256kb", "latency", "400ms"];
            let shaped = |command: &mut Command, device: &str| {
                output(command.args(["qdisc", "add", "dev", device]).args(shape)).map(drop)
            };
            shaped(&mut Command::new("tc"), &cable)?;
            shaped(self.inside(host).arg("tc"), "eth0")?;
        }
        Ok(())
    }

    fn space(&self, host: usize) -> String {
        format!("{}h{host}", self.prefix)
    }

    /// A command that runs on a host; the program comes first among its arguments.
    pub(crate) fn inside(&self, host: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(host)]);
        command
    }
}

impl Drop for ShapedNetwork {
    fn drop(&mut self) {
        // What was never made cannot be deleted; the rest must go whatever happened before.
        for host in 0..self.hosts {
            quietly(&["link", "del", &self.cable(host)]);
            quietly(&["netns", "del", &self.space(host)]);
        }
        quietly(&["link", "del", &format!("{}b", self.prefix)]);
    }
}

/// Takes down the hosts of processes that are no more. A cable goes with its host.
fn remove_left_behind() {
    let listed = |words: &[&str]| output(Command::new("ip").args(words)).unwrap_or_default();
    let dead = |name: &str| {
        let digits: String =
            name.strip_prefix("mm")?.chars().take_while(char::is_ascii_digit).collect();
        (!digits.is_empty() && !Path::new("/proc").join(digits).exists()).then(|| name.to_string())
    };
    let names = |text: String| -> Vec<String> {
        let firsts = text.lines().filter_map(|line| line.split_whitespace().next());
        firsts.filter_map(dead).collect()
    };
    for space in names(listed(&["netns", "list"])) {
        quietly(&["netns", "del", &space]);
    }
    for bridge in names(listed(&["-brief", "link", "show", "type", "bridge"])) {
        quietly(&["link", "del", &bridge]);
    }
}

/// Where a host is reached.
pub(crate) fn address(host: usize) -> String {
    format!("10.213.7.{}", host + 1)
}

fn ip(words: &[&str]) -> Result<()> {
    output(Command::new("ip").args(words)).map(drop)
}

fn quietly(words: &[&str]) {
    drop(Command::new("ip").args(words).output());
}

/// A folder that goes away again.
pub(crate) struct ScratchFolder {
    pub(crate) path: PathBuf,
}

impl ScratchFolder {
    pub(crate) fn new(name: &str) -> Result<ScratchFolder> {
        let path = std::env::temp_dir().join(format!("quelea-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(ScratchFolder { path })
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A process that does not outlive this one's interest in it.
pub(crate) struct Kept(pub(crate) Child);

impl Kept {
    /// Waits for its end; returns what it printed.
    pub(crate) fn finish(mut self) -> Result<String> {
        let mut said = String::new();
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_string(&mut said)?;
        }
        let status = self.0.wait()?;
        if !status.success() {
            bail!("a process of the measurement failed ({status})");
        }
        Ok(said)
    }
}

/// Waits until all have ended well; the first that fails, or the limit, ends them all.
pub(crate) fn finish_all(mut all: Vec<Kept>, limit: Duration) -> Result<()> {
    let until = Instant::now() + limit;
    loop {
        let mut running = 0;
        for (number, kept) in all.iter_mut().enumerate() {
            match kept.0.try_wait()? {
                None => running += 1,
                Some(status) if status.success() => {}
                Some(status) => bail!("process {number} of the measurement failed ({status})"),
            }
        }
        if running == 0 {
            return Ok(());
        }
        if Instant::now() > until {
            bail!("the measurement takes longer than {} s", limit.as_secs());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
