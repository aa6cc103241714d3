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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FactTotals {
    counts: BTreeMap<(&'static str, u64), u64>,
}

impl FactTotals {
    /// Counts a fact so many `times`.
    pub fn add(&mut self, kind: &'static FactKind, number: u64, times: u64) {
        let count = self.counts.entry((kind.name, number)).or_default();
        *count = count.saturating_add(times);
    }

    /// Counts all that another one has.
    pub fn add_all(&mut self, other: &FactTotals) {
        for (key, times) in &other.counts {
            let count = self.counts.entry(*key).or_default();
            *count = count.saturating_add(*times);
        }
    }

    /// The name of every kind, each number, and how often it occurred.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64, u64)> {
        self.counts.iter().map(|((name, number), times)| (*name, *number, *times))
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
    fn every_kind_is_in_the_table_under_a_name_of_its_own() {
        for fact in [Fact::Staleness(0), Fact::Folded(0), Fact::HalfExchange, Fact::Poisoned(0)] {
            let (kind, _) = described(fact);
            assert_eq!(FactKind::find(kind.name), Some(kind));
        }
        let names: std::collections::BTreeSet<&str> = FACTS.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), FACTS.len());
    }
}
