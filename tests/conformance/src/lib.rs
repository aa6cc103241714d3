//! The suite that every algorithm passes, for the built-in ones and for those of other crates.
//!
//! A scenario is the text of a run file. It is written once and run by every driver: the virtual
//! cluster, threads, and ranks that join a coordinator on loopback, over TCP and through shared memory.
//!
//! A crate that has an algorithm of its own puts one line into a test file, and gets one test per
//! [property](suite::Suite). The package is `quelea-conformance`, a dependency of tests:
//!
//! ```
//! # use quelea_core::algorithms::{ALGORITHMS, Entry};
//! # static MY_ALGORITHM: &Entry = &ALGORITHMS[0];
//! conformance::suite!(MY_ALGORITHM);
//! # fn main() {}
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`suite`](mod@suite) | the properties of one algorithm |
//! | [`forms`] | the forms of an algorithm that its options make |
//! | [`scenario`] | quadratics that differ between workers |
//! | [`bytes`] | the bytes of a run, from what an algorithm says it exchanges |
//! | [`matrix`] | convergence of all algorithms with all optimizers and codecs |

pub mod bytes;
pub mod forms;
pub mod matrix;
pub mod scenario;
pub mod suite;

use quelea_core::registry::Registry;
use quelea_net::{Coordinator, Hosted, NetOptions, TransportKind};
use quelea_record::{Outcome, Silent};
use quelea_run::config::Config;
use quelea_run::config::source;
use quelea_run::drive::slowed;
use quelea_run::prepared::PreparedRun;

/// The four quadratics of the golden numbers: curvatures 1 to 4, optimum 1.05.
pub const REFERENCE: &str = "
[task]
name = \"quadratic\"
curvature = [[1], [2], [3], [4]]
target = [[1], [-2], [0.5], [3]]
";

/// A run file as a plan. Panics with the refusal's words.
pub fn plan(text: &str) -> PreparedRun {
    plan_in(&Registry::builtin(), text)
}

/// As [`plan`], of the entries of a registry.
pub fn plan_in(registry: &Registry, text: &str) -> PreparedRun {
    attempt_in(registry, text).unwrap_or_else(|problem| panic!("{problem}\n{text}"))
}

/// A run file as a plan, or why it is refused.
pub fn attempt(text: &str) -> Result<PreparedRun, String> {
    attempt_in(&Registry::builtin(), text)
}

fn attempt_in(registry: &Registry, text: &str) -> Result<PreparedRun, String> {
    let table = source::parse(text).map_err(|problem| problem.to_string())?;
    let config =
        Config::read_with(registry, table, &[], None).map_err(|error| error.to_string())?;
    PreparedRun::new(config).map_err(|error| error.to_string())
}

/// Ways to run a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// In virtual time.
    Virtual,
    /// Every rank a thread of one process.
    Threads,
    /// Every worker connected by TCP on loopback.
    Tcp,
    /// Every worker connected through memory that it shares with the others.
    SharedMemory,
}

/// All arms.
pub const ARMS: [Arm; 4] = [Arm::Virtual, Arm::Threads, Arm::Tcp, Arm::SharedMemory];

impl Arm {
    /// Runs the plan. Panics with the failure's words.
    pub fn run(self, plan: &PreparedRun) -> Outcome {
        let (setup, problem) = (&plan.setup, &*plan.problem);
        match self {
            Arm::Virtual => quelea_sim::simulate(setup, problem, &plan.cluster, &mut Silent)
                .unwrap_or_else(|error| panic!("virtual: {error}")),
            Arm::Threads => {
                let (gradients, options) = (slowed(plan), NetOptions::default());
                quelea_net::threads(setup, &gradients, &options, &mut Silent)
                    .unwrap_or_else(|error| panic!("threads: {error}"))
            }
            Arm::Tcp => joined(plan, TransportKind::Tcp),
            Arm::SharedMemory => joined(plan, TransportKind::Auto),
        }
    }
}

/// Workers that join a coordinator, each on a thread of its own with its own sockets.
fn joined(plan: &PreparedRun, transport: TransportKind) -> Outcome {
    let options = NetOptions { transport, ..NetOptions::default() };
    let coordinator = Coordinator::bind("127.0.0.1:0", options).expect("loopback is there");
    let address = coordinator.address().to_string();
    std::thread::scope(|scope| {
        for rank in 0..plan.setup.workers() as u32 {
            let address = &address;
            scope.spawn(move || {
                let mut build = |_: &[u8]| -> Result<_, quelea_net::JobError> {
                    Ok((plan.setup.clone(), slowed(plan)))
                };
                quelea_net::join(address, Some(rank), &NetOptions::default(), &mut build)
                    .unwrap_or_else(|error| panic!("rank {rank}: {error}"));
            });
        }
        let (setup, gradients) = (&plan.setup, slowed(plan));
        coordinator
            .run(Vec::new(), setup, &gradients, &Hosted::default(), &mut Silent)
            .unwrap_or_else(|error| panic!("coordinator: {error}"))
    })
}

/// The parameters of all ranks, as bits.
pub fn bits(outcome: &Outcome) -> Vec<Vec<u32>> {
    let of = |params: &Vec<f32>| params.iter().map(|x| x.to_bits()).collect();
    outcome.ranks.iter().map(|rank| of(&rank.params)).collect()
}

/// What would be deployed.
pub fn deployed(plan: &PreparedRun, outcome: &Outcome) -> Vec<f32> {
    let models = quelea_run::files::tensors::ModelSlices::of(outcome);
    models.deployed(plan.setup.properties().deploy)
}

/// Parameters of the living workers, first entry only.
pub fn firsts(outcome: &Outcome) -> Vec<f64> {
    let workers = outcome.ranks.iter().filter(|rank| !rank.is_server && !rank.lost);
    workers.map(|rank| f64::from(rank.params[0])).collect()
}

/// A temporary file that goes away with the value.
pub struct TempFile(std::path::PathBuf);

impl TempFile {
    /// With this text.
    pub fn new(name: &str, text: &str) -> TempFile {
        let unique = format!("quelea-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(unique);
        std::fs::write(&path, text).expect("the temporary folder can be written");
        TempFile(path)
    }

    /// Where it is.
    pub fn path(&self) -> std::path::Display<'_> {
        self.0.display()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // A file that is left behind in the temporary folder harms nobody.
        let _ = std::fs::remove_file(&self.0);
    }
}
