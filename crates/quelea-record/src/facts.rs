//! Facts that only an algorithm can measure: one table of their names and of what becomes of them,
//! and the totals of a rank. Drivers, checkpoints, records and summaries know no fact by itself.

use std::collections::BTreeMap;

use quelea_core::contract::Fact;

use crate::{RankReport, RecordKind};

/// One kind of facts, with its names in the files of a run.
#[derive(Debug, PartialEq, Eq)]
pub struct FactKind {
    /// The `kind` of its records, and its name in checkpoints and packets.
    pub name: &'static str,
    /// The key of its number in a record, if the number says something.
    pub number: Option<&'static str>,
    /// Whether it comes about once per step, so that records of long runs leave most of them out.
    pub is_frequent: bool,
    /// When it is recorded, for the manual.
    pub meaning: &'static str,
    /// What the summary says about it.
    pub summary: FactSummary,
}

/// A key of the summary.
#[derive(Debug, PartialEq, Eq)]
pub struct FactSummary {
    /// Its name.
    pub key: &'static str,
    /// What stands under it.
    pub form: SummaryForm,
    /// What that is, for the manual.
    pub meaning: &'static str,
}

/// What the summary says about all facts of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummaryForm {
    /// How often each number occurred.
    Histogram,
    /// The mean of the numbers; nothing if there are none.
    Mean,
    /// How many there were.
    Count,
}

/// How late gradients are.
pub static STALENESS: FactKind = FactKind {
    name: "staleness",
    number: Some("updates"),
    is_frequent: true,
    meaning: "a gradient was applied so many updates late",
    summary: FactSummary {
        key: "staleness",
        form: SummaryForm::Histogram,
        meaning: "how many gradients were applied how many updates late",
    },
};

/// How many gradients a message carries.
pub static FOLDED: FactKind = FactKind {
    name: "folded",
    number: Some("gradients"),
    is_frequent: true,
    meaning: "a message carried so many gradients",
    summary: FactSummary {
        key: "gradients_per_message",
        form: SummaryForm::Mean,
        meaning: "where an algorithm folds several gradients into one message",
    },
};

/// Exchanges that were not completed.
pub static HALF_EXCHANGE: FactKind = FactKind {
    name: "half-exchange",
    number: None,
    is_frequent: false,
    meaning: "a lost peer broke off an exchange",
    summary: FactSummary {
        key: "half_exchanges",
        form: SummaryForm::Count,
        meaning: "exchanges that a lost peer broke off half-way",
    },
};

/// Messages with values that no honest rank sends.
pub static POISONED: FactKind = FactKind {
    name: "poisoned",
    number: Some("sender"),
    is_frequent: false,
    meaning: "a message of this rank had NaN, infinities or absurd magnitudes in it, and was not used",
    summary: FactSummary {
        key: "poisoned",
        form: SummaryForm::Histogram,
        meaning: "how many messages of which rank had NaN, infinities or absurd magnitudes in them",
    },
};

/// All kinds.
pub static FACTS: [&FactKind; 4] = [&STALENESS, &FOLDED, &HALF_EXCHANGE, &POISONED];

impl FactKind {
    /// The kind of this name.
    pub fn find(name: &str) -> Option<&'static FactKind> {
        FACTS.into_iter().find(|kind| kind.name == name)
    }
}

/// The kind of a fact, and its number.
fn described(fact: Fact) -> (&'static FactKind, u64) {
    match fact {
        Fact::Staleness(updates) => (&STALENESS, updates),
        Fact::Folded(gradients) => (&FOLDED, u64::from(gradients)),
        Fact::HalfExchange => (&HALF_EXCHANGE, 1),
        Fact::Poisoned(sender) => (&POISONED, u64::from(sender)),
    }
}

impl RankReport {
    /// Counts a fact that the rank's algorithm measured; what is to be recorded about it.
    pub fn take(&mut self, fact: Fact) -> RecordKind {
        let (kind, number) = described(fact);
        self.facts.add(kind, number, 1);
        RecordKind::Measured { kind, number }
    }
}

/// How often each number of each kind of facts occurred. Counts saturate: they may come from
/// another process.
#[derive(Clone, Debug, Default)]
pub struct FactTotals {
    /// In the order of their names.
    kinds: Vec<KindTotals>,
}

/// Facts of one kind.
#[derive(Clone, Debug)]
struct KindTotals {
    kind: &'static FactKind,
    /// How often each number below `FREQUENT` occurred: one is counted at every step.
    frequent: Vec<u64>,
    others: BTreeMap<u64, u64>,
}

/// Numbers below are counted in a vector.
const FREQUENT: u64 = 4096;

impl KindTotals {
    fn add(&mut self, number: u64, times: u64) {
        let count = if number < FREQUENT {
            let place = number as usize;
            if place >= self.frequent.len() {
                self.frequent.resize(place + 1, 0);
            }
            &mut self.frequent[place]
        } else {
            self.others.entry(number).or_default()
        };
        *count = count.saturating_add(times);
    }

    /// The numbers that occurred, each with how often.
    fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let frequent = self.frequent.iter().enumerate();
        let frequent = frequent.map(|(number, times)| (number as u64, *times));
        let others = self.others.iter().map(|(number, times)| (*number, *times));
        frequent.chain(others).filter(|(_, times)| *times > 0)
    }
}

impl PartialEq for FactTotals {
    fn eq(&self, other: &FactTotals) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for FactTotals {}

impl FactTotals {
    /// Counts a fact so many `times`.
    pub fn add(&mut self, kind: &'static FactKind, number: u64, times: u64) {
        self.totals(kind).add(number, times);
    }

    /// Counts all that another one has.
    pub fn add_all(&mut self, other: &FactTotals) {
        for of_kind in &other.kinds {
            let totals = self.totals(of_kind.kind);
            of_kind.iter().for_each(|(number, times)| totals.add(number, times));
        }
    }

    fn totals(&mut self, kind: &'static FactKind) -> &mut KindTotals {
        let place = match self.kinds.iter().position(|known| std::ptr::eq(known.kind, kind)) {
            Some(place) => place,
            None => {
                let place = self.kinds.partition_point(|known| known.kind.name < kind.name);
                let (frequent, others) = (Vec::new(), BTreeMap::new());
                self.kinds.insert(place, KindTotals { kind, frequent, others });
                place
            }
        };
        &mut self.kinds[place]
    }

    /// The name of every kind, each number, and how often it occurred.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64, u64)> {
        self.kinds.iter().flat_map(|totals| {
            totals.iter().map(|(number, times)| (totals.kind.name, number, times))
        })
    }

    /// How often each number of a kind occurred.
    pub fn histogram(&self, kind: &FactKind) -> BTreeMap<u64, u64> {
        let of_kind = self.iter().filter(|(name, ..)| *name == kind.name);
        of_kind.map(|(_, number, times)| (number, times)).collect()
    }

    /// How many facts of a kind there were.
    pub fn count(&self, kind: &FactKind) -> u64 {
        self.histogram(kind).values().fold(0, |sum, times| sum.saturating_add(*times))
    }

    /// The mean number of a kind, if there were any.
    pub fn mean(&self, kind: &FactKind) -> Option<f64> {
        let products =
            self.histogram(kind).into_iter().map(|(number, times)| number.saturating_mul(times));
        let sum = products.fold(0, u64::saturating_add);
        let count = self.count(kind);
        (count > 0).then(|| sum as f64 / count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_counted_by_kind_and_number() {
        let mut report = RankReport::default();
        for fact in [Fact::Staleness(2), Fact::Folded(3), Fact::Staleness(2), Fact::Folded(1)] {
            report.take(fact);
        }
        let record = report.take(Fact::HalfExchange);
        assert_eq!(record, RecordKind::Measured { kind: &HALF_EXCHANGE, number: 1 });
        let mut all = report.facts.clone();
        all.add_all(&report.facts);
        assert_eq!(all.histogram(&STALENESS), [(2, 4)].into());
        assert_eq!(all.mean(&FOLDED), Some(2.0));
        assert_eq!(all.count(&HALF_EXCHANGE), 2);
        assert_eq!(RankReport::default().facts.mean(&FOLDED), None);
    }

    #[test]
    fn totals_are_equal_whatever_the_order_and_iterate_by_name_and_number() {
        let facts = [(&STALENESS, FREQUENT + 7), (&FOLDED, 3), (&STALENESS, 0), (&STALENESS, 9)];
        let (mut forward, mut backward) = (FactTotals::default(), FactTotals::default());
        facts.iter().for_each(|(kind, number)| forward.add(kind, *number, 2));
        facts.iter().rev().for_each(|(kind, number)| backward.add(kind, *number, 2));
        // Something that did not occur.
        backward.add(&STALENESS, 80, 0);
        assert_eq!(forward, backward);
        let all: Vec<_> = backward.iter().collect();
        let staleness = [0, 9, FREQUENT + 7].map(|number| ("staleness", number, 2));
        assert_eq!(all, [&[("folded", 3, 2)], &staleness[..]].concat());
        backward.add(&FOLDED, 3, u64::MAX);
        assert_ne!(forward, backward);
        assert_eq!(backward.histogram(&FOLDED), [(3, u64::MAX)].into());
    }

    #[test]
    fn every_kind_is_in_the_table_under_a_name_of_its_own() {
        for fact in [Fact::Staleness(0), Fact::Folded(0), Fact::HalfExchange, Fact::Poisoned(0)] {
            let (kind, _) = described(fact);
            assert_eq!(FactKind::find(kind.name), Some(kind));
        }
        let names: std::collections::BTreeSet<&str> = FACTS.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), FACTS.len());
    }
}
