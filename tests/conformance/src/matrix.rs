//! The matrix of convergence: every algorithm with every optimizer and every codec that it takes,
//! on equal and on unequal data, trains logistic regression to a stated loss.

use std::path::Path;

use quelea_core::algorithms::{self, ALGORITHMS};
use quelea_core::codec::{self, CODECS, CodecShape};
use quelea_core::optim::{self, OPTIMIZERS};
use quelea_core::options::{Options, Value};

use crate::{Arm, deployed, plan};

/// What is trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// The data inside the program: 455 samples of 30 features.
    Embedded,
    /// a9a of LIBSVM: 32,561 samples of 123 features.
    A9a,
}

/// Who has which samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionKind {
    /// Alike.
    Iid,
    /// Dirichlet(0.1) over the labels: most workers see one label almost alone.
    Dirichlet,
}

/// All partitions.
pub const PARTITIONS: [PartitionKind; 2] = [PartitionKind::Iid, PartitionKind::Dirichlet];

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// The optimizer's name.
    pub optimizer: &'static str,
    /// The codec's name.
    pub codec: &'static str,
    /// Who has which samples.
    pub partition: PartitionKind,
}

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Over all training data.
    pub loss: f64,
    /// On held-out data.
    pub accuracy: f64,
}

/// All cells, by algorithm, codec, optimizer, partition.
pub fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for algorithm in ALGORITHMS {
        for codec in CODECS.iter().filter(|codec| takes(algorithm, codec)) {
            for optimizer in OPTIMIZERS.iter().filter(|optimizer| fits(algorithm, optimizer)) {
                for partition in PARTITIONS {
                    cells.push(Cell {
                        algorithm: algorithm.meta.name,
                        optimizer: optimizer.meta.name,
                        codec: codec.meta.name,
                        partition,
                    });
                }
            }
        }
    }
    cells
}

/// Whether an algorithm takes an optimizer with its defaults.
pub fn fits(algorithm: &algorithms::Entry, optimizer: &optim::Entry) -> bool {
    let properties = (algorithm.properties)(&Options::defaults(algorithm.meta.options));
    let options = Options::defaults(optimizer.meta.options);
    properties.optimizer_rule.refusal(optimizer, &options).is_none()
}

/// Logistic regression has no matrix, so `power-sgd` has nothing to do in it.
fn takes(algorithm: &algorithms::Entry, codec: &codec::Entry) -> bool {
    let codecs = (algorithm.codecs)(&Options::defaults(algorithm.meta.options));
    let given = contraction(codec.meta.name).map(|key| (key.to_string(), Value::Flag(true)));
    let params = Options::check(codec.meta.options, given).expect("a key of the codec");
    codec.shape != CodecShape::LowRank && codecs.refusal(codec, &params, 31).is_none()
}

/// The flag that makes a codec a contraction, where it is not always one.
fn contraction(codec: &str) -> Option<&'static str> {
    has_option(codec, "contract").then_some("contract")
}

fn has_option(codec: &str, name: &str) -> bool {
    let entry = codec::find(codec).expect("in the table");
    entry.meta.options.iter().any(|option| option.name == name)
}

/// Fewest cells, chosen greedily, in which every two values that go together occur together.
pub fn pairwise() -> Vec<Cell> {
    let mut left: Vec<(String, String)> = cells().iter().flat_map(pairs).collect();
    left.sort();
    left.dedup();
    let mut chosen = Vec::new();
    while !left.is_empty() {
        let gain = |cell: &Cell| pairs(cell).iter().filter(|pair| left.contains(pair)).count();
        let all = cells();
        let best = all.into_iter().rev().max_by_key(gain).expect("there are cells");
        let covered = pairs(&best);
        left.retain(|pair| !covered.contains(pair));
        chosen.push(best);
    }
    chosen
}

fn pairs(cell: &Cell) -> Vec<(String, String)> {
    let values = [
        format!("algorithm {}", cell.algorithm),
        format!("optimizer {}", cell.optimizer),
        format!("codec {}", cell.codec),
        format!("partition {:?}", cell.partition),
    ];
    let pair = |(i, j): (usize, usize)| (values[i].clone(), values[j].clone());
    [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)].into_iter().map(pair).collect()
}

impl Cell {
    /// Trains, with 8 workers on 4 hosts in the virtual cluster. `folder` holds a9a, where it is.
    pub fn run(&self, data: Data, folder: &Path) -> Found {
        let plan = plan(&self.text(data, folder));
        let found = plan.problem.evaluate(&deployed(&plan, &Arm::Virtual.run(&plan)));
        Found { loss: found.loss, accuracy: found.accuracy().unwrap_or(f64::NAN) }
    }

    /// The run file.
    pub fn text(&self, data: Data, folder: &Path) -> String {
        let Cell { algorithm, optimizer, codec, partition } = self;
        // Adaptive steps are about as long as the learning rate, so theirs is smaller. An outer
        // momentum multiplies what all steps of a round have done.
        // Steps of LAMB and LARS are shares of the model's norm, those of LARS with momentum 0.9.
        let lr = match *optimizer {
            "sgd" => 0.2,
            "lamb" => 0.01,
            "lars" => 0.0025,
            _ => 0.005,
        };
        let trust = if *optimizer == "lars" { "trust = 1.0\n" } else { "" };
        // Every gradient of ASP and SSP moves the model by an n-th of a step.
        let is_share = ["lamb", "lars"].contains(optimizer);
        let outer = match *algorithm {
            "asp" | "ssp" if is_share => 0.4,
            "slowmo" if is_share => 2.5,
            "bmuf" | "diloco" if optimizer.starts_with("accum") => 25.0,
            "bmuf" | "diloco" | "eamsgd" | "slowmo" => 5.0,
            _ => 1.0,
        };
        let lr = lr / outer;
        // The papers' values are for far longer runs and far smaller steps.
        let keys = match *algorithm {
            "diloco" => "period = 20\n",
            "slowmo" => "period = 12\n",
            "eamsgd" => "momentum = 0.9\n",
            _ => "",
        };
        let contract = contraction(codec).map(|key| format!("{key} = true\n")).unwrap_or_default();
        let share = if has_option(codec, "share") { "share = 0.1\n" } else { "" };
        let partition = match partition {
            PartitionKind::Iid => "partition = \"iid\"",
            PartitionKind::Dirichlet => "partition = \"dirichlet\"\nconcentration = 0.1",
        };
        let files = match data {
            Data::Embedded => String::new(),
            Data::A9a => {
                let file = |name: &str| folder.join(name).display().to_string();
                format!("data = {:?}\ntest = {:?}\n", file("a9a.gz"), file("a9a.t.gz"))
            }
        };
        format!(
            "workers = 8\nsteps = 1000\n[algorithm]\nname = \"{algorithm}\"\n{keys}\
             [optimizer]\nname = \"{optimizer}\"\nlr = {lr}\n{trust}\
             [codec]\nname = \"{codec}\"\n{contract}{share}\
             [task]\nname = \"logistic\"\nbatch = 16\n{files}{partition}\n[cluster]\nhosts = 4"
        )
    }
}

/// The loss that every cell must reach. Centralized solutions have 0.06 on the embedded data and
/// 0.323 on a9a; who knows the share of the labels alone has 0.66 and 0.55.
pub fn most(data: Data, partition: PartitionKind) -> f64 {
    match (data, partition) {
        (Data::Embedded, PartitionKind::Iid) => 0.1,
        (Data::Embedded, PartitionKind::Dirichlet) => 0.12,
        (Data::A9a, PartitionKind::Iid) => 0.36,
        (Data::A9a, PartitionKind::Dirichlet) => 0.48,
    }
}
