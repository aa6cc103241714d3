//! Where processes meet whose launcher names no address and port.

use super::variables::{MeetingPlace, Variables};
use super::{Environment, PORT, Rendezvous, expand_hosts, meeting_file};

impl Environment<'_> {
    /// Where rank 0 is, from what else the launcher says; `rank` asks.
    pub(super) fn found_place(&self, variables: &Variables, rank: u32) -> Option<Rendezvous> {
        let job = || variables.job.iter().find_map(|name| self.get(name));
        let file = || Some(Rendezvous::LocalFile(meeting_file(variables.launcher, &job()?)));
        let at = |host: &str| {
            let host = if host.contains(':') { format!("[{host}]") } else { host.to_string() };
            Some(Rendezvous::Address(format!("{host}:{PORT}")))
        };
        let word = |text: String| text.split_whitespace().next().map(str::to_string);
        match variables.place {
            MeetingPlace::OneMachine => file(),
            MeetingPlace::OneMachineIf(nodes) => {
                if self.get(nodes)? == "1" {
                    file()
                } else {
                    None
                }
            }
            MeetingPlace::OneMachineOnly => {
                let here = self.get(variables.local_size)?;
                if here == self.get(variables.world)? { file() } else { None }
            }
            MeetingPlace::SlurmNodes => self.slurm_meeting(),
            MeetingPlace::FirstWord(names) => {
                at(&names.iter().find_map(|name| self.get(name).and_then(word))?)
            }
            MeetingPlace::FirstLineOf(name) => {
                at(&std::fs::read_to_string(self.get(name)?).ok().and_then(word)?)
            }
            // It is reached at an address that only the others are told.
            MeetingPlace::ToldToOthers(_) if rank == 0 => at("0.0.0.0"),
            MeetingPlace::ToldToOthers(name) => at(&self.get(name)?),
        }
    }

    /// With several nodes the first one's name is known; its tasks all find it there.
    fn slurm_meeting(&self) -> Option<Rendezvous> {
        let get = |name| self.get(name);
        let job = get("SLURM_JOB_ID")?;
        if get("SLURM_JOB_NUM_NODES").or_else(|| get("SLURM_NNODES")).as_deref() == Some("1") {
            let step = get("SLURM_STEP_ID").unwrap_or_default();
            return Some(Rendezvous::LocalFile(meeting_file("Slurm", &format!("{job}.{step}"))));
        }
        let list = get("SLURM_STEP_NODELIST").or_else(|| get("SLURM_JOB_NODELIST"));
        let first = |list: String| expand_hosts(&list).ok()?.into_iter().next();
        let host = list.and_then(first).or_else(|| get("SLURM_LAUNCH_NODE_IPADDR"))?;
        let number: u32 = job.parse().unwrap_or(0);
        // Two jobs on one node must not meet at the same port.
        let port = PORT + (number % 1000) as u16;
        Some(Rendezvous::Address(format!("{host}:{port}")))
    }
}
