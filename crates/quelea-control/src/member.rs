//! What a rank knows that a new controller needs: everybody holds its own share of the controller's state.

use quelea_core::message::Rank;
use quelea_core::view::ViewChange;
use quelea_record::Record;

use crate::messages::{check_amount, check_record};

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

impl MemberState {
    /// Whether this can be the share of `rank` in a run with this many ranks: it speaks for itself, views follow
    /// one another and are of ranks that exist, and its numbers can be added up with those of others.
    pub fn check(&self, rank: u32, ranks: usize) -> Result<(), String> {
        if self.rank != rank {
            return Err(format!("it sent the state of rank {}", self.rank));
        }
        for (place, entry) in self.log.iter().enumerate() {
            check_change(&entry.change, place as u32 + 1, ranks)?;
        }
        if let Some(stored) = &self.stored {
            check_change(&stored.entry.change, stored.entry.change.number.max(1), ranks)?;
        }
        let MemberState { steps_before, steps, position, granted, done, durable, .. } = *self;
        for (name, amount) in [
            ("steps_before", steps_before),
            ("steps", steps),
            ("position", position),
            ("granted", granted),
            ("done", done),
            ("durable", durable),
        ] {
            check_amount(name, amount)?;
        }
        self.records.iter().try_for_each(|record| check_record(record, rank, ranks))
    }
}

/// Whether this can be the change with this number.
fn check_change(change: &ViewChange, number: u32, ranks: usize) -> Result<(), String> {
    if change.number != number {
        return Err(format!("its view {} stands where {number} should", change.number));
    }
    check_amount("from_step", change.from_step)?;
    for gone in &change.departed {
        check_known(gone.rank, ranks)?;
        check_amount("steps", gone.steps)?;
    }
    change.joined.iter().try_for_each(|rank| check_known(*rank, ranks))
}

fn check_known(rank: Rank, ranks: usize) -> Result<(), String> {
    if rank.index() < ranks {
        return Ok(());
    }
    Err(format!("it named {rank}; ranks are 0 to {}", ranks - 1))
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

#[cfg(test)]
mod tests {
    use quelea_core::view::DepartedRank;
    use quelea_record::RecordKind;

    use super::*;

    /// Its record is of a transfer that it has received: that is the sender's.
    fn good() -> MemberState {
        let departed = vec![DepartedRank { rank: Rank(3), steps: 7, left: false }];
        let change = ViewChange { number: 1, departed, joined: Vec::new(), from_step: 9 };
        let event = RecordKind::Transfer { to: 2, bytes: 80, seconds: 0.5 };
        MemberState {
            rank: 2,
            log: vec![ViewEntry { controller: u32::MAX, change }],
            steps: 8,
            records: vec![Record { t: 0.5, rank: 0, step: 3, event }],
            ..MemberState::default()
        }
    }

    #[test]
    fn what_a_voter_cannot_have_is_refused_by_its_name() {
        type Lie = (&'static str, fn(&mut MemberState));
        assert_eq!(good().check(2, 4), Ok(()));
        let lies: [Lie; 9] = [
            ("state of rank 1", |state| state.rank = 1),
            ("`steps` = 18446744073709551615", |state| state.steps = u64::MAX),
            ("`granted`", |state| state.granted = 1 << 60),
            ("view 2 stands where 1 should", |state| state.log[0].change.number = 2),
            ("named rank 4000000000", |state| {
                state.log[0].change.joined = vec![Rank(4_000_000_000)]
            }),
            ("named rank 4000000000", |state| state.records[0].rank = 4_000_000_000),
            ("record of rank 0", |state| {
                state.records[0].event = RecordKind::Compute { seconds: 0.5 };
            }),
            ("`seconds` = NaN", |state| {
                state.records[0].rank = 2;
                state.records[0].event = RecordKind::Compute { seconds: f64::NAN };
            }),
            ("only the coordinator makes", |state| {
                state.records[0].rank = 2;
                state.records[0].event = RecordKind::Joined;
            }),
        ];
        for (told, lie) in lies {
            let mut state = good();
            lie(&mut state);
            let refusal = state.check(2, 4).expect_err(told);
            assert!(refusal.contains(told), "{refusal}");
        }
    }
}
