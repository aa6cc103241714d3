//! What a worker exchanges, and when it waits: the numbers behind an entry's `sends`, from
//! which the cost of a step is predicted.

/// What a worker exchanges in a run without losses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Traffic {
    /// All workers average a vector exactly, once per `period` steps; buckets start as soon as
    /// they are final, and the average is awaited before the next gradient.
    Average {
        /// Steps from one average to the next.
        period: u64,
    },
    /// `vectors` of the model's length go to every neighbour of the topology, once per `every`
    /// steps.
    Gossip {
        /// How many, in one message.
        vectors: u64,
        /// When those of the neighbours are awaited.
        when: When,
        /// Steps from one exchange to the next.
        every: u64,
        /// Steps from one exact average over all workers, in place of gossip, to the next.
        average: Option<u64>,
        /// What is gathered: where it is means, groups of the topology run all-reduces instead.
        gathers: Gathers,
    },
    /// A vector to one neighbour and one back, `averages` times per gradient, one after another.
    /// Gradients continue while an exchange is in flight; no second exchange starts.
    Pairs {
        /// Exchanges per gradient.
        averages: u64,
        /// Whose gradients.
        starters: Starters,
    },
    /// A vector to the servers and one back.
    Servers(Service),
}

/// What a worker needs to know of its neighbours' vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gathers {
    /// Their weighted mean with its own: workers that are a group of the topology, in which all
    /// weigh alike, find it by all-reduce.
    Means,
    /// Each of them: it keeps copies of its neighbours, receives shares, or carries sums over all
    /// steps, in which the rounding of a mean would add up.
    #[default]
    Vectors,
}

/// Whose gradients lead to exchanges in pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starters {
    /// Those of one half of the workers, who ask the other half.
    Half,
    /// Those of all: the other half sends a message without a vector to be asked.
    All,
}

impl Starters {
    /// Exchanges per gradient of the average worker, where each of the starters starts one.
    pub fn share(self) -> f64 {
        match self {
            Starters::Half => 0.5,
            Starters::All => 1.0,
        }
    }
}

/// When the vectors of neighbours are awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// They leave as the gradient becomes final and are awaited before the next one.
    AfterGradient,
    /// They leave at the end of a step and are awaited when the next ones leave: the exchange
    /// continues while gradients are computed.
    DuringGradient,
    /// Never: the worker uses what has arrived.
    Never,
}

/// How servers answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Service {
    /// When every worker's vector is there; once per `period` steps.
    Together {
        /// Steps from one exchange to the next.
        period: u64,
    },
    /// At once, for every gradient, unless the worker is further ahead of the slowest one; the
    /// worker waits for it.
    Alone {
        /// How many steps it may be ahead.
        ahead: u64,
    },
    /// At once, every `period` steps of a worker, which waits for it.
    Elastic {
        /// Steps from one exchange to the next.
        period: u64,
        /// It is asked for before the gradient is computed.
        prefetch: bool,
    },
    /// The worker never waits, and adds up what it has to send while a message is on its way; every
    /// `period` of its gradients a model comes back, and the worker moves to it by `alpha`.
    Folded {
        /// Gradients from one model to the next.
        period: u64,
        /// The share of the way.
        alpha: f64,
    },
}
