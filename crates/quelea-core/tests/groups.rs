//! Groups of a topology that average by all-reduce: the mean they find, the weights they follow,
//! and what the loss of a member leaves.

mod support;

use quelea_core::options::Options;
use quelea_core::random::Rng;
use quelea_core::topology::{self, GroupExchange, Schedule};
use support::{Case, Lab};

const FORMS: [&str; 3] = ["consensus", "adapt-then-combine", "combine-then-adapt"];

/// Runs to the end in an order of events that follows from `seed`; every worker's parameters.
fn end(case: &Case, seed: u64) -> Vec<Vec<f32>> {
    let mut lab = Lab::new(case);
    lab.run_to_end(&mut Rng::new(seed, "order", 0));
    lab.nodes.iter().map(|node| node.params().to_vec()).collect()
}

fn bits(models: &[Vec<f32>]) -> Vec<Vec<u32>> {
    models.iter().map(|model| model.iter().map(|x| x.to_bits()).collect()).collect()
}

fn near(found: &[f32], expected: &[f64], within: f64, what: &str) {
    for (x, y) in found.iter().zip(expected) {
        assert!((f64::from(*x) - y).abs() < within, "{what}: {x} is not {y}");
    }
}

#[test]
fn a_round_on_a_complete_graph_gives_everyone_the_bits_of_one_mean_that_is_near_the_exact_one() {
    for workers in [3, 4, 5, 8] {
        for (per_host, exchange) in [
            (1, GroupExchange::AllReduce),
            (2, GroupExchange::AllReduce),
            (2, GroupExchange::Collective("ring")),
            (2, GroupExchange::Collective("halving-doubling")),
        ] {
            let case = Case {
                steps: 1,
                topology: "complete",
                per_host,
                groups: exchange,
                ..Case::wide("d-psgd", workers, 7)
            };
            let models = end(&case.with("form", "adapt-then-combine"), 1);
            // The start is 0, so that worker i steps to η·a_i·t_i.
            let case = Case::wide("d-psgd", workers, 7);
            let step =
                |i: usize, d: usize| case.learning_rate * case.curvature[i][d] * case.target[i][d];
            let mean = |d| (0..workers).map(|i| step(i, d)).sum::<f64>() / workers as f64;
            let expected: Vec<f64> = (0..7).map(mean).collect();
            let what = format!("{workers} workers, {per_host} per host, {exchange:?}");
            // A few units in the last place of numbers below 0.1.
            near(&models[0], &expected, 2e-8, &what);
            assert!(bits(&models).windows(2).all(|pair| pair[0] == pair[1]), "{what}");
        }
    }
}

fn schedule(name: &str, workers: usize, per_host: usize) -> Schedule {
    let entry = topology::find(name).expect("in the table");
    let options = Options::defaults(entry.meta.options);
    let hosts: Vec<u32> = (0..workers).map(|worker| (worker / per_host) as u32).collect();
    let request =
        topology::TopologyRequest { hosts: &hosts, seed: 1, options: &options, text: None };
    entry.build(&request).expect("it fits")
}

/// `x_i ← Σ_j W_ij x_j − η·a_i(x_i − t_i)` in double precision, over the rows of the topology.
fn consensus(case: &Case, schedule: &Schedule) -> Vec<Vec<f64>> {
    let dimensions = case.target[0].len();
    let mut models = vec![vec![0.0; dimensions]; case.workers];
    for step in 0..case.steps {
        let round = schedule.round(step);
        let after = |i: usize, d: usize| {
            let mixed: f64 = round.rows()[i].iter().map(|(j, w)| w * models[*j][d]).sum();
            mixed - case.learning_rate * case.curvature[i][d] * (models[i][d] - case.target[i][d])
        };
        models =
            (0..case.workers).map(|i| (0..dimensions).map(|d| after(i, d)).collect()).collect();
    }
    models
}

#[test]
fn d_psgd_follows_the_weights_of_alternating_exponential_rings_whatever_the_order_of_events() {
    for (workers, per_host) in [(4, 2), (8, 2), (8, 4), (12, 3), (16, 4)] {
        let case =
            Case { steps: 11, topology: "aer", per_host, ..Case::wide("d-psgd", workers, 7) };
        let expected = consensus(&case, &schedule("aer", workers, per_host));
        let models = end(&case, 1);
        for (model, expected) in models.iter().zip(&expected) {
            near(model, expected, 1e-6, &format!("{workers} workers, {per_host} per host"));
        }
        for seed in 2..8 {
            assert_eq!(bits(&end(&case, seed)), bits(&models), "{workers} workers, seed {seed}");
        }
    }
}

#[test]
fn sending_one_by_one_gives_the_same_models_up_to_rounding() {
    for algorithm in ["d-psgd", "d-amsgrad", "decentlam", "qg-dmsgd", "gradient-tracking"] {
        let case = Case { steps: 20, topology: "aer", per_host: 4, ..Case::wide(algorithm, 8, 7) };
        let momentum = vec![("momentum", quelea_core::options::Value::Number(0.5))];
        let case = Case { optimizer: momentum, ..case };
        let sent = end(&Case { groups: GroupExchange::Send, ..case.clone() }, 1);
        for (a, b) in end(&case, 1).iter().zip(&sent) {
            let b: Vec<f64> = b.iter().map(|x| f64::from(*x)).collect();
            near(a, &b, 2e-5, algorithm);
        }
    }
}

#[test]
fn pairs_and_neighbourhoods_that_are_no_groups_keep_their_bits() {
    for topology in ["one-peer-ring", "one-peer-hypercube", "ring", "exponential", "torus"] {
        let case = Case { steps: 12, topology, ..Case::wide("d-psgd", 8, 7) };
        let sent = Case { groups: GroupExchange::Send, ..case.clone() };
        assert_eq!(bits(&end(&case, 1)), bits(&end(&sent, 1)), "{topology}");
    }
}

#[test]
fn tracking_in_groups_finds_the_optimum_of_unequal_workers() {
    for form in ["diging", "semi-atc", "atc"] {
        for topology in ["complete", "aer"] {
            let case = Case::reference("gradient-tracking").with("form", form);
            let case = Case { steps: 6000, topology, per_host: 2, learning_rate: 0.02, ..case };
            for model in end(&case, 1) {
                near(&model, &[1.05], 5e-6, &format!("{form} on {topology}"));
            }
        }
    }
}

#[test]
fn a_member_of_a_group_sends_less_than_two_models() {
    let bytes = |groups| {
        let case = Case { steps: 10, topology: "complete", groups, ..Case::wide("d-psgd", 8, 64) };
        let mut lab = Lab::new(&case);
        lab.run_to_end(&mut Rng::new(1, "order", 0));
        lab.sent.iter().sum::<u64>()
    };
    let (models, rounds) = (8 * 64 * 4, 10);
    assert_eq!(bytes(GroupExchange::Send), rounds * 7 * models);
    assert_eq!(bytes(GroupExchange::AllReduce), rounds * models * 2 * 7 / 8);
}

/// Learns for three steps, then only averages.
fn at_first(step: u64) -> f64 {
    if step < 3 { 1.0 } else { 0.0 }
}

#[test]
fn survivors_of_a_broken_group_finish_and_agree() {
    let algorithms = ["d-amsgrad", "decentlam", "qg-dmsgd", "gradient-tracking", "gossip-pga"];
    let mut cases: Vec<Case> =
        FORMS.map(|form| Case::wide("d-psgd", 8, 7).with("form", form)).to_vec();
    cases.extend(algorithms.map(|algorithm| Case::wide(algorithm, 8, 7)));
    cases.push(Case::wide("gradient-tracking", 8, 7).with("form", "atc"));
    for case in cases {
        for (topology, per_host) in [("complete", 1), ("complete", 4), ("aer", 2), ("aer", 4)] {
            for seed in 0..40 {
                let case =
                    Case { steps: 14, topology, per_host, schedule: at_first, ..case.clone() };
                let lab = support::lose_two(&case, seed);
                let living = lab.living_workers();
                assert_eq!(living.len(), 6);
                let what = format!("{} on {topology}, seed {seed}", case.algorithm);
                for rank in &living {
                    let params = lab.nodes[*rank].params();
                    assert!(params.iter().all(|x| x.is_finite()), "{what}");
                    if topology == "complete" {
                        assert_eq!(params, lab.nodes[living[0]].params(), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_group_that_cannot_be_rebuilt_goes_on_by_sending() {
    // Seven workers on four hosts are no alternating exponential ring.
    let case = Case { steps: 20, topology: "aer", per_host: 2, ..Case::wide("d-psgd", 8, 7) };
    let mut lab = Lab::new(&case);
    let mut rng = Rng::new(3, "loss", 0);
    lab.run_while(&mut rng, |lab| lab.nodes.iter().all(|node| node.step() < 6));
    lab.crash(5);
    (0..8).for_each(|rank| lab.tell_view(rank));
    lab.run_to_end(&mut rng);
    for rank in lab.living_workers() {
        assert_eq!(lab.nodes[rank].step(), 20);
    }
}
