//! What a machine says of itself: limits, memory, GPUs, settings of its network.

use std::fs;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// What a host says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// As it was named.
    #[serde(default)]
    pub host: String,
    /// The version of quelea.
    pub version: String,
    /// Processors.
    pub cores: usize,
    /// Memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// How many files a process may have open.
    pub open_files: Option<u64>,
    /// How many it may ask for.
    pub open_files_most: Option<u64>,
    /// What decides how fast TCP sends.
    pub congestion_control: Option<String>,
    /// The GPUs that NVIDIA's tool sees; nothing where there is no such tool.
    pub gpus: Option<Vec<String>>,
    /// The version of the system's NCCL; nothing where there is none. Python packages may bring their own.
    #[serde(default)]
    pub nccl: Option<String>,
    /// The interfaces that NCCL is told to use (`NCCL_SOCKET_IFNAME`).
    #[serde(default)]
    pub nccl_interface: Option<String>,
}

impl HostFacts {
    /// Of this machine.
    pub fn here() -> HostFacts {
        let read = |path: &str| fs::read_to_string(path).ok();
        let control = read("/proc/sys/net/ipv4/tcp_congestion_control");
        let limits = read("/proc/self/limits").unwrap_or_default();
        let (soft, hard) = open_files(&limits);
        HostFacts {
            host: String::new(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            memory_bytes: read("/proc/meminfo").and_then(|text| memory(&text)),
            open_files: soft,
            open_files_most: hard,
            congestion_control: control.map(|text| text.trim().to_string()),
            gpus: gpus(),
            nccl: nccl(),
            nccl_interface: std::env::var("NCCL_SOCKET_IFNAME").ok(),
        }
    }
}

/// The soft and the hard limit in what `/proc/self/limits` says.
fn open_files(text: &str) -> (Option<u64>, Option<u64>) {
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"));
    let mut numbers = line.unwrap_or_default().split_whitespace();
    let mut next = || numbers.next().and_then(|number| number.parse().ok());
    (next(), next())
}

/// The memory in what `/proc/meminfo` says.
fn memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

fn gpus() -> Option<Vec<String>> {
    let listed = Command::new("nvidia-smi").arg("-L").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let name = |line: &str| line.split(" (UUID").next().unwrap_or(line).to_string();
    listed.status.success().then(|| text.lines().map(name).collect())
}

fn nccl() -> Option<String> {
    let listed = ["ldconfig", "/sbin/ldconfig"]
        .into_iter()
        .find_map(|program| Command::new(program).arg("-p").stdin(Stdio::null()).output().ok())?;
    let path = nccl_path(&String::from_utf8_lossy(&listed.stdout))?;
    // The name that programs look for leads to a file that is named by its version.
    let file = fs::canonicalize(&path).unwrap_or_else(|_| path.into());
    Some(nccl_version(&file.file_name()?.to_string_lossy()))
}

/// Where NCCL is, in what `ldconfig -p` says.
fn nccl_path(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.trim_start().starts_with("libnccl.so"))?;
    Some(line.split_once("=> ")?.1.trim().to_string())
}

/// `libnccl.so.2.19.3` → 2.19.3; what has no version is called unknown.
fn nccl_version(file: &str) -> String {
    let version = file.strip_prefix("libnccl.so.").filter(|version| !version.is_empty());
    version.unwrap_or("unknown").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_read() {
        let limits = "Limit  Soft  Hard  Units\nMax open files            1024                 1048576              files\n";
        assert_eq!(open_files(limits), (Some(1024), Some(1_048_576)));
        assert_eq!(open_files("Max open files unlimited unlimited files"), (None, None));
        assert_eq!(open_files(""), (None, None));
        assert_eq!(memory("MemTotal:       1024 kB\nMemFree: 1 kB\n"), Some(1 << 20));
        assert_eq!(memory("MemTotal: many"), None);
        let libraries = "112 libs found in cache `/etc/ld.so.cache'\n\tlibnss.so (libc6) => /lib/libnss.so\n\
                         \tlibnccl.so.2 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnccl.so.2\n";
        assert_eq!(nccl_path(libraries).as_deref(), Some("/lib/x86_64-linux-gnu/libnccl.so.2"));
        assert_eq!(nccl_path("0 libs found in cache"), None);
        assert_eq!(nccl_version("libnccl.so.2.19.3"), "2.19.3");
        assert_eq!(nccl_version("libnccl.so"), "unknown");
        let here = HostFacts::here();
        assert!(here.cores > 0);
    }
}
