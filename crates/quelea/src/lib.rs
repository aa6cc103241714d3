//! Distributed training of one model, as a library.
//!
//! A [`Run`] says what is trained, by how many workers, with which algorithm. The same run is simulated
//! in a virtual cluster ([`Run::simulate`]), run on the threads of this process ([`Run::threads`]) or on
//! several machines over TCP ([`Run::serve`], [`Run::join`]). Synchronous algorithms give the same bits
//! in all of them:
//!
//! ```
//! # #[cfg(all(feature = "sim", feature = "net"))]
//! # fn main() -> Result<(), quelea::Error> {
//! use quelea::{Cluster, Run};
//!
//! // Worker k pulls every parameter towards k; the mean of 0, 1, 2, 3 is 1.5.
//! let run = Run::new(vec![0.0; 10])
//!     .workers(4)
//!     .steps(200)
//!     .algorithm("allreduce")
//!     .learning_rate(0.1)
//!     .gradient(|batch, params, grad| {
//!         let target = batch.worker as f32;
//!         for (g, x) in grad.iter_mut().zip(params) {
//!             *g = x - target;
//!         }
//!         grad.iter().map(|g| 0.5 * g * g).sum()
//!     });
//!
//! let simulated = run.simulate(&Cluster::default())?;
//! let real = run.threads()?;
//! assert_eq!(simulated.model(), real.model());
//! assert!(simulated.model().iter().all(|x| (x - 1.5).abs() < 1e-4));
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "sim", feature = "net")))]
//! # fn main() {}
//! ```
//!
//! Whom a slow worker holds up is a question for the virtual cluster:
//!
//! ```
//! # #[cfg(feature = "sim")]
//! # fn main() -> Result<(), quelea::Error> {
//! # use quelea::{Cluster, Run};
//! # let run = |algorithm: &str| {
//! #     Run::new(vec![0.0; 10]).workers(4).steps(50).algorithm(algorithm).gradient(
//! #         |batch, params, grad| {
//! #             grad.iter_mut().zip(params).for_each(|(g, x)| *g = x - batch.worker as f32);
//! #             0.0
//! #         },
//! #     )
//! # };
//! // Worker 3 takes ten times as long as the others.
//! let slow = Cluster { slow: [(3, 10.0)].into(), ..Cluster::default() };
//! let waiting = run("allreduce").simulate(&slow)?.seconds();
//! let free = run("aladdin").simulate(&slow)?.seconds();
//! assert!(free < waiting / 3.0);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "sim"))]
//! # fn main() {}
//! ```
//!
//! | to | see |
//! |---|---|
//! | train a model of your own | [`Run::new`], [`Run::gradient`]; or implement [`Problem`](problems::Problem) and use [`Run::of`] |
//! | choose an algorithm, topology, codec, optimizer | [`Choice`]: a name, or an entry, with options; [`typed`]: algorithms as structs |
//! | write an algorithm of your own | [`contract`], [`kit`], [`Registry::with`] |
//! | see what happened | [`RunOutcome`] |
//! | look into a driver | `quelea::sim`, `quelea::net` |
//!
//! Features: `sim` (the virtual cluster) and `net` (threads and TCP), both on by default. With
//! `default-features = false, features = ["sim"]` no socket, thread pool or async runtime is compiled.

mod choice;
mod error;
#[cfg(feature = "net")]
mod job;
mod model;
mod outcome;
mod run;
#[cfg(feature = "net")]
mod serve;
mod spec;
pub mod typed;

pub use choice::Choice;
pub use error::Error;
pub use model::BatchId;
pub use outcome::RunOutcome;
pub use run::Run;
#[cfg(feature = "net")]
pub use serve::ServedRun;

pub use quelea_core::node::Loan;
pub use quelea_core::registry::Registry;
pub use quelea_core::{
    algorithms, codec, collectives, contract, kit, layout, message, meta, optim, options, payload,
    problems, properties, random, registry, robust, run_spec, state, time, topology, vector, view,
};
#[cfg(feature = "net")]
pub use quelea_net::{self as net, JoinToken, RunSecret, Security};
pub use quelea_record::{Outcome, RankReport, Record, RecordKind};
#[cfg(feature = "sim")]
pub use quelea_sim::{self as sim, Cluster};

/// The Rust programs of the README, run as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeExamples;
