//! Slow, lost, cut-off and paused ranks; delayed, doubled and dropped messages.

#[allow(dead_code, reason = "each test file uses its own part")]
mod common;

use common::{Case, SMALL, Shape, nanoseconds};
use quelea_core::message::Rank;
use quelea_core::random::Rng;
use quelea_core::time::Time;
use quelea_record::{Outcome, RankReport};
use quelea_sim::{Crash, Flight, Pause, PlainRule, RankPartition, Rule, SimError, Verdict};

/// All algorithms of the table, on a small cluster where steps take about a millisecond.
fn every_algorithm(workers: usize) -> impl Iterator<Item = Case> {
    quelea_core::algorithms::ALGORITHMS.iter().map(move |entry| {
        let servers = if entry.server.is_some() { 2 } else { 0 };
        let shape = Shape { workers, servers, len: 12, buckets: 2, steps: 20 };
        Case::of(entry, shape).on(|cluster| {
            cluster.compute_ms = 1.0;
            cluster.detect_ms = 3.0;
        })
    })
}

fn bits(outcome: &Outcome) -> Vec<Vec<u32>> {
    let of = |rank: &RankReport| -> Vec<u32> { rank.params.iter().map(|x| x.to_bits()).collect() };
    outcome.ranks.iter().map(of).collect()
}

#[test]
fn the_same_seed_gives_the_same_run_whatever_the_threads() {
    for case in every_algorithm(5) {
        let name = case.setup.entry.meta.name;
        let with = |threads, seed| {
            let mut case = Case::of(
                case.setup.entry,
                Shape {
                    workers: 5,
                    servers: if case.setup.entry.server.is_some() { 2 } else { 0 },
                    // Large enough to be worth a thread.
                    len: 30_000,
                    buckets: 3,
                    steps: 4,
                },
            )
            .on(|cluster| {
                cluster.compute_cv = 0.3;
                cluster.threads = threads;
            });
            case.setup.seed = seed;
            case.run()
        };
        let once = with(1, 1);
        assert_eq!(once, with(1, 1), "{name}");
        assert_eq!(once, with(3, 1), "{name}");
        assert_ne!(once.clock_seconds, with(1, 2).clock_seconds, "{name}");
    }
}

#[test]
fn synchronous_algorithms_give_the_same_bits_under_any_timing() {
    for case in every_algorithm(5).filter(|case| case.setup.properties().synchronous) {
        let plain = bits(&case.run());
        let odd = case.on(|cluster| {
            cluster.compute_cv = 1.0;
            cluster.slow.insert(3, 7.0);
            cluster.host_bandwidth_gbps.insert(1, 0.001);
            cluster.faults.rules = vec![Rule::function(|flight: &Flight| {
                Verdict::Delay(Time(Rng::new(5, "delay", flight.number).below(3_000_000)))
            })];
        });
        assert_eq!(bits(&odd.run()), plain, "{}", odd.setup.entry.meta.name);
    }
}

#[test]
fn a_slow_worker_sets_the_pace_only_where_others_wait_for_it() {
    for case in every_algorithm(4) {
        let properties = case.setup.properties();
        let plain = case.run();
        let slow = case.on(|cluster| {
            cluster.slow.insert(0, 10.0);
        });
        let slowed = slow.run();
        let ratio = slowed.clock_seconds / plain.clock_seconds;
        let name = slow.setup.entry.meta.name;
        if properties.waits_for_peers {
            assert!(ratio > 4.0, "{name}: {ratio}");
            assert!(slowed.ranks[1].waiting_seconds > 0.0, "{name}");
        } else {
            assert!(ratio < 2.0, "{name}: {ratio}");
            assert!(slowed.ranks[1].steps > 20 && slowed.ranks[0].steps < 20, "{name}");
        }
    }
}

#[test]
fn a_run_survives_crashes_at_any_moment_with_a_second_one_soon_after() {
    for case in every_algorithm(5) {
        let name = case.setup.entry.meta.name;
        let mut case = case;
        for moment in 0..60 {
            let at_ms = 0.13 + f64::from(moment) * 0.37;
            // Before the first loss is noticed, around that time, and after it.
            let second_ms = at_ms + [0.05, 2.95, 3.2, 4.7][moment as usize % 4];
            case.cluster.faults.crashes =
                vec![Crash { rank: 1, at_ms }, Crash { rank: 3, at_ms: second_ms }];
            let outcome = case.try_run().unwrap_or_else(|e| panic!("{name} at {at_ms} ms: {e}"));
            assert_eq!(outcome.warnings, [""; 0], "{name} at {at_ms} ms");
            let living = outcome.ranks.iter().filter(|rank| !rank.lost && !rank.is_server);
            assert!(living.clone().count() >= 3, "{name} at {at_ms} ms");
            assert!(living.flat_map(|rank| &rank.params).all(|x| x.is_finite()), "{name}");
        }
    }
}

/// Any costs, any crashes but of the last worker, by seed.
fn random_case(entry: &'static quelea_core::algorithms::Entry, seed: u64) -> Case {
    let mut rng = Rng::new(seed, "random case", 0);
    let mut pick = |choices: &[f64]| choices[rng.below(choices.len() as u64) as usize];
    let workers = pick(&[2.0, 3.0, 4.0, 5.0, 8.0]) as usize;
    let servers = if entry.server.is_some() { pick(&[1.0, 2.0]) as usize } else { 0 };
    let (buckets, steps) = (pick(&[1.0, 2.0, 3.0]) as usize, pick(&[1.0, 5.0, 20.0]) as u64);
    let mut case = Case::of(entry, Shape { workers, servers, len: 12, buckets, steps });
    case.setup.seed = seed;
    let cluster = &mut case.cluster;
    cluster.compute_ms = 1.0;
    cluster.compute_cv = pick(&[0.0, 0.3, 1.0]);
    cluster.latency_us = pick(&[0.0, 50.0, 3000.0]);
    cluster.bandwidth_gbps = pick(&[0.001, 10.0]);
    cluster.detect_ms = pick(&[0.0, 0.5, 3.0, 20.0]);
    cluster.slow.insert(0, pick(&[1.0, 1.0, 7.0]));
    cluster.link_messages = pick(&[0.0, 0.0, 1.0, 3.0]) as u32;
    cluster.handoff_send_us = pick(&[0.0, 300.0]);
    cluster.handoff_receive_us = pick(&[0.0, 200.0]);
    cluster.reduce_gbs = pick(&[0.0, 0.0001]);
    cluster.collective_fixed_us = pick(&[0.0, 200.0]);
    cluster.start_barrier = pick(&[0.0, 1.0]) > 0.0;
    cluster.faults.pauses = vec![Pause { rank: 0, from_ms: 4.0, until_ms: 9.0 }];
    let longest = pick(&[0.0, 5e6]) as u64 + 1;
    cluster.faults.rules = vec![Rule::function(move |flight: &Flight| {
        Verdict::Delay(Time(Rng::new(seed, "delay", flight.number).below(longest)))
    })];
    for rank in 1..workers as u32 {
        let at_ms = rng.uniform() * 40.0;
        cluster.faults.crashes.push(Crash { rank, at_ms });
    }
    case
}

#[test]
fn no_mixture_of_costs_delays_and_crashes_makes_a_run_hang() {
    for entry in quelea_core::algorithms::ALGORITHMS {
        for seed in 0..150 {
            let case = random_case(entry, seed);
            let name = format!("{}, seed {seed}", entry.meta.name);
            let outcome = case.try_run().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(outcome.warnings, [""; 0], "{name}");
            if entry.meta.name == "allreduce" {
                let bits = bits(&outcome);
                let living = outcome.ranks.iter().filter(|rank| !rank.lost);
                assert!(
                    living.map(|rank| &bits[rank.rank as usize]).all(|b| *b == bits[0]),
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn what_is_on_its_way_stays_bounded_when_workers_never_wait() {
    let peaks = |steps| {
        let shape = Shape { workers: 8, servers: 1, len: 1000, buckets: 1, steps };
        let case = Case::new("aladdin", shape).on(|cluster| {
            // The server's card needs 2.3 ms for what the workers compute in 1 ms.
            cluster.compute_ms = 1.0;
            cluster.bandwidth_gbps = 0.113;
        });
        let outcome = case.run();
        assert_eq!(outcome.clock_seconds, steps as f64 * 1e-3, "nobody waits");
        let series = &outcome.in_flight.series;
        let late = series[series.len() / 2..].iter().map(|peak| peak.messages).max();
        let early = series[..series.len() / 2].iter().map(|peak| peak.messages).max();
        (early, late)
    };
    let (early, late) = peaks(100);
    assert!(early <= Some(24) && late <= early, "{early:?} {late:?}");
    assert_eq!(peaks(800), (early, late));
}

#[test]
fn a_server_that_never_answers_leaves_independent_runs_and_a_warning() {
    let shape = Shape { workers: 3, servers: 1, len: 10, buckets: 1, steps: 20 };
    let silent = PlainRule { from: Some(3), ..PlainRule::all(Verdict::Drop) };
    let case = Case::new("aladdin", shape).on(|c| c.faults.rules = vec![Rule::Plain(silent)]);
    let outcome = case.run();
    assert_eq!(outcome.clock_seconds, 2.0);
    assert_eq!(outcome.warnings.len(), 3, "{:?}", outcome.warnings);
    assert!(outcome.warnings[1].starts_with("rank 1 is not drained at the end; it awaits"));
    for (rank, report) in outcome.ranks[..3].iter().enumerate() {
        let alone = rank as f64 * (1.0 - 0.9f64.powi(20));
        assert!((f64::from(report.params[0]) - alone).abs() < 1e-5, "rank {rank}");
    }
}

#[test]
fn replicas_of_all_reduce_stay_equal_after_a_crash() {
    for moment in 0..40 {
        let case = Case::new("allreduce", Shape { buckets: 2, ..SMALL }).on(|cluster| {
            cluster.compute_ms = 1.0;
            cluster.detect_ms = 2.0;
            cluster.slow.insert(2, 1.3);
            cluster.faults.crashes = vec![Crash { rank: 1, at_ms: f64::from(moment) * 0.31 }];
        });
        let outcome = case.run();
        let bits = bits(&outcome);
        assert_eq!((&bits[0], &bits[0]), (&bits[2], &bits[3]), "moment {moment}");
        assert!(outcome.ranks[1].lost);
    }
}

#[test]
fn a_lost_server_ends_the_run_with_its_name() {
    let shape = Shape { workers: 2, servers: 2, len: 10, buckets: 1, steps: 20 };
    let case = Case::new("sync-ps", shape)
        .on(|c| c.faults.crashes = vec![Crash { rank: 3, at_ms: 150.0 }]);
    let error = case.try_run().expect_err("nobody else has its shard");
    assert_eq!(error, SimError::ServerLost { rank: Rank(3), at: Time::from_ms(150.0) });
    assert!(error.to_string().starts_with("server rank 3 was lost after 0.15 s"), "{error}");
}

#[test]
fn when_all_workers_are_lost_the_last_one_is_named() {
    let crashes = (0..4).map(|rank| Crash { rank, at_ms: 10.0 + f64::from(rank) }).collect();
    let case = Case::new("d-psgd", SMALL).on(|c| c.faults.crashes = crashes);
    let error = case.try_run().expect_err("nobody is left");
    assert_eq!(error, SimError::AllWorkersLost { rank: Rank(3), at: Time::from_ms(13.0) });
}

#[test]
fn a_dropped_message_of_a_synchronous_algorithm_is_a_deadlock_that_names_who_awaits_what() {
    let dropped = |flight: &Flight| match (flight.from.0, flight.to.0, flight.time.0) {
        (2, 1, 400_000_000..) => Verdict::Drop,
        _ => Verdict::Pass,
    };
    let case = Case::new("d-psgd", SMALL).on(|c| c.faults.rules = vec![Rule::function(dropped)]);
    let error = case.try_run().expect_err("rank 1 waits for ever");
    let SimError::Deadlock { stuck, .. } = &error else { panic!("{error}") };
    assert_eq!(stuck.len(), 4, "all depend on each other");
    assert_eq!(stuck[1].awaits[0].from, Rank(2));
    assert!(error.to_string().contains("rank 1 at step 4 awaits its model from rank 2"), "{error}");
}

#[test]
fn a_deadlock_at_a_server_names_whose_gradient_is_missing() {
    let shape = Shape { workers: 3, servers: 1, len: 10, buckets: 1, steps: 20 };
    let lost = PlainRule { from: Some(1), from_ms: 250.0, ..PlainRule::all(Verdict::Drop) };
    let case = Case::new("sync-ps", shape).on(|c| c.faults.rules = vec![Rule::Plain(lost)]);
    let error = case.try_run().expect_err("the server waits for ever").to_string();
    assert!(error.contains("rank 0 at step 2 awaits the new model from rank 3"), "{error}");
    assert!(error.contains("awaits its gradient from rank 1"), "{error}");
}

#[test]
fn duplicates_and_reordering_do_not_change_what_is_learnt() {
    // Collectives rely on a transport that delivers once.
    let robust = ["aladdin", "asp", "d-psgd", "sync-ps"];
    for mut case in every_algorithm(4).filter(|case| robust.contains(&case.setup.entry.meta.name)) {
        let name = case.setup.entry.meta.name;
        let plain = case.run();
        let twice = PlainRule { share: 0.3, ..PlainRule::all(Verdict::Duplicate) };
        let late = PlainRule { share: 0.3, ..PlainRule::all(Verdict::Delay(Time::from_ms(2.0))) };
        case.cluster.faults.rules = vec![Rule::Plain(twice), Rule::Plain(late)];
        let disturbed = case.run();
        if case.setup.properties().synchronous {
            assert_eq!(bits(&disturbed), bits(&plain), "{name}");
        }
        let steps = |outcome: &Outcome| outcome.ranks.iter().map(|rank| rank.steps).sum::<u64>();
        assert_eq!(steps(&disturbed), steps(&plain), "{name}");
    }
}

#[test]
fn a_pause_delays_the_run_by_its_length() {
    let shape = Shape { workers: 1, ..SMALL };
    let pause = |from_ms, until_ms| {
        let pauses = vec![Pause { rank: 0, from_ms, until_ms }];
        Case::new("allreduce", shape).on(|c| c.faults.pauses = pauses).clock_ns()
    };
    let plain = Case::new("allreduce", shape).clock_ns();
    assert_eq!(pause(150.0, 180.0), plain + 30_000_000);
    assert_eq!(pause(0.0, 1.0), plain + 1_000_000);
    assert_eq!(pause(1e6, 2e6), plain);
}

#[test]
fn a_rank_that_is_cut_off_for_long_is_taken_for_lost() {
    let partitions = vec![RankPartition { rank: 2, from_ms: 250.0, until_ms: f64::INFINITY }];
    let case = Case::new("d-psgd", SMALL).on(|c| c.faults.partitions = partitions);
    let outcome = case.run();
    assert!(outcome.ranks[2].lost && outcome.ranks[2].steps < 20);
    assert!(outcome.ranks.iter().all(|rank| rank.lost == (rank.rank == 2)));
    assert!(nanoseconds(outcome.clock_seconds) > 2_000_000_000);
}

#[test]
fn wrong_clusters_are_refused_before_anything_runs() {
    let refusal = |change: fn(&mut quelea_sim::Cluster)| {
        Case::new("d-psgd", SMALL).on(change).try_run().expect_err("refused").to_string()
    };
    assert_eq!(
        refusal(|c| c.slow = [(4, 2.0)].into()),
        "`cluster.slow` = { 4 = … }: there are 4 workers, numbered from 0"
    );
    assert!(refusal(|c| c.host_bandwidth_gbps = [(9, 2.0)].into()).contains("no rank lives there"));
    assert!(refusal(|c| c.bandwidth_gbps = f64::NAN).contains("bandwidth_gbps"));
    let endless = refusal(|c| {
        c.compute_ms = 3e9;
        c.slow = [(1, 1e6)].into();
    });
    assert!(endless.ends_with("the run would exceed ten years"), "{endless}");
    assert!(refusal(|c| c.faults.crashes = vec![Crash { rank: 7, at_ms: 1.0 }]).contains("= 7"));
}
