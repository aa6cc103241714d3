//! What a worker exchanges, and when it waits: the numbers behind an entry's `sends`, from
//! which the cost of a step is predicted.

/// What a worker exchanges in a run without losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// All workers average a vector exactly, once per `period` steps; buckets start as soon as
    /// they are final, and the average is awaited before the next gradient.
    Average {
        /// Steps from one average to the next.
        period: u64,
    },
    /// `vectors` of the model's length go to every neighbour of the topology per step.
    Gossip {
        /// How many, in one message.
        vectors: u64,
        /// When those of the neighbours are awaited.
        when: When,
        /// Steps from one exact average over all workers, in place of gossip, to the next.
        average: Option<u64>,
    },
    /// A vector to one neighbour and one back, `averages` times per gradient, one after another.
    /// Gradients continue while an exchange is in flight; no second exchange starts.
    Pairs {
        /// Exchanges per gradient.
        averages: u64,
    },
    /// A vector to the servers and one back.
    Servers(Service),
}

/// When the vectors of neighbours are awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// They leave as the gradient becomes final and are awaited before the next one.
    AfterGradient,
    /// They leave at the end of a step and are awaited at the end of the next one: the exchange
    /// overlaps with the gradient.
    DuringGradient,
    /// Never: the worker uses what has arrived.
    Never,
}

/// How servers answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Now and then; the worker never waits, and adds up what it has to send while a message is on
    /// its way.
    Folded,
}
