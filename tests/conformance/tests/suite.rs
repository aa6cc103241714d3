//! What every row of the table buys: convergence, the mean, exact bytes, a slow worker.
//!
//! Determinism, crashes and timing of every row are tested beside the virtual cluster itself.

use std::path::Path;

use conformance::bytes::{Run, RunGraph};
use conformance::forms::{self, AlgorithmForm};
use conformance::matrix::{self, Data};
use conformance::{Arm, deployed, firsts, plan};
use quelea_core::algorithms::ALGORITHMS;
use quelea_core::properties::{Budget, DeployedFrom};

/// Forms of a row that differ enough to be tested apart, beside its defaults.
fn variants(name: &str) -> Vec<String> {
    let more: &[&str] = match name {
        "aladdin" => &[
            "payload = \"gradient\"",
            "track_mean = true",
            "barrier = true",
            "period = 1",
            "order = \"mix-then-step\"",
            "order = \"mix-then-step\"\nperiod = 1",
            "order = \"mix-then-step\"\nbarrier = true",
        ],
        "allreduce" => &["collective = \"halving-doubling\"", "collective = \"hierarchical\""],
        "ad-psgd" => &["averaging = \"active\""],
        "asp" => &["scale = \"staleness\"", "collect = 2", "scale = \"staleness\"\ncollect = 4"],
        "bmuf" => &["form = \"nesterov\"", "base = \"sgp\""],
        "diloco" | "slowmo" => &["base = \"sgp\""],
        "eamsgd" | "easgd" => &["form = \"synchronous\""],
        "local-sgd" => &["start_step = 500", "buffers = \"average\""],
        "ssp" => &["staleness = 0"],
        "sync-ps" => &["backup = 2", "aggregate = \"multi-krum\"", "pre_aggregate = \"bucketing\""],
        "choco" => &["form = \"after-step\""],
        "sgp" => &["overlap = 1", "overlap = 2", "overlap = 2\nsends = \"every-step\""],
        "d-psgd" => &["form = \"adapt-then-combine\"", "form = \"combine-then-adapt\""],
        _ => &[],
    };
    // The paper's momentum of 0.99 is for learning rates that are far smaller than this suite's.
    let keys = if name == "eamsgd" { "momentum = 0.9\n" } else { "" };
    let default = format!("[algorithm]\nname = \"{name}\"\n{keys}");
    std::iter::once(default.clone())
        .chain(more.iter().map(|key| format!("{default}{key}\n")))
        .collect()
}

fn all_variants() -> impl Iterator<Item = String> {
    ALGORITHMS.iter().flat_map(|entry| variants(entry.meta.name))
}

/// Held-out accuracy and training loss of the embedded data set, from a centralized solution:
/// accuracy 0.974, loss 0.06. Every row comes near it, also where workers see few labels.
#[test]
fn every_row_learns_the_embedded_data_iid_and_dirichlet() {
    for algorithm in all_variants() {
        for (partition, most) in [("iid", 0.085), ("dirichlet", 0.14)] {
            let text = format!(
                "workers = 8\nsteps = 1500\n{algorithm}[optimizer]\nlr = 0.2\n\
                 [task]\nname = \"logistic\"\nbatch = 16\npartition = \"{partition}\"\nconcentration = 0.5\n\
                 [cluster]\nhosts = 4"
            );
            let plan = plan(&text);
            let outcome = Arm::Virtual.run(&plan);
            let found = plan.problem.evaluate(&deployed(&plan, &outcome));
            assert!(found.loss < most, "{partition}: loss {}\n{algorithm}", found.loss);
            let accuracy = found.accuracy().expect("there is held-out data");
            assert!(accuracy > 0.93, "{partition}: accuracy {accuracy}\n{algorithm}");
        }
    }
}

/// The whole matrix is `cargo xtask matrix`, its table `docs/convergence.md`.
#[test]
fn every_two_of_algorithm_optimizer_codec_and_partition_learn_together() {
    let mut problems = Vec::new();
    for cell in matrix::pairwise() {
        let found = cell.run(Data::Embedded, Path::new(""));
        let most = matrix::most(Data::Embedded, cell.partition);
        if found.loss.is_nan() || found.loss > most {
            problems.push(format!("{cell:?}: loss {} of at most {most}", found.loss));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn rows_that_say_so_keep_the_mean_when_nothing_is_learnt() {
    // Workers that start apart: one step with a rate, then none. The mean of what the first step
    // did must survive any number of exchanges.
    let task = "[task]\nname = \"quadratic\"\ncurvature = [[1], [2], [3], [4]]\n\
                target = [[1], [-2], [0.5], [3]]\n";
    let schedule = "[optimizer]\nlr = 0.05\n[optimizer.schedule]\nname = \"step\"\nmilestones = [1]\n\
                    gamma = 0.0\n";
    for entry in ALGORITHMS {
        let text = |steps: u64| {
            format!(
                "workers = 4\nsteps = {steps}\n[algorithm]\nname = \"{}\"\n{schedule}{task}",
                entry.meta.name
            )
        };
        let properties = plan(&text(1)).setup.properties();
        if !properties.keeps_mean {
            continue;
        }
        let mean = |steps: u64| {
            let plan = plan(&text(steps));
            let outcome = Arm::Virtual.run(&plan);
            match properties.deploy {
                DeployedFrom::Servers => f64::from(deployed(&plan, &outcome)[0]),
                DeployedFrom::Workers => firsts(&outcome).iter().sum::<f64>() / 4.0,
            }
        };
        let (one, many) = (mean(1), mean(200));
        assert!(one != 0.0, "{}: the first step moved nothing", entry.meta.name);
        // Methods that carry corrections from step to step also carry their rounding.
        assert!(
            (one - many).abs() < 2e-5 * one.abs().max(1.0),
            "{}: {one}, {many}",
            entry.meta.name
        );
    }
}

/// Bytes that all ranks together send in a run, and those that its traffic says.
fn bytes(run: Run, form: &AlgorithmForm, codec: &str) -> (u64, u64) {
    let Run { workers, steps, elements, graph } = run;
    let plan = plan(&format!(
        "workers = {workers}\nsteps = {steps}\n[algorithm]\n{}\n[codec]\n{codec}\n\
         [topology]\nname = \"{}\"\n[task]\nname = \"quadratic\"\ndimensions = {elements}\n\
         curvature = [[1], [2], [3], [4]]\ntarget = [[1], [-2], [0.5], [3]]",
        form.text(),
        graph.name(),
    ));
    let ranks = Arm::Virtual.run(&plan).ranks;
    let sent: u64 = ranks.iter().map(|rank| rank.bytes_sent).sum();
    let received: u64 = ranks.iter().map(|rank| rank.bytes_received).sum();
    assert_eq!(sent, received, "{}, {codec}", form.text());
    (sent, run.bytes(form, &plan))
}

/// Whole periods, with four workers.
const RUN: Run = Run { workers: 4, steps: 42, elements: 1000, graph: RunGraph::Ring };
const GRAPHS: [RunGraph; 2] = [RunGraph::Ring, RunGraph::Complete];

#[test]
fn every_algorithm_sends_exactly_the_bytes_of_its_traffic_with_every_codec() {
    for entry in ALGORITHMS {
        let form = forms::default_of(entry);
        for (_, codec) in form.codecs(RUN.elements as usize) {
            for graph in GRAPHS {
                let (sent, expected) = bytes(Run { graph, ..RUN }, &form, &codec);
                assert_eq!(sent, expected, "{}, {codec}, {graph:?}", form.text());
            }
        }
    }
}

/// Settings that change what is sent, and of which [`quelea_core::algorithms::Traffic`] says nothing.
const BEYOND_TRAFFIC: [&str; 6] = [
    // Averages at every step until the learning rate drops, which it does not here.
    "after_drop = true",
    // No acknowledgements.
    "barrier = true",
    // The second vector in a message of its own.
    "form = \"atc\"",
    // Acknowledgements.
    "free_running = true",
    // Mixing is reported too.
    "track_mean = true",
    // A period that follows the loss.
    "warmup_steps = ",
];

/// Forms may send more or less at the beginning and at the end, so it is the second half of a run
/// that is compared.
#[test]
fn every_form_sends_the_bytes_of_its_traffic_once_it_is_under_way() {
    let whole = Run { steps: 2 * RUN.steps, ..RUN };
    let is_told = |form: &&AlgorithmForm| {
        let text = form.text();
        form.averages_in_rings() && !BEYOND_TRAFFIC.iter().any(|setting| text.contains(setting))
    };
    let mut forms_told = 0;
    for form in forms::forms().iter().filter(is_told) {
        for (_, codec) in form.codecs(RUN.elements as usize) {
            for graph in GRAPHS {
                let half = bytes(Run { graph, ..RUN }, form, &codec);
                let whole = bytes(Run { graph, ..whole }, form, &codec);
                let (sent, expected) = (whole.0 - half.0, whole.1 - half.1);
                assert_eq!(sent, expected, "{}, {codec}, {graph:?}", form.text());
            }
        }
        forms_told += 1;
    }
    assert!(forms_told > 2 * ALGORITHMS.len(), "{forms_told} forms");
}

#[test]
fn a_slow_worker_leaves_the_rate_of_the_others_within_one_percent_where_nobody_waits() {
    for entry in ALGORITHMS {
        let text = |slow: &str| {
            format!(
                "workers = 8\nsteps = 500\n[algorithm]\nname = \"{}\"\n[task]\nname = \"quadratic\"\n\
                 dimensions = 1000\ncurvature = {:?}\ntarget = {:?}\n[cluster]\ncompute_cv = 0.1\n{slow}",
                entry.meta.name,
                vec![[1.0]; 8],
                vec![[1.0]; 8],
            )
        };
        let (even, slow) = (plan(&text("")), plan(&text("slow = { \"3\" = 100.0 }")));
        let properties = even.setup.properties();
        if properties.budget != Budget::TotalGradients || properties.waits_for_peers {
            continue;
        }
        // Seconds per step of everybody but the slow one.
        let pace = |plan: &quelea_run::prepared::PreparedRun| {
            let outcome = Arm::Virtual.run(plan);
            let others = outcome.ranks.iter().filter(|rank| !rank.is_server && rank.rank != 3);
            let busy = |rank: &quelea_record::RankReport| {
                rank.compute_seconds + rank.exposed_seconds + rank.waiting_seconds
            };
            let (seconds, steps) =
                others.fold((0.0, 0), |(s, n), rank| (s + busy(rank), n + rank.steps));
            seconds / steps as f64
        };
        let ratio = pace(&slow) / pace(&even);
        assert!((ratio - 1.0).abs() < 0.01, "{}: {ratio}", entry.meta.name);
    }
}

#[test]
fn one_percent_of_the_elements_are_less_than_two_and_a_half_percent_of_the_bytes() {
    for row in ["choco", "sync-ps"] {
        let sent = |codec: &str| -> u64 {
            let text = format!(
                "workers = 4\nsteps = 5\n[algorithm]\nname = \"{row}\"\n[codec]\n{codec}\n\
                 [task]\nname = \"quadratic\"\ndimensions = 100000\ncurvature = [[1], [2], [3], [4]]\n\
                 target = [[1], [-2], [0.5], [3]]"
            );
            Arm::Virtual.run(&plan(&text)).ranks.iter().map(|rank| rank.bytes_sent).sum()
        };
        let share = sent("name = \"top-k\"\nshare = 0.01") as f64 / sent("name = \"f32\"") as f64;
        assert!(share < 0.025, "{row}: {share}");
    }
}
