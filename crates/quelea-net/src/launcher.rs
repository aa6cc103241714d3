//! What a launcher (`mpirun`, `srun`, `torchrun`, `flux run`, Kubernetes, …) says in the environment.
//!
//! A launcher tells every process its rank and how many there are. Where it also tells where
//! rank 0 is, the others go there; where it does not (`mpirun` on one machine), rank 0 leaves its
//! address in a file whose name the launcher's job number determines.

mod address_file;
mod host_list;
mod places;
#[cfg(test)]
mod schedulers;
mod variables;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

pub(crate) use address_file::{PublishedAddress, resolve};
pub use host_list::{HostListError, expand_hosts};
use variables::{LAUNCHERS, LauncherSign, Numbering, Variables};

/// The port of a rendezvous when only a host is given.
pub const PORT: u16 = 29_470;
/// What [`join`](crate::join()) takes where rank 0 sends its address over MPI.
pub(crate) const OVER_MPI: &str = "mpi:";
/// How many of the processes, the last ones, wait to take the place of others.
const SPARES: &str = "QUELEA_SPARES";

/// How this process was launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Its number, from 0. Numbers from `world` on are those of spares.
    pub rank: u32,
    /// How many there are, without spares.
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

impl Launched {
    /// Whether this process only waits until a worker is lost, whose place it takes.
    pub fn is_spare(&self) -> bool {
        self.rank >= self.world
    }
}

/// Where the processes of a run meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// Rank 0 listens here (`HOST:PORT`).
    Address(String),
    /// Rank 0 leaves its address in this file.
    LocalFile(PathBuf),
    /// Rank 0 sends its address as a message of MPI.
    Mpi,
}

impl Rendezvous {
    /// What [`join`](crate::join()) takes.
    pub fn to_join(&self) -> String {
        match self {
            Rendezvous::Address(address) => address.clone(),
            Rendezvous::LocalFile(path) => format!("file:{}", path.display()),
            Rendezvous::Mpi => OVER_MPI.to_string(),
        }
    }
}

/// Why a process that was launched cannot take part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{launcher}: {}: {problem}", shown(variable, value.as_deref()))]
pub struct LauncherError {
    /// Who launched it.
    pub launcher: &'static str,
    /// The variable of the environment.
    pub variable: &'static str,
    /// What it is set to, if it is.
    pub value: Option<String>,
    /// What is needed.
    pub problem: String,
}

fn shown(variable: &str, value: Option<&str>) -> String {
    match value {
        Some(value) => format!("{variable}={value}"),
        None => format!("{variable} is not set"),
    }
}

/// Recognises a launcher from the environment, given as a function so that this is one too. A
/// process that was not launched by any gets `None`; one that was, but cannot know its place or
/// where to meet, gets the reason: going on alone would train the same model many times over.
pub fn detect(env: impl Fn(&str) -> Option<String>) -> Result<Option<Launched>, LauncherError> {
    let environment = Environment { get: &|name| env(name).filter(|value| !value.is_empty()) };
    match LAUNCHERS.iter().find(|variables| environment.shows(variables)) {
        Some(variables) => environment.read(variables).map(Some),
        None => environment.check_unused().map(|()| None),
    }
}

struct Environment<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
}

impl Environment<'_> {
    fn get(&self, name: &str) -> Option<String> {
        (self.get)(name)
    }

    fn shows(&self, variables: &Variables) -> bool {
        let has = |name| self.get(name).is_some();
        // Torque describes the script of a job like the tasks that it starts: as the first of all.
        let is = |name, value| self.get(name).as_deref() == Some(value);
        let is_script = variables.rank == "PBS_VNODENUM" && is("PBS_VNODENUM", "0");
        if is_script && is("PBS_TASKNUM", "1") {
            return false;
        }
        has(variables.rank) && (variables.sign == LauncherSign::Rank || has(variables.world))
    }

    fn read(&self, variables: &Variables) -> Result<Launched, LauncherError> {
        let launcher = variables.launcher;
        let world = self.number(launcher, variables.world)?;
        if world == 0 {
            return Err(self.refusal(launcher, variables.world, "must be at least 1"));
        }
        let rank = self.rank(variables, world)?;
        let local = |name: &str| self.get(name)?.parse::<u32>().ok();
        let spares = self.spares(launcher, world)?;
        Ok(Launched {
            rank,
            world: world - spares,
            // Whoever is alone meets nobody.
            rendezvous: match world {
                1 => Rendezvous::Address("127.0.0.1:0".to_string()),
                _ => self.meeting(variables, rank)?,
            },
            local_rank: local(variables.local_rank),
            local_size: local(variables.local_size),
            launcher,
        })
    }

    /// The rank of this process among `world`.
    fn rank(&self, variables: &Variables, world: u32) -> Result<u32, LauncherError> {
        let launcher = variables.launcher;
        let number = self.number(launcher, variables.rank)?;
        let refuse = |variable, problem: String| Err(self.refusal(launcher, variable, problem));
        match variables.numbering {
            Numbering::FromOne if number == 0 || number > world => {
                let problem = format!("must be from 1 to {}={world}", variables.world);
                refuse(variables.rank, problem)
            }
            Numbering::FromOne => Ok(number - 1),
            _ if number >= world => {
                let problem = format!("must be below {}={world}", variables.world);
                refuse(variables.rank, problem)
            }
            Numbering::FromZero => Ok(number),
            Numbering::Around(main) => match self.number(launcher, main)? {
                first if first >= world => {
                    refuse(main, format!("must be below {}={world}", variables.world))
                }
                first if number == first => Ok(0),
                first if number == 0 => Ok(first),
                _ => Ok(number),
            },
        }
    }

    /// How many of so many processes are spares.
    fn spares(&self, launcher: &'static str, processes: u32) -> Result<u32, LauncherError> {
        let Some(given) = self.get(SPARES) else { return Ok(0) };
        let spares = given.parse::<u32>().ok().filter(|spares| *spares < processes);
        spares.ok_or_else(|| {
            let problem = format!(
                "must be how many of the {processes} processes only wait to replace others, fewer than all"
            );
            self.refusal(launcher, SPARES, problem)
        })
    }

    fn number(&self, launcher: &'static str, name: &'static str) -> Result<u32, LauncherError> {
        let number = self.get(name).and_then(|value| value.parse::<u32>().ok());
        let needed = if name == "QUELEA_WORLD_SIZE" {
            "set it to the number of processes"
        } else {
            "must be a whole number"
        };
        number.ok_or_else(|| self.refusal(launcher, name, needed))
    }

    fn refusal(
        &self,
        launcher: &'static str,
        variable: &'static str,
        problem: impl Into<String>,
    ) -> LauncherError {
        LauncherError { launcher, variable, value: self.get(variable), problem: problem.into() }
    }

    fn meeting(&self, variables: &Variables, rank: u32) -> Result<Rendezvous, LauncherError> {
        let launcher = variables.launcher;
        if let Some(address) = self.get("QUELEA_RENDEZVOUS") {
            let refuse = || {
                let problem = "must be a host, or a host and a port from 1 to 65535";
                self.refusal(launcher, "QUELEA_RENDEZVOUS", problem)
            };
            return with_port(&address).map(Rendezvous::Address).ok_or_else(refuse);
        }
        let [host, port] = variables.master;
        if let Some(host) = self.get(host) {
            let port = match self.get(port).map(|port| port.parse::<u16>()) {
                None => PORT,
                // The launcher's own port is taken by its own rendezvous; ours is the next one.
                Some(Ok(port @ 1..=65_534)) => port + 1,
                Some(_) => {
                    let problem = "must be a port from 1 to 65534";
                    return Err(self.refusal(launcher, variables.master[1], problem));
                }
            };
            // Where all processes are on one machine, nobody else needs to reach them.
            let is_local = self.get(variables.local_size) == self.get(variables.world);
            let host = if is_local { "127.0.0.1" } else { &host };
            return Ok(Rendezvous::Address(format!("{host}:{port}")));
        }
        let found = self.found_place(variables, rank);
        found.ok_or_else(|| {
            let problem = "the processes do not know where to meet; set \
                           QUELEA_RENDEZVOUS=HOST:PORT for all, with the host of rank 0";
            self.refusal(launcher, "QUELEA_RENDEZVOUS", problem)
        })
    }

    /// Our own variables are meant for us: without a rank they are half of a launch.
    fn check_unused(&self) -> Result<(), LauncherError> {
        let ours = ["QUELEA_WORLD_SIZE", "QUELEA_RENDEZVOUS"];
        let Some(name) = ours.into_iter().find(|name| self.get(name).is_some()) else {
            return Ok(());
        };
        let problem = "nothing says which of the processes this is; set QUELEA_RANK too";
        Err(self.refusal("quelea", name, problem))
    }
}

/// Where rank 0 listens so that others reach it at `address`: the name is theirs, and need not be one of this
/// machine. All addresses, of IPv6 too where the name has only such.
pub(crate) fn bound_address(address: &str) -> String {
    let port = address.rsplit_once(':').map_or("0", |(_, port)| port);
    let found: Vec<SocketAddr> =
        address.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    let only_six = !found.is_empty() && found.iter().all(SocketAddr::is_ipv6);
    if only_six { format!("[::]:{port}") } else { format!("0.0.0.0:{port}") }
}

/// `HOST:PORT`, with the usual port where there is none; nothing where it cannot be one.
fn with_port(address: &str) -> Option<String> {
    let bare_six = address.matches(':').count() > 1 && !address.starts_with('[');
    match address.rsplit_once(':') {
        _ if bare_six => Some(format!("[{address}]:{PORT}")),
        Some((host, port)) if !port.ends_with(']') => {
            let good = !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0);
            good.then(|| address.to_string())
        }
        _ => Some(format!("{address}:{PORT}")),
    }
}

fn meeting_file(launcher: &str, job: &str) -> PathBuf {
    let clean = |text: &str| -> String {
        text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
    };
    let name = format!("quelea-{}-{}", clean(&launcher.to_lowercase()), clean(job));
    std::env::temp_dir().join(name.chars().take(120).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detected(pairs: &[(&str, &str)]) -> Result<Option<Launched>, LauncherError> {
        let find = |name: &str| pairs.iter().find(|(key, _)| *key == name);
        detect(|name| find(name).map(|(_, value)| value.to_string()))
    }

    fn launched(pairs: &[(&str, &str)]) -> Option<Launched> {
        detected(pairs).expect("a usable launcher or none")
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
        assert!(address(&found).ends_with("quelea-open-mpi-1234-5"));
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
        let on_one_machine = launched(&[
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "node1"),
            ("MASTER_PORT", "29500"),
        ]);
        assert_eq!(address(&on_one_machine.expect("torchrun")), "127.0.0.1:29501");
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
        assert!(with(&one).ends_with("quelea-slurm-77-0"));
    }

    #[test]
    fn the_last_processes_of_a_launch_with_spares_take_no_seat_of_their_own() {
        let job = [("SLURM_NTASKS", "5"), ("SLURM_JOB_ID", "77"), ("SLURM_JOB_NUM_NODES", "5")];
        let at = [("SLURM_JOB_NODELIST", "n[1-5]"), ("QUELEA_SPARES", "1")];
        let of = |rank: &'static str| {
            let all = [&job[..], &at, &[("SLURM_PROCID", rank)]].concat();
            launched(&all).expect("Slurm")
        };
        assert_eq!((of("3").world, of("3").is_spare(), of("4").is_spare()), (4, false, true));
        for wrong in ["5", "x", "-1"] {
            let all = [&job[..], &[("SLURM_PROCID", "0"), ("QUELEA_SPARES", wrong)]].concat();
            let told = detected(&all).expect_err("refused").to_string();
            let expected = format!("Slurm: QUELEA_SPARES={wrong}: must be how many of the 5");
            assert!(told.starts_with(&expected), "{told}");
        }
    }

    #[test]
    fn kubernetes_mpich_and_our_own_variables_are_known() {
        let indexed = [
            ("JOB_COMPLETION_INDEX", "3"),
            ("QUELEA_WORLD_SIZE", "4"),
            ("QUELEA_RENDEZVOUS", "train-0.train"),
        ];
        let found = launched(&indexed).expect("Kubernetes");
        assert_eq!((found.rank, address(&found)), (3, format!("train-0.train:{PORT}")));
        let kubeflow = launched(&[
            ("PET_NODE_RANK", "1"),
            ("PET_NNODES", "4"),
            ("PET_MASTER_ADDR", "train-node-0-0.train"),
            ("PET_MASTER_PORT", "29400"),
            ("JOB_COMPLETION_INDEX", "1"),
        ]);
        let kubeflow = kubeflow.expect("Kubeflow");
        assert_eq!((kubeflow.rank, kubeflow.world, kubeflow.launcher), (1, 4, "Kubeflow"));
        assert_eq!(address(&kubeflow), "train-node-0-0.train:29401");
        let found = launched(&[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("PMI_JOBID", "j")]);
        assert_eq!(found.expect("MPICH").launcher, "MPICH");
        let own = [
            ("QUELEA_RANK", "0"),
            ("QUELEA_WORLD_SIZE", "1"),
            ("QUELEA_RENDEZVOUS", "h:1"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
        ];
        assert_eq!(launched(&own).expect("ours").launcher, "quelea");
    }

    #[test]
    fn what_other_programs_set_for_their_own_purposes_is_no_launcher() {
        for alone in [&[][..], &[("RANK", "0")], &[("WORLD_SIZE", "2")], &[("SLURM_PROCID", "0")]] {
            assert_eq!(launched(alone), None, "{alone:?}");
        }
        let one = launched(&[("RANK", "0"), ("WORLD_SIZE", "1")]).expect("torchrun");
        assert_eq!((one.world, address(&one)), (1, "127.0.0.1:0".into()));
        let inner = [
            ("JOB_COMPLETION_INDEX", "3"),
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "h"),
        ];
        assert_eq!(launched(&inner).expect("torchrun in a pod").launcher, "torchrun");
    }

    #[test]
    fn a_launcher_that_says_too_little_or_contradicts_itself_is_refused_by_variable() {
        let at = [("MASTER_ADDR", "h"), ("MASTER_PORT", "29500")];
        let torch = |rank, world| [&[("RANK", rank), ("WORLD_SIZE", world)], &at[..]].concat();
        let cases: Vec<(Vec<(&str, &str)>, &str)> = vec![
            (torch("5", "2"), "torchrun: RANK=5: must be below WORLD_SIZE=2"),
            (torch("x", "2"), "torchrun: RANK=x: must be a whole number"),
            (torch("-1", "2"), "torchrun: RANK=-1: must be a whole number"),
            (torch("0", "0"), "torchrun: WORLD_SIZE=0: must be at least 1"),
            (
                vec![("RANK", "0"), ("WORLD_SIZE", "2")],
                "torchrun: QUELEA_RENDEZVOUS is not set: the processes do not know where to \
                 meet; set QUELEA_RENDEZVOUS=HOST:PORT",
            ),
            (
                vec![("RANK", "0"), ("WORLD_SIZE", "2"), at[0], ("MASTER_PORT", "abc")],
                "torchrun: MASTER_PORT=abc: must be a port from 1 to 65534",
            ),
            (
                vec![("RANK", "0"), ("WORLD_SIZE", "2"), at[0], ("MASTER_PORT", "65535")],
                "torchrun: MASTER_PORT=65535: must be",
            ),
            (
                vec![("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")],
                "Slurm: QUELEA_RENDEZVOUS is not set",
            ),
            (
                vec![("JOB_COMPLETION_INDEX", "0")],
                "Kubernetes: QUELEA_WORLD_SIZE is not set: set it to the number of processes",
            ),
            (
                vec![
                    ("QUELEA_RANK", "0"),
                    ("QUELEA_WORLD_SIZE", "2"),
                    ("QUELEA_RENDEZVOUS", "h:x"),
                ],
                "quelea: QUELEA_RENDEZVOUS=h:x: must be a host",
            ),
            (vec![("QUELEA_RANK", "0")], "quelea: QUELEA_WORLD_SIZE is not set"),
            (vec![("QUELEA_WORLD_SIZE", "2")], "quelea: QUELEA_WORLD_SIZE=2: nothing says"),
            (vec![("OMPI_COMM_WORLD_RANK", "0")], "Open MPI: OMPI_COMM_WORLD_SIZE is not set"),
        ];
        for (pairs, expected) in cases {
            let message = detected(&pairs).expect_err(expected).to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn rank_0_listens_on_the_kind_of_address_that_others_are_told() {
        assert_eq!(bound_address("192.0.2.1:7"), "0.0.0.0:7");
        assert_eq!(bound_address("[fd00::1]:7"), "[::]:7");
        assert_eq!(bound_address("nobody.invalid:7"), "0.0.0.0:7");
    }

    #[test]
    fn a_meeting_place_without_a_port_gets_the_usual_one() {
        let port = |address: &str| with_port(address);
        assert_eq!(port("h"), Some(format!("h:{PORT}")));
        assert_eq!(port("h:7"), Some("h:7".into()));
        assert_eq!(port("fd00::1"), Some(format!("[fd00::1]:{PORT}")));
        assert_eq!(port("[fd00::1]"), Some(format!("[fd00::1]:{PORT}")));
        assert_eq!(port("[fd00::1]:7"), Some("[fd00::1]:7".into()));
        assert_eq!((port("h:0"), port(":7"), port("h:")), (None, None, None));
    }
}
