//! What a rank knows that a new controller needs: everybody holds its own share of the controller's state.

use quelea_core::view::ViewChange;
use quelea_record::Record;

/// An entry of the log of views.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewEntry {
    /// The rank whose process controlled the run when the view was agreed on.
    pub controller: u32,
    /// What changed.
    pub change: ViewChange,
}

/// An entry that was stored and may not be in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// The term in which it was proposed.
    pub term: u32,
    /// The entry.
    pub entry: ViewEntry,
}

/// How far a rank has come on the way to rest for a checkpoint or for the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestState {
    /// It is not on that way.
    #[default]
    None,
    /// It starts no gradients.
    Paused,
    /// What is pending comes to rest.
    Resting,
    /// It rests, has saved, and was not told to continue.
    Saved,
}

/// What a rank knows of the data that all workers share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberUnits {
    /// All units below are confirmed, as far as it was told.
    pub settled: u64,
    /// Handed to it and not confirmed.
    pub held: Vec<u64>,
    /// Confirmed by it, from `settled` on.
    pub confirmed: Vec<u64>,
}

/// One rank's share of the controller's state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemberState {
    /// Who it is.
    pub rank: u32,
    /// The views that it has entered, after the first.
    pub log: Vec<ViewEntry>,
    /// The one after them that it has stored.
    pub stored: Option<StoredEntry>,
    /// Steps that it had completed when its process began, and since.
    pub steps_before: u64,
    /// See `steps_before`.
    pub steps: u64,
    /// The step that it is at: one that has joined or caught up has skipped some.
    pub position: u64,
    /// Gradients that it was granted since its process began.
    pub granted: u64,
    /// What it knows of the data that all workers share.
    pub units: MemberUnits,
    /// The highest number of gradients of all workers that it has heard of.
    pub done: u64,
    /// It computes no more gradients.
    pub is_finished: bool,
    /// Where it is on the way to rest.
    pub rest: RestState,
    /// Checkpoints until this step are written, as far as it knows.
    pub durable: u64,
    /// It has sent its last report.
    pub has_reported: bool,
    /// The run was being aborted.
    pub is_aborted: bool,
    /// It was given notice.
    pub is_leaving: bool,
    /// Records that no controller has taken.
    pub records: Vec<Record>,
}

/// With what a new controller begins: the shares of all who are within reach.
#[derive(Clone, Debug, PartialEq)]
pub struct Inheritance {
    /// The term.
    pub term: u32,
    /// The rank in whose process the controller lives from now on.
    pub rank: u32,
    /// The rank in whose process it lived.
    pub before: u32,
    /// The shares.
    pub members: Vec<MemberState>,
}

impl Inheritance {
    /// The share of `rank`, if it is within reach.
    pub(crate) fn member(&self, rank: u32) -> Option<&MemberState> {
        self.members.iter().find(|member| member.rank == rank)
    }

    /// All changes of membership until now.
    pub fn changes(&self) -> Vec<ViewChange> {
        self.log().into_iter().map(|entry| entry.change).collect()
    }

    /// The longest log: every entry of it is in force.
    pub(crate) fn log(&self) -> Vec<ViewEntry> {
        let longest = self.members.iter().max_by_key(|member| member.log.len());
        longest.map(|member| member.log.clone()).unwrap_or_default()
    }

    /// The entry after the log that may be in force somewhere, and must be the next one: that of the
    /// latest term.
    pub(crate) fn pending(&self) -> Option<StoredEntry> {
        let number = self.log().len() as u32 + 1;
        let stored = self.members.iter().filter_map(|member| member.stored.as_ref());
        let next = stored.filter(|stored| stored.entry.change.number == number);
        next.max_by_key(|stored| stored.term).cloned()
    }
}
