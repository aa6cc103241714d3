//! Rounds of weights, and which of them holds at which step.

use std::sync::{Arc, OnceLock};

use super::pairs::Pairs;

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

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.rows.len()
    }

    /// Every message of the round: `(from, to)`, by `to`, then by `from`.
    pub fn edges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.rows.iter().enumerate().flat_map(|(to, row)| {
            row.iter().map(move |(from, _)| (*from, to)).filter(|(from, to)| from != to)
        })
    }

    /// `W_ij`.
    pub fn weight(&self, i: usize, j: usize) -> f64 {
        let row = &self.rows[i];
        row.binary_search_by_key(&j, |(column, _)| *column).map_or(0.0, |place| row[place].1)
    }

    /// Whether `W_ij = W_ji` throughout, up to rounding.
    pub fn is_symmetric(&self) -> bool {
        let entries = self.rows.iter().enumerate();
        let mut entries = entries.flat_map(|(i, row)| row.iter().map(move |(j, w)| (i, *j, *w)));
        entries.all(|(i, j, weight)| (weight - self.weight(j, i)).abs() <= 1e-15)
    }

    /// Whether somebody sends to a worker that does not send back.
    pub fn is_directed(&self) -> bool {
        self.edges().any(|(from, to)| self.weight(from, to) == 0.0)
    }
}

/// The rounds of a topology: a pure function of the step, so that all workers agree.
#[derive(Debug)]
pub struct Schedule {
    name: &'static str,
    shape: TopologyShape,
    rounds: Rounds,
    /// Made when first asked for; every worker asks.
    pairs: OnceLock<Pairs>,
}

#[derive(Debug)]
enum Rounds {
    Periodic(Vec<Arc<Round>>),
    Drawn(Drawn),
}

/// Rounds that are drawn at random, each from the seed and the step alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    /// Number of workers.
    pub(super) workers: usize,
    /// The run's seed.
    pub(super) seed: u64,
    /// The round of these workers, this seed, this step. Any two workers must be able to meet.
    pub(super) draw: fn(usize, u64, u64) -> Round,
    /// By how much one round shrinks `Σ‖x_i − x̄‖²` on average.
    pub(super) mean_square: f64,
}

/// How a picture places the workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopologyShape {
    /// On a circle.
    Circle,
    /// On a circle around worker 0.
    Hub,
    /// In rows of this many.
    Lattice {
        /// Workers in a row.
        columns: usize,
    },
    /// Those of a host together; the host of each worker.
    Hosts(Vec<u32>),
}

impl Schedule {
    /// Round `step mod rounds.len()` holds at `step`.
    pub fn periodic(rounds: Vec<Round>) -> Schedule {
        assert!(!rounds.is_empty(), "a schedule has at least one round");
        let rounds = Rounds::Periodic(rounds.into_iter().map(Arc::new).collect());
        Schedule::of(rounds)
    }

    fn of(rounds: Rounds) -> Schedule {
        Schedule { name: "custom", shape: TopologyShape::Circle, rounds, pairs: OnceLock::new() }
    }

    /// The same round for ever.
    pub(super) fn fixed(round: Round) -> Schedule {
        Schedule::periodic(vec![round])
    }

    pub(super) fn drawn(drawn: Drawn) -> Schedule {
        Schedule::of(Rounds::Drawn(drawn))
    }

    pub(super) fn named(self, name: &'static str) -> Schedule {
        Schedule { name, ..self }
    }

    pub(super) fn shaped(self, shape: TopologyShape) -> Schedule {
        Schedule { shape, ..self }
    }

    /// The round of this step.
    pub fn round(&self, step: u64) -> Arc<Round> {
        match &self.rounds {
            Rounds::Periodic(rounds) => Arc::clone(&rounds[(step % rounds.len() as u64) as usize]),
            Rounds::Drawn(drawn) => Arc::new((drawn.draw)(drawn.workers, drawn.seed, step)),
        }
    }

    /// After how many steps the rounds repeat; `None` if they are drawn at random.
    pub fn period(&self) -> Option<usize> {
        match &self.rounds {
            Rounds::Periodic(rounds) => Some(rounds.len()),
            Rounds::Drawn(_) => None,
        }
    }

    /// The workers split into those that ask and those that answer.
    pub fn pairs(&self) -> &Pairs {
        self.pairs.get_or_init(|| Pairs::of(&self.neighbours()))
    }

    /// The topology's name in the table.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How a picture places the workers.
    pub fn shape(&self) -> &TopologyShape {
        &self.shape
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        match &self.rounds {
            Rounds::Periodic(rounds) => rounds[0].workers(),
            Rounds::Drawn(drawn) => drawn.workers,
        }
    }

    /// By how much a random round shrinks `Σ‖x_i − x̄‖²` on average; `None` if nothing is random.
    pub fn mean_square(&self) -> Option<f64> {
        match &self.rounds {
            Rounds::Periodic(_) => None,
            Rounds::Drawn(drawn) => Some(drawn.mean_square),
        }
    }

    /// Who ever mixes with whom, in either direction: the neighbours of each worker, by index.
    pub fn neighbours(&self) -> Vec<Vec<usize>> {
        let n = self.workers();
        let Rounds::Periodic(rounds) = &self.rounds else {
            return (0..n).map(|i| (0..n).filter(|j| *j != i).collect()).collect();
        };
        let mut neighbours = vec![Vec::new(); n];
        for (from, to) in rounds.iter().flat_map(|round| round.edges()) {
            neighbours[from].push(to);
            neighbours[to].push(from);
        }
        for list in &mut neighbours {
            list.sort_unstable();
            list.dedup();
        }
        neighbours
    }
}
