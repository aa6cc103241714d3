//! Entries of another crate in run files: one of every kind, registered, named, trained with.

use std::sync::Arc;

use quelea_core::codec::{self, Codec, CodecError, CodecProperties, CodecShape, VectorId};
use quelea_core::meta::Meta;
use quelea_core::optim::{self, At, Family, Optimizer};
use quelea_core::options::{OptionKind, OptionSpec};
use quelea_core::problems::quadratic::{Quadratic, QuadraticOptions};
use quelea_core::registry::Registry;
use quelea_core::topology::{self, Round, Schedule, TopologyProperties};
use quelea_record::{Outcome, Silent};
use quelea_run::config::Config;
use quelea_run::config::source::parse;
use quelea_run::error::RequestError;
use quelea_run::prepared::PreparedRun;
use quelea_run::tasks::{Built, TaskEntry};

const fn meta(name: &'static str, options: &'static [OptionSpec]) -> Meta {
    Meta { name, summary: "of another crate", paper: "", section: "", file: file!(), options }
}

/// One worker mixes with the next, which pays back: everybody is half of each of two others.
static NEXT: topology::Entry = topology::Entry {
    meta: meta("next", &[]),
    properties: Some(TopologyProperties {
        is_static: true,
        is_symmetric: false,
        is_directed: true,
    }),
    make: |request| {
        let n = request.hosts.len();
        let row = |i: usize| {
            let mut row = vec![(i, 0.5), ((i + 1) % n, 0.5)];
            row.sort_unstable_by_key(|(j, _)| *j);
            row
        };
        let rows = if n == 1 { vec![vec![(0, 1.0)]] } else { (0..n).map(row).collect() };
        Ok(Schedule::periodic(vec![Round::new(rows)]))
    },
};

/// `x ← x − η·sign(g)·size`.
static SIGN: optim::Entry = optim::Entry {
    meta: meta(
        "sign-descent",
        &[OptionSpec {
            name: "size",
            kind: OptionKind::Real { default: 1.0, min: 0.0, max: 10.0 },
            help: "how far a step goes, times the learning rate",
        }],
    ),
    family: Family::Adaptive,
    check: |_| Ok(()),
    build: |options, _| Box::new(SignDescent { size: options.real("size") as f32 }),
};

struct SignDescent {
    size: f32,
}

impl Optimizer for SignDescent {
    fn apply(
        &mut self,
        at: At,
        range: std::ops::Range<usize>,
        params: &mut [f32],
        grad: &mut [f32],
    ) {
        self.displace(at, range, params, grad);
        params.iter_mut().zip(grad).for_each(|(x, step)| *x -= *step);
    }

    fn displace(
        &mut self,
        at: At,
        _range: std::ops::Range<usize>,
        _params: &[f32],
        grad: &mut [f32],
    ) {
        let step = |g: f32| if g == 0.0 { 0.0 } else { g.signum() };
        grad.iter_mut().for_each(|g| *g = at.learning_rate * self.size * step(*g));
    }

    fn vectors(&mut self) -> Vec<&mut Vec<f32>> {
        Vec::new()
    }
}

/// Multiples of 1/256 from −128 on, in two bytes.
static FIXED: codec::Entry = codec::Entry {
    meta: meta("fixed-point", &[]),
    wire: "2d",
    shape: CodecShape::Rounding,
    per_element: true,
    build: |_, _| Box::new(FixedPoint),
};

struct FixedPoint;

impl Codec for FixedPoint {
    fn bytes(&self, len: usize) -> usize {
        2 * len
    }

    fn properties(&self, _len: usize) -> CodecProperties {
        CodecProperties { lossless: false, unbiased: false, contraction: 0.0, typical: 0.9 }
    }

    fn encode(&mut self, _at: VectorId, values: &[f32], out: &mut [u8]) -> usize {
        for (value, bytes) in values.iter().zip(out.chunks_exact_mut(2)) {
            bytes.copy_from_slice(&((value * 256.0).round() as i16).to_le_bytes());
        }
        2 * values.len()
    }

    fn decode(&mut self, _at: VectorId, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        for (value, bytes) in out.iter_mut().zip(bytes.chunks_exact(2)) {
            *value = f32::from(i16::from_le_bytes([bytes[0], bytes[1]])) / 256.0;
        }
        Ok(())
    }
}

/// `½‖x − target‖²` for every worker.
static BOWL: TaskEntry = TaskEntry {
    meta: meta(
        "bowl",
        &[OptionSpec {
            name: "target",
            kind: OptionKind::Real { default: 3.0, min: -100.0, max: 100.0 },
            help: "where the optimum is",
        }],
    ),
    extras: &[],
    build: |request| {
        let options = QuadraticOptions {
            workers: request.workers,
            dimensions: Some(4),
            curvature: vec![vec![1.0]; request.workers],
            target: vec![vec![request.values.options.real("target")]; request.workers],
            ..QuadraticOptions::default()
        };
        let problem = Quadratic::new(&options)
            .map_err(|error| RequestError::Conflict(format!("[task]: {error}")))?;
        Ok(Built { problem: Arc::new(problem), steps_per_epoch: None })
    },
};

fn registry() -> Registry {
    Registry::builtin().with(&NEXT).with(&SIGN).with(&FIXED).with(&BOWL)
}

fn prepared(text: &str) -> Result<PreparedRun, RequestError> {
    let table = parse(text).expect("TOML");
    PreparedRun::new(Config::read_with(&registry(), table, &[], None)?)
}

fn simulate(prepared: &PreparedRun) -> Outcome {
    let (setup, problem) = (&prepared.setup, &*prepared.problem);
    quelea_sim::simulate(setup, problem, &prepared.cluster, &mut Silent).expect("it ends well")
}

const RUN: &str = "workers = 4\nsteps = 12\n[algorithm]\nname = \"d-psgd\"\n\
                   [topology]\nname = \"next\"\n[optimizer]\nname = \"sign-descent\"\nlr = 0.25\n\
                   size = 0.5\n[codec]\nname = \"fixed-point\"\n[task]\nname = \"bowl\"\ntarget = 1.0";

#[test]
fn a_topology_an_optimizer_a_codec_and_a_task_of_another_crate_train_together() {
    let prepared = prepared(RUN).expect("all names are registered");
    let outcome = simulate(&prepared);
    // All workers take the same steps of 1/8, which fixed point holds exactly: 1 after 8 of them.
    for rank in &outcome.ranks {
        assert_eq!(rank.params, [1.0; 4], "{}", rank.rank);
    }
    // One message of 80 bytes of header, 4 of length and 2 per element, to one neighbour per step.
    assert_eq!(outcome.ranks[0].bytes_sent, 12 * (80 + 4 + 2 * 4));
}

#[test]
fn another_process_with_the_same_registry_prepares_the_same_run_from_its_job() {
    let here = prepared(RUN).expect("good");
    let there = PreparedRun::from_job(&registry(), &here.job()).expect("good");
    assert_eq!(there.job(), here.job());
    let stranger = PreparedRun::from_job(&Registry::builtin(), &here.job());
    let refusal = stranger.err().expect("not registered there").to_string();
    assert!(refusal.starts_with("`topology.name` = \"next\": unknown name"), "{refusal}");
}

#[test]
fn refusals_and_hints_know_registered_names_and_options() {
    let refusal = |text: &str| prepared(text).err().expect("refused").to_string();
    let near = refusal("[optimizer]\nname = \"sign-decsent\"");
    assert!(near.contains("did you mean \"sign-descent\"?"), "{near}");
    let owner = refusal("[optimizer]\nname = \"sgd\"\nsize = 2.0");
    assert!(owner.contains("it is a key of sign-descent"), "{owner}");
    let range = refusal("[optimizer]\nname = \"sign-descent\"\nsize = 20.0");
    assert!(range.contains("must be a number from 0 to 10"), "{range}");
}
