//! What every row of the table buys: convergence, the mean, exact bytes, a slow worker.
//!
//! Determinism, crashes and timing of every row are tested beside the virtual cluster itself.

use std::path::Path;

use conformance::bytes::CountedRun;
use conformance::forms::{self, AlgorithmForm};
use conformance::matrix::{self, Data};
use conformance::suite::{GRAPHS, RUN, Suite};
use conformance::{Arm, plan};
use quelea_core::algorithms::ALGORITHMS;

/// Options of forms that differ enough to be tested apart, beside the defaults.
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
            "self_update = false\nalpha = 1.0",
        ],
        "allreduce" => &["collective = \"halving-doubling\"", "collective = \"hierarchical\""],
        "ad-psgd" => &["averaging = \"active\""],
        "asp" => &["scale = \"staleness\"", "collect = 2", "scale = \"staleness\"\ncollect = 4"],
        "bmuf" => &["form = \"nesterov\"", "base = \"sgp\""],
        "diloco" | "slowmo" => &["base = \"sgp\""],
        "eamsgd" | "easgd" => &["form = \"synchronous\""],
        "local-sgd" => &["start_step = 500", "buffers = \"average\""],
        "ssp" => &["staleness = 0"],
        "sync-ps" => &[
            "backup = 2",
            "aggregate = \"multi-krum\"",
            "pre_aggregate = \"bucketing\"",
            "lazy = \"parameters\"",
        ],
        "choco" => &["form = \"after-step\""],
        "sgp" => &["overlap = 1", "overlap = 2", "overlap = 2\nsends = \"every-step\""],
        "d-psgd" => {
            &["form = \"adapt-then-combine\"", "form = \"combine-then-adapt\"", "period = 3"]
        }
        _ => &[],
    };
    // The paper's momentum of 0.99 is for learning rates that are far smaller than this suite's.
    let keys = if name == "eamsgd" { "momentum = 0.9\n" } else { "" };
    std::iter::once(keys.to_string())
        .chain(more.iter().map(|key| format!("{keys}{key}\n")))
        .collect()
}

#[test]
fn every_row_learns_the_embedded_data_iid_and_dirichlet() {
    for entry in ALGORITHMS {
        for keys in variants(entry.meta.name) {
            Suite::of(entry).with_keys(&keys).learns_equal_and_unequal_data();
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
    for entry in ALGORITHMS {
        Suite::of(entry).keeps_the_mean_if_it_says_so();
    }
}

#[test]
fn every_algorithm_sends_exactly_the_bytes_of_its_traffic_with_every_codec() {
    for entry in ALGORITHMS {
        Suite::of(entry).sends_the_bytes_of_its_traffic();
    }
}

/// Settings that change what is sent, and of which [`quelea_core::algorithms::Traffic`] says nothing.
const BEYOND_TRAFFIC: [&str; 8] = [
    // Averages at every step until the learning rate drops, which it does not here.
    "after_drop = true",
    // No acknowledgements.
    "barrier = true",
    // The second vector in a message of its own.
    "form = \"atc\"",
    // Acknowledgements.
    "free_running = true",
    // Gradients that have changed little are not sent.
    "lazy = \"gradient\"",
    "lazy = \"parameters\"",
    // Mixing is reported too.
    "track_mean = true",
    // A period that follows the loss.
    "warmup_steps = ",
];

/// Forms may send more or less at the beginning and at the end, so it is the second half of a run
/// that is compared.
#[test]
fn every_form_sends_the_bytes_of_its_traffic_once_it_is_under_way() {
    let whole = CountedRun { steps: 2 * RUN.steps, ..RUN };
    let is_told = |form: &&AlgorithmForm| {
        let text = form.text();
        form.averages_in_rings() && !BEYOND_TRAFFIC.iter().any(|setting| text.contains(setting))
    };
    let mut forms_told = 0;
    for form in forms::forms().iter().filter(is_told) {
        for (_, codec) in form.codecs(RUN.elements as usize) {
            for graph in GRAPHS {
                let suite = Suite::of(form.entry);
                let half = suite.bytes(CountedRun { graph, ..RUN }, form, &codec);
                let whole = suite.bytes(CountedRun { graph, ..whole }, form, &codec);
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
        Suite::of(entry).does_not_wait_for_a_slow_worker_unless_it_says_so();
    }
}

/// The properties that other tests check for the built-in algorithms in other ways.
#[test]
fn every_algorithm_passes_the_rest_of_the_suite() {
    for entry in ALGORITHMS {
        let suite = Suite::of(entry);
        suite.is_described();
        suite.gives_the_same_run_every_time();
        suite.survives_delays_and_lost_workers();
        suite.resumes_from_every_checkpoint();
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
