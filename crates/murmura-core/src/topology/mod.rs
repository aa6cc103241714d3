//! Who mixes with whom, with what weights, at which step.

use std::sync::Arc;

/// One round: for each worker the weights it puts on the vectors that come in, its own included,
/// by index.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    rows: Vec<Vec<(usize, f64)>>,
}

impl Round {
    /// From rows `i -> [(j, W_ij)]`, each sorted by `j`.
    pub fn new(rows: Vec<Vec<(usize, f64)>>) -> Round {
        Round { rows }
    }

    /// Row `i` lists `(j, W_ij)` for every `W_ij ≠ 0`, by `j`.
    pub fn rows(&self) -> &[Vec<(usize, f64)>] {
        &self.rows
    }
}

/// The rounds of a topology: a pure function of the step, so that all workers agree.
#[derive(Debug)]
pub struct Schedule {
    rounds: Vec<Arc<Round>>,
}

impl Schedule {
    /// Round `step mod rounds.len()` holds at `step`.
    pub fn periodic(rounds: Vec<Round>) -> Schedule {
        Schedule { rounds: rounds.into_iter().map(Arc::new).collect() }
    }

    /// The round of this step.
    pub fn round(&self, step: u64) -> Arc<Round> {
        Arc::clone(&self.rounds[(step % self.rounds.len() as u64) as usize])
    }

    /// After how many steps the rounds repeat; `None` if they are drawn at random.
    pub fn period(&self) -> Option<usize> {
        Some(self.rounds.len())
    }
}
