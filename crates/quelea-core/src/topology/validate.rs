//! What every topology must fulfil before a run may start with it.

use super::{Round, Schedule};

/// Sums of weights may differ from one by this much.
const TOLERANCE: f64 = 1e-12;

/// How weights can be wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Flaw {
    /// Rounds of different sizes, or a weight on a worker that does not exist.
    #[error("round {round}, row {row}: there is no worker {worker}, only 0 to {last}")]
    NoWorker {
        /// Counted from 0.
        round: usize,
        /// The receiving worker.
        row: usize,
        /// Who does not exist.
        worker: usize,
        /// The last one that does.
        last: usize,
    },
    /// A weight that is negative or not a number.
    #[error(
        "round {round}, row {row}: worker {row} puts the weight {weight} on worker {column}; weights are never negative"
    )]
    Weight {
        /// Counted from 0.
        round: usize,
        /// The receiving worker.
        row: usize,
        /// The sending worker.
        column: usize,
        /// What it is.
        weight: f64,
    },
    /// What a worker takes in does not sum to one.
    #[error(
        "round {round}, row {row}: the weights that worker {row} puts on others and itself sum to {sum}, not 1"
    )]
    Row {
        /// Counted from 0.
        round: usize,
        /// The receiving worker.
        row: usize,
        /// What they sum to.
        sum: f64,
    },
    /// What is taken from a worker does not sum to one.
    #[error(
        "round {round}, column {column}: the weights that all put on worker {column} sum to {sum}, not 1, so the mean would move"
    )]
    Column {
        /// Counted from 0.
        round: usize,
        /// The sending worker.
        column: usize,
        /// What they sum to.
        sum: f64,
    },
    /// Senders divide their mass without a remainder, but receivers do not average.
    #[error(
        "round {round}, row {row}: the weights that worker {row} puts on others and itself sum to {sum}, not 1; only methods that push (`sgp`, and `gradient-tracking` in push form) take such one-way edges"
    )]
    PushOnly {
        /// Counted from 0.
        round: usize,
        /// The receiving worker.
        row: usize,
        /// What they sum to.
        sum: f64,
    },
    /// Nothing ever gets from one part of the workers to the other.
    #[error(
        "nothing ever gets from worker 0 to worker {worker}: all rounds together do not connect them"
    )]
    Apart {
        /// The first worker that is out of reach.
        worker: usize,
    },
    /// One-way edges lead to the other workers, and none leads back.
    #[error(
        "nothing ever gets from worker {worker} to worker 0: all rounds together lead only away from worker 0"
    )]
    NoWayBack {
        /// The first worker from which worker 0 is out of reach.
        worker: usize,
    },
}

/// Checks that every round keeps the mean (`W ≥ 0`, rows and columns sum to one) and that all
/// rounds together connect all workers.
///
/// Of rounds that are drawn at random the first is checked; any two workers meet in some other.
pub fn validate(schedule: &Schedule) -> Result<(), Flaw> {
    let n = schedule.workers();
    let mut parts = Parts::new(n);
    for step in 0..schedule.period().unwrap_or(1) {
        let round = schedule.round(step as u64);
        check(step, &round, n)?;
        round.edges().for_each(|(from, to)| parts.join(from, to));
    }
    let apart = (0..n).find(|worker| parts.of(*worker) != 0);
    match (apart, schedule.period()) {
        (Some(worker), Some(_)) => Err(Flaw::Apart { worker }),
        _ => Ok(()),
    }
}

/// Checks, for methods that use edges and not weights, that all rounds together lead from
/// everyone to everyone.
pub fn validate_edges(schedule: &Schedule) -> Result<(), Flaw> {
    let rounds = (0..schedule.period().unwrap_or(0)).map(|step| schedule.round(step as u64));
    let edges: Vec<(usize, usize)> = rounds.flat_map(|r| r.edges().collect::<Vec<_>>()).collect();
    if schedule.period().is_none() {
        return Ok(());
    }
    let back: Vec<(usize, usize)> = edges.iter().map(|(from, to)| (*to, *from)).collect();
    match (unreached(schedule.workers(), &edges), unreached(schedule.workers(), &back)) {
        (Some(worker), _) => Err(Flaw::Apart { worker }),
        (_, Some(worker)) => Err(Flaw::NoWayBack { worker }),
        _ => Ok(()),
    }
}

/// The first worker to which no way leads from worker 0.
fn unreached(workers: usize, edges: &[(usize, usize)]) -> Option<usize> {
    let mut next = vec![Vec::new(); workers];
    edges.iter().for_each(|(from, to)| next[*from].push(*to));
    let mut reached = vec![false; workers];
    let mut open = vec![0];
    while let Some(worker) = open.pop() {
        if !std::mem::replace(&mut reached[worker], true) {
            open.extend(&next[worker]);
        }
    }
    reached.iter().position(|reached| !reached)
}

fn check(round: usize, weights: &Round, n: usize) -> Result<(), Flaw> {
    let last = n - 1;
    if weights.workers() != n {
        let worker = weights.workers().max(n) - 1;
        return Err(Flaw::NoWorker {
            round,
            row: worker,
            worker,
            last: weights.workers().min(n) - 1,
        });
    }
    let (mut rows, mut columns) = (vec![0.0; n], vec![0.0; n]);
    for (row, entries) in weights.rows().iter().enumerate() {
        for &(column, weight) in entries {
            if column > last {
                return Err(Flaw::NoWorker { round, row, worker: column, last });
            }
            if weight.is_nan() || weight < 0.0 {
                return Err(Flaw::Weight { round, row, column, weight });
            }
            rows[row] += weight;
            columns[column] += weight;
        }
    }
    let flaw = |sums: &[f64]| sums.iter().position(|sum| !is_one(*sum));
    match (flaw(&rows), flaw(&columns)) {
        (Some(row), None) => Err(Flaw::PushOnly { round, row, sum: rows[row] }),
        (Some(row), _) => Err(Flaw::Row { round, row, sum: rows[row] }),
        (None, Some(column)) => Err(Flaw::Column { round, column, sum: columns[column] }),
        (None, None) => Ok(()),
    }
}

fn is_one(sum: f64) -> bool {
    (sum - 1.0).abs() <= TOLERANCE
}

/// The connected parts of a graph, joined edge by edge.
pub(super) struct Parts {
    parent: Vec<usize>,
}

impl Parts {
    /// Everyone alone.
    pub(super) fn new(workers: usize) -> Parts {
        Parts { parent: (0..workers).collect() }
    }

    /// The representative of a worker's part.
    pub(super) fn of(&mut self, mut worker: usize) -> usize {
        while self.parent[worker] != worker {
            self.parent[worker] = self.parent[self.parent[worker]];
            worker = self.parent[worker];
        }
        worker
    }

    /// An edge.
    pub(super) fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.of(one), self.of(other));
        self.parent[one.max(other)] = one.min(other);
    }

    /// Whether there is only one part.
    pub(super) fn is_whole(&mut self) -> bool {
        (0..self.parent.len()).all(|worker| self.of(worker) == 0)
    }
}
