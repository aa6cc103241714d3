//! Every topology, many sizes: weights, catalogue values, reports, messages.

use std::collections::BTreeSet;
use std::f64::consts::TAU;

use proptest::prelude::*;

use super::*;
use crate::options::{Options, Value};
use crate::random::Rng;

/// A topology of `n` workers, four to a host for `aer`.
pub(super) fn build(name: &str, n: usize) -> Schedule {
    try_build(name, n).expect("it exists for this number of workers")
}

fn try_build(name: &str, n: usize) -> Result<Schedule, TopologyError> {
    let hosts: Vec<u32> = (0..n as u32).map(|i| i / 4).collect();
    build_on(name, &hosts, None)
}

fn build_on(name: &str, hosts: &[u32], text: Option<&str>) -> Result<Schedule, TopologyError> {
    let entry = find(name).expect("it is in the table");
    let options = Options::defaults(entry.meta.options);
    entry.build(&TopologyRequest { hosts, seed: 7, options: &options, text })
}

/// Every topology of the table for every of these sizes for which it exists.
pub(super) fn cases(
    sizes: impl IntoIterator<Item = usize> + Clone,
) -> impl Iterator<Item = (&'static str, Schedule)> {
    let of = move |entry: &'static Entry| {
        let schedules =
            sizes.clone().into_iter().filter_map(|n| try_build(entry.meta.name, n).ok());
        schedules.map(|schedule| (entry.meta.name, schedule)).collect::<Vec<_>>()
    };
    TOPOLOGIES.iter().flat_map(of)
}

fn rho(name: &str, n: usize) -> f64 {
    let report = report(&build(name, n));
    assert_eq!(report.period, Some(1));
    report.rho
}

fn period_rho(name: &str, n: usize) -> f64 {
    report(&build(name, n)).period_rho.expect("it has a period")
}

fn assert_near(measured: f64, expected: f64, tolerance: f64) {
    assert!((measured - expected).abs() <= tolerance, "{measured} instead of {expected}");
}

#[test]
fn rows_are_in_order_and_found_by_name() {
    assert!(TOPOLOGIES.is_sorted_by(|a, b| a.meta.name < b.meta.name));
    assert_eq!(find("ring").unwrap().meta.name, "ring");
    assert_eq!(find("rnig").unwrap_err(), Some("ring"));
    assert_eq!(find("one_peer_exponental").unwrap_err(), Some("one-peer-exponential"));
    assert_eq!(find("butterfly").unwrap_err(), None);
}

#[test]
fn every_topology_but_a_few_exists_for_every_number_of_workers() {
    let missing = |entry: &Entry, n| try_build(entry.meta.name, n).is_err();
    for entry in TOPOLOGIES {
        let missing: Vec<usize> = (1..=33).filter(|n| missing(entry, *n)).collect();
        match entry.meta.name {
            "custom" => assert_eq!(missing.len(), 33, "there is no file"),
            "bipartite-exponential" => assert!(missing.iter().all(|n| n % 2 == 1)),
            "aer" => assert!((1..=4).chain([8, 16, 32]).all(|n| !missing.contains(&n))),
            name => assert!(missing.is_empty(), "{name}: {missing:?}"),
        }
    }
}

#[test]
fn one_worker_alone_keeps_its_vector() {
    for (name, schedule) in cases([1]) {
        for step in 0..5 {
            assert_eq!(schedule.round(step).rows(), [vec![(0, 1.0)]], "{name}");
        }
        let report = report(&schedule);
        assert_eq!((report.rho, report.transient_iid), (0.0, Some(0.0)), "{name}");
    }
}

#[test]
fn rows_of_the_table_say_what_the_rounds_do() {
    for (name, schedule) in cases([8, 12, 16]) {
        let report = report(&schedule);
        let measured = TopologyProperties {
            is_static: report.is_static,
            is_symmetric: report.is_symmetric,
            is_directed: report.is_directed,
        };
        assert_eq!(find(name).unwrap().properties, Some(measured), "{name}");
    }
}

#[test]
fn closed_forms_of_rho() {
    for n in 3..=20 {
        let modes = (1..n).map(|k| (1.0 + 2.0 * (TAU * k as f64 / n as f64).cos()).abs() / 3.0);
        assert_near(rho("ring", n), modes.fold(0.0, f64::max), 1e-12);
    }
    for n in 1..=20 {
        assert_eq!(rho("complete", n), 0.0);
        assert_near(rho("star", n), if n == 2 { 0.0 } else { 1.0 - 1.0 / n as f64 }, 1e-9);
    }
    for n in [2, 4, 6, 8, 10, 12, 16, 24, 32, 100] {
        let m = f64::from(usize::next_power_of_two(n).ilog2());
        assert_near(rho("exponential", n), 1.0 - 2.0 / (1.0 + m), 1e-12);
    }
    for m in 1..=6 {
        let m = f64::from(m);
        assert_near(rho("hypercube", 2f64.powf(m) as usize), (m - 1.0) / (m + 1.0), 1e-12);
    }
    for (n, rows, columns) in [(9, 3, 3), (12, 3, 4), (16, 4, 4), (25, 5, 5), (32, 4, 8)] {
        let wave = |k: usize, side: usize| 2.0 * (TAU * k as f64 / side as f64).cos();
        let modes = (1..n).map(|mode| {
            (1.0 + wave(mode / columns, rows) + wave(mode % columns, columns)).abs() / 5.0
        });
        assert_near(rho("torus", n), modes.fold(0.0, f64::max), 1e-12);
    }
}

#[test]
fn a_directed_ring_contracts_by_the_cosine_of_half_a_hop() {
    // W = (I + shift)/2 is normal, with eigenvalues (1 + e^(2πik/n))/2 of magnitude |cos(πk/n)|.
    for n in 2..=40 {
        let round = build("directed-ring", n).round(0);
        let previous = |i: usize| (i + n - 1) % n;
        assert!((0..n).all(|i| round.weight(i, i) == 0.5 && round.weight(i, previous(i)) == 0.5));
        assert_near(rho("directed-ring", n), (TAU / 2.0 / n as f64).cos(), 1e-12);
    }
    let sent = &report(&build("directed-ring", 16)).rounds[0];
    assert_eq!((sent.in_degree_max, sent.out_degree_max), (1, 1));
}

#[test]
fn symmetric_exponential_graphs_have_the_spectrum_of_a_circulant() {
    let entry = find("symmetric-exponential").unwrap();
    for base in [2usize, 3, 4] {
        for n in 2..=70usize {
            let given = [("base".to_string(), Value::Number(base as f64))];
            let options = Options::check(entry.meta.options, given).unwrap();
            let hosts = vec![0; n];
            let request = TopologyRequest { hosts: &hosts, seed: 1, options: &options, text: None };
            let schedule = entry.build(&request).unwrap();
            // As in the public code: worker j is a neighbour of 0 if min(j, n − j) is a power.
            let is_power = |mut x: usize| {
                while x.is_multiple_of(base) {
                    x /= base;
                }
                x == 1
            };
            let near: Vec<usize> = (1..n).filter(|j| is_power((*j).min(n - j))).collect();
            assert_eq!(schedule.neighbours()[0], near, "{n}, base {base}");
            let weight = 1.0 / (near.len() + 1) as f64;
            let wave = |k: usize, j: usize| (TAU * (k * j) as f64 / n as f64).cos();
            let mode = |k| weight * (1.0 + near.iter().map(|j| wave(k, *j)).sum::<f64>());
            let expected = (1..n).map(|k| mode(k).abs()).fold(0.0, f64::max);
            assert_near(report(&schedule).rho, expected, 1e-9);
        }
    }
    let degree = |name: &str| report(&build(name, 64)).rounds[0].out_degree_max;
    assert_eq!((degree("symmetric-exponential"), degree("exponential")), (6, 6));
}

#[test]
fn catalogue_values_of_rho() {
    let table = [
        ("exponential", 7, 0.3536),
        ("exponential", 9, 0.4418),
        ("grid", 9, 0.7674),
        ("grid", 16, 0.8686),
        ("grid", 32, 0.9658),
        ("torus", 16, 0.6),
        ("torus", 25, 0.7236),
        ("torus", 32, 0.8828),
    ];
    for (name, n, expected) in table {
        assert_near(rho(name, n), expected, 5e-5);
    }
}

#[test]
fn weights_are_the_published_ones() {
    let weights = |name, n| -> BTreeSet<String> {
        let round = build(name, n).round(0);
        round.rows().iter().flatten().map(|(_, weight)| format!("{weight:.6}")).collect()
    };
    assert_eq!(weights("ring", 5), ["0.333333".to_string()].into());
    assert_eq!(weights("ring", 2), ["0.500000".to_string()].into());
    assert_eq!(weights("torus", 9), ["0.200000".to_string()].into());
    assert_eq!(weights("torus", 7), weights("ring", 7), "a torus of 1 × 7 is a ring");
    assert_eq!(weights("torus", 8), ["0.250000".to_string()].into(), "a side of 2: no double edge");
    assert_eq!(weights("hypercube", 8), ["0.250000".to_string()].into());
    assert_eq!(weights("star", 4), ["0.250000".to_string(), "0.750000".to_string()].into());
}

#[test]
fn period_products() {
    for n in [2, 4, 8, 16, 32, 64] {
        assert_eq!(period_rho("one-peer-exponential", n), 0.0);
        assert_eq!(period_rho("one-peer-hypercube", n), 0.0);
    }
    assert_near(period_rho("one-peer-exponential", 6), 0.2165, 5e-5);
    assert_near(period_rho("one-peer-exponential", 12), 0.2091, 5e-5);
    for n in [4, 6, 8, 10, 20] {
        assert_near(period_rho("one-peer-ring", n), (TAU / n as f64).cos().abs(), 1e-9);
    }
    for n in 3..=40 {
        assert!(period_rho("one-peer-hypercube", n) < 1.0, "{n}");
        assert!(period_rho("one-peer-exponential", n) < 0.5, "{n}");
        assert!(period_rho("one-peer-ring", n) < 1.0, "{n}");
    }
}

#[test]
fn odd_rings_leave_each_worker_out_once_a_period() {
    let schedule = build("one-peer-ring", 7);
    assert_eq!(schedule.period(), Some(7));
    let resting = |step| {
        let round = schedule.round(step);
        let alone: Vec<usize> = (0..7).filter(|i| round.rows()[*i].len() == 1).collect();
        assert_eq!(alone.len(), 1);
        alone[0]
    };
    assert_eq!((0..7).map(resting).collect::<Vec<_>>(), [6, 0, 1, 2, 3, 4, 5]);
}

fn groups_of(schedule: &Schedule, step: u64) -> Vec<Vec<usize>> {
    let rows = schedule.round(step);
    let groups: BTreeSet<Vec<usize>> =
        rows.rows().iter().map(|row| row.iter().map(|(j, _)| *j).collect()).collect();
    groups.into_iter().collect()
}

#[test]
fn aer_on_four_hosts_of_four_is_the_published_example() {
    let schedule = build("aer", 16);
    let span = |ranges: &[std::ops::RangeInclusive<usize>]| -> Vec<usize> {
        ranges.iter().cloned().flatten().collect()
    };
    assert_eq!(schedule.period(), Some(4));
    let slots = [
        vec![span(&[0..=3]), span(&[4..=7]), span(&[8..=15])],
        vec![span(&[0..=7]), span(&[8..=11]), span(&[12..=15])],
        vec![span(&[0..=3]), span(&[4..=7, 12..=15]), span(&[8..=11])],
        vec![span(&[0..=3, 8..=11]), span(&[4..=7]), span(&[12..=15])],
    ];
    for (step, groups) in slots.iter().enumerate() {
        assert_eq!(groups_of(&schedule, step as u64), *groups, "slot {step}");
    }
}

#[test]
fn aer_reaches_the_mean_in_a_period_from_an_even_slot_only() {
    for (hosts, workers) in [(2, 1), (2, 4), (4, 1), (4, 2), (8, 1), (8, 3), (16, 2)] {
        let places: Vec<u32> = (0..hosts * workers).map(|i| i / workers).collect();
        let schedule = build_on("aer", &places, None).unwrap();
        let period = schedule.period().unwrap() as u64;
        assert_eq!(period, 2 * u64::from(hosts.ilog2()));
        let from = |start: u64| {
            let rounds: Vec<_> = (start..start + period).map(|t| schedule.round(t)).collect();
            spectrum::product_rho(&rounds)
        };
        assert_eq!(from(0), 0.0, "{hosts} × {workers}");
        assert_eq!(from(2), 0.0);
        if hosts >= 4 {
            assert_near(from(1), 0.5, 1e-9);
        }
    }
}

#[test]
fn aer_on_two_hosts_averages_each_and_then_both() {
    let schedule = build_on("aer", &[5, 9, 5, 9], None).unwrap();
    assert_eq!(groups_of(&schedule, 0), [[0, 2], [1, 3]]);
    assert_eq!(groups_of(&schedule, 1), [[0, 1, 2, 3]]);
}

#[test]
fn random_matchings_contract_as_expected_on_average() {
    for (n, expected) in [(8, 6.0 / 14.0), (7, 0.5)] {
        let schedule = build("random-matching", n);
        assert_near(schedule.mean_square().unwrap(), expected, 1e-12);
        let mut rng = Rng::new(1, "test", n as u64);
        let mut sum = 0.0;
        for step in 0..20_000 {
            let mut x: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
            let before = variance(&x);
            x = mix(&schedule.round(step), &x);
            sum += variance(&x) / before;
        }
        assert_near(sum / 20_000.0, expected, 0.005);
    }
}

#[test]
fn random_matchings_are_functions_of_seed_and_step() {
    let (one, other) = (build("random-matching", 10), build("random-matching", 10));
    assert_eq!(one.period(), None);
    assert_eq!(one.round(1 << 40), other.round(1 << 40));
    assert_ne!(one.round(3), one.round(4));
    let entry = find("random-matching").unwrap();
    let request =
        TopologyRequest { hosts: &[0; 10], seed: 8, options: &Options::defaults(&[]), text: None };
    assert_ne!(entry.build(&request).unwrap().round(3), one.round(3));
}

#[test]
fn bipartite_exponential_joins_even_and_odd_workers_at_the_published_offsets() {
    let schedule = build("bipartite-exponential", 16);
    assert_eq!(schedule.neighbours()[0], [1, 3, 5, 7, 9, 11, 13, 15]);
    assert_eq!(
        build("bipartite-exponential", 32).neighbours()[0],
        [1, 3, 5, 9, 15, 17, 23, 27, 29, 31]
    );
    for (_, schedule) in cases([2, 4, 6, 20, 64]).filter(|(name, _)| name.starts_with("bip")) {
        assert!(schedule.pairs().partners == schedule.neighbours());
    }
}

#[test]
fn reports_count_models_and_bound_the_transient() {
    let ring = report(&build("ring", 16));
    let round = &ring.rounds[0];
    assert_eq!((round.in_degree_max, round.out_degree_max, round.models_sent_mean), (2, 2, 2.0));
    let expected = ring.rho.powi(4) * 4096.0 / (1.0 - ring.rho).powi(2);
    assert_near(ring.transient_iid.unwrap(), expected, 1e-6);
    assert!(ring.transient_non_iid > ring.transient_iid);

    let star = &report(&build("star", 9)).rounds[0];
    assert_eq!((star.out_degree_max, star.models_sent_mean), (8, 16.0 / 9.0));

    let exact = report(&build("one-peer-exponential", 8));
    assert_eq!((exact.period_rho, exact.transient_iid), (Some(0.0), None));
    assert!(exact.note.starts_with("the exact mean"));
    assert_eq!(exact.rounds.iter().map(|r| r.models_sent_mean).collect::<Vec<_>>(), [1.0; 3]);

    let pairs = report(&build("one-peer-ring", 8));
    assert_near(pairs.rho, (TAU / 8.0).cos().sqrt(), 1e-12);
    assert!(pairs.rounds.iter().all(|round| round.rho == 1.0));

    let random = report(&build("random-matching", 8));
    assert_near(random.rho, (6.0f64 / 14.0).sqrt(), 1e-12);
    assert_eq!((random.period_rho, random.rounds.len()), (None, 8));
}

#[test]
fn a_pure_rotation_is_reported_as_never_mixing() {
    let text = "0 -> 1 1\n1 -> 2 1\n2 -> 0 1\n";
    let report = report(&build_on("custom", &[0; 3], Some(text)).unwrap());
    assert_eq!((report.rho, report.transient_iid), (1.0, None));
    assert!(report.is_directed && !report.note.is_empty());
}

fn refusal(name: &str, hosts: &[u32]) -> String {
    build_on(name, hosts, None).unwrap_err().to_string()
}

#[test]
fn refusals_name_what_would_work() {
    assert_eq!(refusal("ring", &[]), "`ring` needs at least one worker");
    assert_eq!(
        refusal("bipartite-exponential", &[0; 7]),
        "`bipartite-exponential` needs an even number of workers: 7 workers do not work, 6 and 8 do"
    );
    assert_eq!(
        refusal("aer", &[0, 1, 2]),
        "`aer` needs a power of two hosts: 3 hosts do not work, 2 and 4 do"
    );
    assert_eq!(
        refusal("aer", &[0, 0, 1]),
        "`aer` needs equally many workers on each host: host 0 has 2, host 1 has 1; 4 workers on \
         these 2 hosts would do"
    );
    assert!(refusal("complete", &[0; 9000]).ends_with("9000 workers do not work, 8192 do"));
    assert!(refusal("one-peer-ring", &[0; 4001]).ends_with("4000 and 4002 do"));
    assert!(refusal("custom", &[0; 3]).starts_with("`custom` needs `file`"));
}

fn custom(text: &str, n: usize) -> Result<Schedule, String> {
    build_on("custom", &vec![0; n], Some(text)).map_err(|error| error.to_string())
}

#[test]
fn custom_files_give_edges_weights_and_rounds() {
    let path = custom("# a path\n0 1\n\n1 2 # the end\n", 3).unwrap();
    assert_eq!(path.neighbours(), [vec![1], vec![0, 2], vec![1]]);
    assert_eq!((path.round(5).weight(0, 1), path.round(5).weight(2, 1)), (1.0 / 3.0, 1.0 / 3.0));

    let rounds = custom("0 1 1/2\n---\n1 2 0.5\n", 3).unwrap();
    assert_eq!(rounds.period(), Some(2));
    assert_eq!(
        rounds.round(1).rows(),
        [vec![(0, 1.0)], vec![(1, 0.5), (2, 0.5)], vec![(1, 0.5), (2, 0.5)]]
    );

    let cycle = custom("0 -> 1 1/2\n1 -> 2 1/2\n2 -> 0 1/2\n", 3).unwrap();
    assert_eq!(cycle.round(0).rows()[1], [(0, 0.5), (1, 0.5)]);
    let matrix = custom("matrix\n.5 0 .5\n.5 .5 0\n0 .5 .5\n", 3).unwrap();
    assert_eq!(matrix.round(0), cycle.round(0));
}

#[test]
fn one_way_edges_without_weights_are_divided_evenly_for_methods_that_push() {
    let edges = |text: &str| {
        let options = Options::default();
        let request =
            TopologyRequest { hosts: &[0; 3], seed: 1, options: &options, text: Some(text) };
        find("custom").unwrap().build_edges(&request).map_err(|error| error.to_string())
    };
    let graph = edges("0 1\n1 -> 2\n2 -> 0\n").unwrap();
    let third = 1.0 / 3.0;
    assert_eq!(
        graph.round(0).rows(),
        [
            vec![(0, 0.5), (1, third), (2, 0.5)],
            vec![(0, 0.5), (1, third)],
            vec![(1, third), (2, 0.5)]
        ]
    );
    let back = edges("0 1\n0 -> 2\n").unwrap_err();
    assert!(back.contains("nothing ever gets from worker 2 to worker 0"), "{back}");
    let there = edges("0 1\n2 -> 0\n").unwrap_err();
    assert!(there.contains("nothing ever gets from worker 0 to worker 2"), "{there}");
    let both = custom("0 -> 1\n1 -> 0\n1 2\n", 3).unwrap();
    assert_eq!(both.round(0), custom("0 1\n1 2\n", 3).unwrap().round(0));
}

#[test]
fn custom_files_with_mistakes_are_refused_by_line() {
    let table = [
        (
            "",
            "line 1 of the topology file: the file says nothing; a line is `i j`, `i j weight`, `i -> j [weight]`, `matrix` or `---`",
        ),
        ("0 1\n---\n", "line 2 of the topology file: there is no round after the last `---`"),
        ("---\n0 1\n", "line 1 of the topology file: there is no round before this `---`"),
        ("0 1\n1 3\n", "line 2 of the topology file: there is no worker 3: the run has 3, 0 to 2"),
        (
            "0 1\n1 2 0.3\n",
            "line 2 of the topology file: a round gives weights to all of its edges or to none",
        ),
        ("0 1\n1 2\n1 0\n", "line 3 of the topology file: line 1 has given this edge already"),
        (
            "0 -> 1\n",
            "`custom`: round 0, row 0: the weights that worker 0 puts on others and itself sum to 0.5, not 1; only methods that push (`sgp`, and `gradient-tracking` in push form) take such one-way edges",
        ),
        (
            "1 1\n",
            "line 1 of the topology file: a worker's own weight is what its edges leave; give edges only",
        ),
        (
            "0 1 1/0\n",
            "line 1 of the topology file: `1/0` is not a weight: a number or fraction from 0 to 1",
        ),
        (
            "0 1 -0.1\n",
            "line 1 of the topology file: `-0.1` is not a weight: a number or fraction from 0 to 1",
        ),
        (
            "a b\n",
            "line 1 of the topology file: `a` is not a worker; a line is `i j`, `i j weight`, `i -> j [weight]`, `matrix` or `---`",
        ),
        (
            "0 1 2 3 4\n",
            "line 1 of the topology file: a line is `i j`, `i j weight`, `i -> j [weight]`, `matrix` or `---`",
        ),
        ("matrix\n1 0 0\n", "line 1 of the topology file: this matrix has 1 rows for 3 workers"),
        (
            "matrix\n1 0 0\n0 1\n0 0 1",
            "line 3 of the topology file: this row has 2 weights for 3 workers",
        ),
        (
            "0 1\n",
            "`custom`: nothing ever gets from worker 0 to worker 2: all rounds together do not connect them",
        ),
        (
            "matrix\n.5 .5 0\n.5 .5 0\n0 0 .9",
            "`custom`: round 0, row 2: the weights that worker 2 puts on others and itself sum to 0.9, not 1",
        ),
        (
            "0 1\n1 2\n---\n0 -> 1 1/2\n",
            "`custom`: round 1, column 0: the weights that all put on worker 0 sum to 1.5, not 1, so the mean would move",
        ),
        (
            "0 1 .7\n1 2 .7\n",
            "`custom`: round 0, row 1: worker 1 puts the weight -0.3999999999999999 on worker 1; weights are never negative",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(custom(text, 3).unwrap_err(), expected, "{text:?}");
    }
}

#[test]
fn rounds_of_different_sizes_are_refused() {
    let round = |n| Round::new((0..n).map(|i| vec![(i, 1.0)]).collect());
    let flaw = validate(&Schedule::periodic(vec![round(2), round(3)])).unwrap_err();
    assert_eq!(flaw, Flaw::NoWorker { round: 1, row: 2, worker: 2, last: 1 });
    let stray = Schedule::periodic(vec![Round::new(vec![vec![(4, 1.0)]])]);
    assert!(matches!(validate(&stray), Err(Flaw::NoWorker { worker: 4, .. })));
    let nan = Schedule::periodic(vec![Round::new(vec![vec![(0, f64::NAN)]])]);
    assert!(matches!(validate(&nan), Err(Flaw::Weight { .. })));
}

fn mix(round: &Round, x: &[f64]) -> Vec<f64> {
    round.rows().iter().map(|row| row.iter().map(|(j, weight)| weight * x[*j]).sum()).collect()
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

fn variance(x: &[f64]) -> f64 {
    x.iter().map(|value| (value - mean(x)).powi(2)).sum::<f64>() / x.len() as f64
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rounds_are_doubly_stochastic_for_any_size(row in 0..TOPOLOGIES.len(), n in 1usize..120, step in 0u64..1000) {
        let Ok(schedule) = try_build(TOPOLOGIES[row].meta.name, n) else { return Ok(()) };
        prop_assert_eq!(validate(&schedule), Ok(()));
        let round = schedule.round(step);
        let mut columns = vec![0.0; n];
        for weights in round.rows() {
            prop_assert!(weights.is_sorted_by(|a, b| a.0 < b.0));
            prop_assert!(weights.iter().all(|(_, weight)| *weight > 0.0));
            weights.iter().for_each(|(j, weight)| columns[*j] += weight);
            prop_assert!((weights.iter().map(|(_, weight)| weight).sum::<f64>() - 1.0).abs() < 1e-12);
        }
        prop_assert!(columns.iter().all(|sum| (sum - 1.0).abs() < 1e-12));
    }

    #[test]
    fn mixing_keeps_the_mean_and_contracts_by_rho(row in 0..TOPOLOGIES.len(), n in 2usize..40, seed: u64) {
        let Ok(schedule) = try_build(TOPOLOGIES[row].meta.name, n) else { return Ok(()) };
        let report = report(&schedule);
        let mut rng = Rng::new(seed, "start", 0);
        let mut x: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
        let (start, spread) = (mean(&x), variance(&x).sqrt());
        for period in 1..=3 {
            let before = variance(&x).sqrt();
            for step in 0..schedule.period().unwrap_or(1) as u64 {
                x = mix(&schedule.round(step), &x);
            }
            prop_assert!((mean(&x) - start).abs() < 1e-12);
            let distance = variance(&x).sqrt();
            prop_assert!(distance <= before + 1e-12);
            if let Some(rho) = report.period_rho {
                prop_assert!(distance <= rho.powi(period) * spread + 1e-12);
            }
        }
    }
}

#[test]
fn unknown_keys_of_a_topology_are_refused() {
    let given = [("fiel".to_string(), Value::Text("a".into()))];
    let error = Options::check(find("custom").unwrap().meta.options, given).unwrap_err();
    assert!(error.to_string().contains("did you mean `file`?"));
}
