//! Who takes part in the calls of a group, as its hub knows: who was lost, and who came in a lost one's place.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::launcher::PublishedAddress;
use crate::trust::ControlStream;

/// The run that a process which comes late can join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunUnderWay {
    /// Where its coordinator listens, on the hub's machine.
    pub port: u16,
}

impl RunUnderWay {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        self.port.to_le_bytes().to_vec()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<RunUnderWay> {
        Some(RunUnderWay { port: u16::from_le_bytes(bytes.try_into().ok()?) })
    }
}

/// The members of a group. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct GroupMembers {
    table: Arc<Mutex<MemberTable>>,
}

#[derive(Debug, Default)]
struct MemberTable {
    /// Ranks that have come; rank 0 is there from the beginning.
    came: BTreeSet<u32>,
    /// Whether all of them have.
    is_whole: bool,
    run: Option<RunUnderWay>,
    /// The file in which the hub leaves its address, where the launcher names no host.
    file: Option<AddressFile>,
    lost: BTreeSet<u32>,
    /// The step before which those who came late make no call.
    entered: BTreeMap<u32, u64>,
    /// Those of them whose connection the hub does not use yet.
    fresh: BTreeSet<u32>,
    /// Connections of processes that came late.
    newcomers: BTreeMap<u32, ControlStream>,
}

/// A file with the hub's address, which is there as long as somebody may come.
#[derive(Debug)]
pub(super) struct AddressFile {
    pub(super) path: PathBuf,
    pub(super) address: SocketAddr,
    pub(super) published: Option<PublishedAddress>,
}

/// What a hub does with a process that comes.
pub(super) enum Arrival {
    /// It is one of those that are waited for.
    Expected,
    /// It comes late, and can join this run.
    Late(RunUnderWay),
    /// It is not wanted, for this reason.
    Refused(String),
}

impl GroupMembers {
    fn table(&self) -> MutexGuard<'_, MemberTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run has begun that processes which come late can join.
    pub fn begin_run(&self, run: RunUnderWay) {
        let mut table = self.table();
        table.run = Some(run);
        table.entered.clear();
        if let Some(file) = &mut table.file {
            // Without the file nobody comes late, and the run goes on.
            file.published = PublishedAddress::new(&file.path, file.address).ok();
        }
    }

    /// The run has ended.
    pub fn end_run(&self) {
        let mut table = self.table();
        table.run = None;
        table.newcomers.clear();
        table.file.iter_mut().for_each(|file| file.published = None);
    }

    /// The run continues without this rank.
    pub fn lose(&self, rank: u32) {
        let mut table = self.table();
        table.lost.insert(rank);
        table.fresh.remove(&rank);
    }

    /// A process has joined the run in the place of a lost one, and begins with `step`.
    pub fn enter(&self, rank: u32, step: u64) {
        let mut table = self.table();
        table.lost.remove(&rank);
        table.entered.insert(rank, step);
        table.fresh.insert(rank);
    }

    /// Who was lost and has not been replaced.
    pub fn lost(&self) -> Vec<u32> {
        self.table().lost.iter().copied().collect()
    }

    pub(super) fn is_lost(&self, rank: u32) -> bool {
        self.table().lost.contains(&rank)
    }

    /// Whether `rank` makes a call that the hub makes before the gradient of `step`: one that came late does
    /// not make those that the others make before its own first step.
    pub(super) fn makes_call(&self, rank: u32, step: u64) -> bool {
        let table = self.table();
        let is_too_early = table.entered.get(&rank).is_some_and(|entered| step <= *entered);
        !is_too_early && !table.lost.contains(&rank)
    }

    /// A process of a group of `world` comes as `rank`.
    pub(super) fn arrive(&self, rank: u32, world: u32) -> Arrival {
        let mut table = self.table();
        if rank == 0 || rank >= world {
            return Arrival::Refused(format!("rank {rank} is taken"));
        }
        match (table.is_whole, table.run) {
            (true, Some(run)) => Arrival::Late(run),
            (true, None) => Arrival::Refused(format!(
                "rank {rank} comes late, and no run is under way that it could join"
            )),
            (false, _) if table.came.insert(rank) => Arrival::Expected,
            (false, _) => Arrival::Refused(format!("rank {rank} is taken")),
        }
    }

    /// A process that was expected has gone before all were there.
    pub(super) fn leave(&self, rank: u32) {
        self.table().came.remove(&rank);
    }

    /// All have come. Late ones look into `file`, if the hub's address is in one.
    pub(super) fn complete(&self, file: Option<AddressFile>) {
        let mut table = self.table();
        (table.is_whole, table.file) = (true, file);
    }

    /// A process that comes late waits to join the run.
    pub(super) fn keep(&self, rank: u32, stream: ControlStream) {
        self.table().newcomers.insert(rank, stream);
    }

    /// Brings the hub's connections up to date.
    pub(super) fn settle(&self, peers: &mut BTreeMap<u32, ControlStream>) {
        let mut table = self.table();
        peers.retain(|rank, _| !table.lost.contains(rank));
        let MemberTable { fresh, newcomers, .. } = &mut *table;
        // One that was greeted a moment ago may not be kept yet: its turn comes.
        fresh.retain(|rank| match newcomers.remove(rank) {
            Some(stream) => {
                peers.insert(*rank, stream);
                false
            }
            None => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunUnderWay = RunUnderWay { port: 4711 };

    #[test]
    fn a_rank_is_taken_until_all_have_come_and_then_only_a_run_is_joined() {
        let members = GroupMembers::default();
        let refusal =
            |arrival| if let Arrival::Refused(why) = arrival { why } else { String::new() };
        assert!(matches!(members.arrive(1, 2), Arrival::Expected));
        assert_eq!(refusal(members.arrive(1, 2)), "rank 1 is taken");
        members.leave(1);
        assert!(matches!(members.arrive(1, 2), Arrival::Expected));
        members.complete(None);
        assert!(refusal(members.arrive(1, 2)).contains("no run is under way"));
        members.begin_run(RUN);
        assert!(matches!(members.arrive(1, 2), Arrival::Late(RUN)));
        assert_eq!(refusal(members.arrive(0, 2)), "rank 0 is taken");
        members.end_run();
        assert!(refusal(members.arrive(1, 2)).contains("no run is under way"));
    }

    #[test]
    fn one_that_came_late_makes_no_call_before_its_first_step() {
        let members = GroupMembers::default();
        assert!(members.makes_call(1, 0));
        members.lose(1);
        assert!(!members.makes_call(1, 100));
        members.enter(1, 7);
        assert!(!members.makes_call(1, 7) && members.makes_call(1, 8) && members.makes_call(2, 7));
        members.begin_run(RUN);
        assert!(members.makes_call(1, 0), "in another run it is one of all");
    }
}
