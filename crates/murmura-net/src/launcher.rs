//! What a launcher (`mpirun`, `srun`, `torchrun`, Kubernetes) says in the environment.
//!
//! A launcher tells every process its rank and how many there are. Where it also tells where
//! rank 0 is, the others go there; where it does not (`mpirun` on one machine), rank 0 leaves its
//! address in a file whose name the launcher's job number determines.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The port of a rendezvous when only a host is given.
pub const PORT: u16 = 29_470;

/// How this process was launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Its number, from 0.
    pub rank: u32,
    /// How many there are.
    pub world: u32,
    /// Where they meet.
    pub rendezvous: Rendezvous,
    /// Its number on its machine.
    pub local_rank: Option<u32>,
    /// How many there are on its machine.
    pub local_size: Option<u32>,
    /// Who launched it.
    pub launcher: &'static str,
}

/// Where the processes of a run meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// Rank 0 listens here (`HOST:PORT`).
    Address(String),
    /// Rank 0 leaves its address in this file.
    LocalFile(PathBuf),
}

impl Rendezvous {
    /// What [`join`](crate::join()) takes.
    pub fn to_join(&self) -> String {
        match self {
            Rendezvous::Address(address) => address.clone(),
            Rendezvous::LocalFile(path) => format!("file:{}", path.display()),
        }
    }
}

/// The variables of one launcher.
struct Variables {
    launcher: &'static str,
    rank: &'static str,
    world: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
    /// What tells one job from another.
    job: &'static [&'static str],
}

/// In order: what a person sets by hand wins; what wraps others comes last.
const LAUNCHERS: &[Variables] = &[
    Variables {
        launcher: "murmura",
        rank: "MURMURA_RANK",
        world: "MURMURA_WORLD_SIZE",
        local_rank: "MURMURA_LOCAL_RANK",
        local_size: "MURMURA_LOCAL_SIZE",
        job: &["MURMURA_JOB"],
    },
    Variables {
        launcher: "Kubernetes",
        rank: "JOB_COMPLETION_INDEX",
        world: "MURMURA_WORLD_SIZE",
        local_rank: "",
        local_size: "",
        job: &[],
    },
    Variables {
        launcher: "torchrun",
        rank: "RANK",
        world: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_size: "LOCAL_WORLD_SIZE",
        job: &["TORCHELASTIC_RUN_ID"],
    },
    Variables {
        launcher: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        world: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"],
    },
    Variables {
        launcher: "MPICH",
        rank: "PMI_RANK",
        world: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
        job: &["PMI_JOBID", "PMI_PORT"],
    },
    Variables {
        launcher: "Slurm",
        rank: "SLURM_PROCID",
        world: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_size: "SLURM_TASKS_PER_NODE",
        job: &["SLURM_JOB_ID"],
    },
];

/// Recognises a launcher from the environment, given as a function so that this is one too. A
/// process that was not launched by any, or whose launcher does not say where to meet, gets
/// `None`.
pub fn detect(env: impl Fn(&str) -> Option<String>) -> Option<Launched> {
    let get = |name: &str| env(name).filter(|value| !value.is_empty());
    let number = |name: &str| get(name)?.parse::<u32>().ok();
    LAUNCHERS.iter().find_map(|variables| {
        let (rank, world) = (number(variables.rank)?, number(variables.world)?);
        let rendezvous = meeting(variables, &get)?;
        (rank < world).then(|| Launched {
            rank,
            world,
            rendezvous,
            local_rank: number(variables.local_rank),
            local_size: number(variables.local_size),
            launcher: variables.launcher,
        })
    })
}

fn meeting(variables: &Variables, get: &impl Fn(&str) -> Option<String>) -> Option<Rendezvous> {
    if let Some(address) = get("MURMURA_RENDEZVOUS") {
        return Some(Rendezvous::Address(with_port(&address)));
    }
    if let Some(host) = get("MASTER_ADDR") {
        // The launcher's own port is taken by its own rendezvous; ours is the next one.
        let port = get("MASTER_PORT").and_then(|port| port.parse::<u16>().ok());
        let port = port.and_then(|port| port.checked_add(1)).unwrap_or(PORT);
        return Some(Rendezvous::Address(format!("{host}:{port}")));
    }
    if variables.launcher == "Slurm" {
        return slurm_meeting(get);
    }
    let job = variables.job.iter().find_map(|name| get(name))?;
    Some(Rendezvous::LocalFile(meeting_file(variables.launcher, &job)))
}

/// With several nodes the first one's name is known; its tasks all find it there.
fn slurm_meeting(get: &impl Fn(&str) -> Option<String>) -> Option<Rendezvous> {
    let job = get("SLURM_JOB_ID")?;
    if get("SLURM_JOB_NUM_NODES").or_else(|| get("SLURM_NNODES")).as_deref() == Some("1") {
        let step = get("SLURM_STEP_ID").unwrap_or_default();
        return Some(Rendezvous::LocalFile(meeting_file("Slurm", &format!("{job}.{step}"))));
    }
    let list = get("SLURM_STEP_NODELIST").or_else(|| get("SLURM_JOB_NODELIST"));
    let host = list.map(|list| first_host(&list)).or_else(|| get("SLURM_LAUNCH_NODE_IPADDR"))?;
    let number: u32 = job.parse().unwrap_or(0);
    // Two jobs on one node must not meet at the same port.
    let port = PORT + (number % 1000) as u16;
    Some(Rendezvous::Address(format!("{host}:{port}")))
}

/// `node[03-07,9],other` → `node03`.
fn first_host(list: &str) -> String {
    match list.split_once('[') {
        Some((prefix, rest)) if !prefix.contains(',') => {
            let first: String = rest.chars().take_while(char::is_ascii_digit).collect();
            format!("{prefix}{first}")
        }
        _ => list.split(',').next().unwrap_or(list).to_string(),
    }
}

fn with_port(address: &str) -> String {
    let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port { address.to_string() } else { format!("{address}:{PORT}") }
}

fn meeting_file(launcher: &str, job: &str) -> PathBuf {
    let clean = |text: &str| -> String {
        text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
    };
    let name = format!("murmura-{}-{}", clean(&launcher.to_lowercase()), clean(job));
    std::env::temp_dir().join(name.chars().take(120).collect::<String>())
}

fn key(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A meeting file that is there. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct Published {
    path: PathBuf,
}

impl Published {
    /// Writes `address` into the file, all at once. One that a dead run has left is replaced;
    /// whoever has read it finds nobody there, or somebody with another key, and reads again.
    pub(crate) fn new(path: &Path, address: SocketAddr) -> io::Result<Published> {
        let beside = path.with_extension(std::process::id().to_string());
        std::fs::write(&beside, address.to_string())?;
        std::fs::rename(&beside, path)?;
        Ok(Published { path: path.to_path_buf() })
    }

    /// What tells its run from others.
    pub(crate) fn key(&self) -> String {
        key(&self.path)
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // Whoever comes later finds no run; that nothing is left behind is only tidiness.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// `HOST:PORT` and the run's key, from what [`join`](crate::join()) was given.
pub(crate) fn resolve(addr: &str) -> Result<(String, String), String> {
    let Some(path) = addr.strip_prefix("file:").map(Path::new) else {
        return Ok((addr.to_string(), String::new()));
    };
    let address = std::fs::read_to_string(path)
        .map_err(|error| format!("rank 0 has not left its address there: {error}; if it is on another machine, set MURMURA_RENDEZVOUS=HOST:PORT for all"))?;
    Ok((address.trim().to_string(), key(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launched(pairs: &[(&str, &str)]) -> Option<Launched> {
        let find = |name: &str| pairs.iter().find(|(key, _)| *key == name);
        detect(|name| find(name).map(|(_, value)| value.to_string()))
    }

    fn address(launched: &Launched) -> String {
        launched.rendezvous.to_join()
    }

    #[test]
    fn open_mpi_meets_at_a_file_named_after_its_job() {
        let found = launched(&[
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
            ("PMIX_NAMESPACE", "1234/5"),
        ])
        .expect("Open MPI");
        assert_eq!((found.rank, found.world, found.launcher), (2, 4, "Open MPI"));
        assert_eq!((found.local_rank, found.local_size), (Some(2), Some(4)));
        assert!(address(&found).ends_with("murmura-open-mpi-1234-5"));
    }

    #[test]
    fn torchrun_and_its_imitators_give_an_address() {
        let found = launched(&[
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("MASTER_PORT", "29500"),
        ])
        .expect("torchrun");
        assert_eq!((found.launcher, address(&found)), ("torchrun", "10.0.0.1:29501".into()));
    }

    #[test]
    fn slurm_meets_at_its_first_node_or_at_a_file() {
        let job = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_ID", "77")];
        let with = |more: &[(&'static str, &'static str)]| {
            address(&launched(&[&job[..], more].concat()).expect("Slurm"))
        };
        let many = [("SLURM_JOB_NUM_NODES", "3"), ("SLURM_JOB_NODELIST", "gpu[04-05,9],x1")];
        assert_eq!(with(&many), format!("gpu04:{}", PORT + 77));
        let one = [("SLURM_JOB_NUM_NODES", "1"), ("SLURM_STEP_ID", "0")];
        assert!(with(&one).ends_with("murmura-slurm-77-0"));
        assert_eq!(first_host("a1,a2[1-3]"), "a1");
    }

    #[test]
    fn kubernetes_mpich_and_our_own_variables_are_known() {
        let indexed = [
            ("JOB_COMPLETION_INDEX", "3"),
            ("MURMURA_WORLD_SIZE", "4"),
            ("MURMURA_RENDEZVOUS", "train-0.train"),
        ];
        let found = launched(&indexed).expect("Kubernetes");
        assert_eq!((found.rank, address(&found)), (3, format!("train-0.train:{PORT}")));
        let found = launched(&[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("PMI_JOBID", "j")]);
        assert_eq!(found.expect("MPICH").launcher, "MPICH");
        let own = [
            ("MURMURA_RANK", "0"),
            ("MURMURA_WORLD_SIZE", "1"),
            ("MURMURA_RENDEZVOUS", "h:1"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
        ];
        assert_eq!(launched(&own).expect("ours").launcher, "murmura");
    }

    #[test]
    fn a_process_without_a_launcher_or_with_half_of_one_is_alone() {
        assert_eq!(launched(&[]), None);
        assert_eq!(launched(&[("RANK", "0"), ("WORLD_SIZE", "2")]), None);
        let beyond = [("RANK", "2"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h")];
        assert_eq!(launched(&beyond), None);
        let words = [("RANK", "two"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h")];
        assert_eq!(launched(&words), None);
    }
}
