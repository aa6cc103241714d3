//! Gossip between hosts with exact averages within a host: what it must be equal to.

use conformance::{ARMS, Arm, REFERENCE, bits, deployed, firsts, plan};
use quelea_core::algorithms::{ALGORITHMS, Entry, Traffic};
use quelea_core::options::Options;
use quelea_core::properties::TopologyRequirement;
use quelea_wire::HEADER_BYTES;

/// Rows that gossip, with a form of each that differs enough to be tested apart.
fn gossip() -> Vec<String> {
    let rows = ALGORITHMS.iter().filter(|entry| {
        (entry.properties)(&Options::defaults(entry.meta.options)).topology
            != TopologyRequirement::Nothing
    });
    let mut texts: Vec<String> =
        rows.map(|entry| format!("name = \"{}\"", entry.meta.name)).collect();
    for more in [
        "name = \"d-psgd\"\nform = \"adapt-then-combine\"",
        "name = \"d-psgd\"\nform = \"combine-then-adapt\"",
        "name = \"gradient-tracking\"\nform = \"atc\"",
        "name = \"gradient-tracking\"\nform = \"push\"",
        "name = \"choco\"\nform = \"after-step\"",
        "name = \"sgp\"\noverlap = 1",
        "name = \"sgp\"\nfree_running = true",
    ] {
        texts.push(more.to_string());
    }
    texts
}

fn is_synchronous(algorithm: &str) -> bool {
    plan(&scenario(algorithm, 6, "gossip", 1)).setup.properties().synchronous
}

/// Whether all workers also average exactly now and then.
fn has_rounds(algorithm: &str) -> bool {
    let setup = plan(&scenario(algorithm, 6, "gossip", 1)).setup;
    let traffic = (setup.entry.traffic)(&setup.options);
    matches!(traffic, Traffic::Gossip { average: Some(_), .. })
}

/// Six workers, five dimensions, several buckets, momentum.
fn scenario(algorithm: &str, hosts: usize, within: &str, steps: usize) -> String {
    let rows = |f: fn(usize, usize) -> f64| -> Vec<Vec<f64>> {
        (0..6).map(|i| (0..5).map(|j| f(i, j)).collect()).collect()
    };
    format!(
        "workers = 6\nsteps = {steps}\n[algorithm]\n{algorithm}\n[topology]\nwithin_host = \"{within}\"\n\
         [optimizer]\nlr = 0.02\nmomentum = 0.5\n[buckets]\nsize_mb = 0.000008\n\
         [cluster]\nhosts = {hosts}\ncompute_cv = 0.3\n\
         [task]\nname = \"quadratic\"\ncurvature = {:?}\ntarget = {:?}",
        rows(|i, j| 0.5 + ((i * 3 + j) % 4) as f64 / 2.0),
        rows(|i, j| ((i * 5 + j * 2) % 7) as f64 - 3.0),
    )
}

#[test]
fn one_worker_per_host_is_the_plain_method_bit_for_bit() {
    for algorithm in gossip().iter().filter(|algorithm| is_synchronous(algorithm)) {
        let run = |within| bits(&Arm::Virtual.run(&plan(&scenario(algorithm, 6, within, 40))));
        assert_eq!(run("average"), run("gossip"), "{algorithm}");
    }
}

#[test]
fn one_host_is_all_reduce() {
    for algorithm in gossip() {
        // Methods with another optimizer of their own do not take the same steps.
        if ["d-amsgrad", "decentlam", "qg-dmsgd"].iter().any(|own| algorithm.contains(own)) {
            continue;
        }
        let model = |text: &str| {
            let plan = plan(text);
            deployed(&plan, &Arm::Virtual.run(&plan))
        };
        let left = model(&scenario(&algorithm, 1, "average", 40));
        let right = model(&scenario("name = \"allreduce\"", 1, "gossip", 40));
        for (a, b) in left.iter().zip(right) {
            assert!((a - b).abs() < 1e-5, "{algorithm}: {a} is not {b}");
        }
    }
}

#[test]
fn workers_of_a_host_hold_the_same_bits_at_the_end() {
    for algorithm in gossip() {
        for hosts in [2, 4] {
            let outcome = Arm::Virtual.run(&plan(&scenario(&algorithm, hosts, "average", 40)));
            assert_eq!(outcome.warnings, [""; 0], "{algorithm}");
            let bits = bits(&outcome);
            for worker in 1..6 {
                let same_host = worker * hosts / 6 == (worker - 1) * hosts / 6;
                assert!(!same_host || bits[worker] == bits[worker - 1], "{algorithm}, {worker}");
            }
        }
    }
}

#[test]
fn all_arms_agree_bit_for_bit_where_the_method_is_synchronous() {
    for algorithm in gossip() {
        let plan = plan(&scenario(&algorithm, 3, "average", 30));
        let found = ARMS.map(|arm| bits(&arm.run(&plan)));
        if is_synchronous(&algorithm) {
            assert!(found.iter().all(|bits| *bits == found[0]), "{algorithm}");
        }
    }
}

/// `f_i(x) = ½ a_i (x − b_i)²`: the mean of workers 0 and 1 has curvature 1.5 and target −1, that of
/// workers 2 and 3 curvature 3.5 and target 13.5/7.
#[test]
fn four_workers_on_two_hosts_equal_two_workers_on_the_averaged_objectives() {
    let two = "[task]\nname = \"quadratic\"\ncurvature = [[1.5], [3.5]]\n\
               target = [[-1], [1.9285714285714286]]\n";
    for form in ["consensus", "adapt-then-combine"] {
        let algorithm = format!("[algorithm]\nname = \"d-psgd\"\nform = \"{form}\"\n");
        let hosts = "[topology]\nwithin_host = \"average\"\n[cluster]\nhosts = 2\n";
        let head = |workers: u64| format!("workers = {workers}\nsteps = 3000\n{algorithm}");
        let four = plan(&format!("{}{hosts}{REFERENCE}", head(4)));
        let two = plan(&format!("{}{two}", head(2)));
        let (four, two) = (firsts(&Arm::Virtual.run(&four)), firsts(&Arm::Virtual.run(&two)));
        for (worker, x) in four.iter().enumerate() {
            assert!((x - two[worker / 2]).abs() < 1e-6, "{form}: {x}, {two:?}");
        }
        // Averaging two workers exactly leaves no distance; in consensus form there is one.
        let apart = (two[0] - two[1]).abs();
        assert_eq!(apart > 0.01, form == "consensus", "{two:?}");
    }
}

/// Three workers on one host and one on the other: an exact method finds the optimum of the mean
/// over workers, 1.05, not of the mean over hosts.
#[test]
fn hosts_count_by_their_workers() {
    let file = conformance::TempFile::new("pair-of-hosts.txt", "0 1\n");
    for algorithm in ["extra", "exact-diffusion", "gradient-tracking"] {
        let text = format!(
            "workers = 4\nsteps = 6000\n[algorithm]\nname = \"{algorithm}\"\n[topology]\n\
             name = \"custom\"\nfile = \"{}\"\nwithin_host = \"average\"\n{REFERENCE}",
            file.path()
        );
        let mut plan = plan(&format!("{text}[cluster]\nhosts = 2"));
        let schedule = plan.setup.topology.as_ref().and_then(|make| make(&[0, 1]));
        let view = quelea_core::view::View::of_hosts(
            4,
            [0, 0, 0, 1].into(),
            schedule.expect("two hosts work"),
        );
        plan.setup.view = view.into();
        for x in firsts(&Arm::Virtual.run(&plan)) {
            assert!((x - 1.05).abs() < 3e-6, "{algorithm}: {x}");
        }
    }
}

#[test]
fn only_the_first_worker_of_a_host_sends_to_other_hosts() {
    // A ring of three hosts is a group: by all-reduce every leader would send less. Sent one by
    // one, the model goes to two others per step.
    let (steps, elements, header) = (30u64, 5u64, HEADER_BYTES as u64);
    let buckets = 3;
    let text = scenario("name = \"d-psgd\"", 3, "average", steps as usize);
    let text = text.replace("[topology]\n", "[topology]\ngroups = \"send\"\n");
    let outcome = Arm::Virtual.run(&plan(&text));
    let vector = buckets * header + 4 * elements;
    for rank in &outcome.ranks {
        let leads = rank.rank % 2 == 0;
        // Members: a gradient and one word at its end per step. Leaders: the model to two hosts
        // per step; to their member once more, for the start.
        let expected = if leads {
            2 * steps * vector + (steps + 1) * vector
        } else {
            steps * (vector + header)
        };
        assert_eq!(rank.bytes_sent, expected, "rank {}", rank.rank);
    }
}

#[test]
fn the_mean_is_kept_when_nothing_is_learnt() {
    for algorithm in gossip() {
        let text = |steps: u64| {
            format!(
                "workers = 4\nsteps = {steps}\n[algorithm]\n{algorithm}\n[optimizer]\nlr = 0.05\n\
                 [optimizer.schedule]\nname = \"step\"\nmilestones = [1]\ngamma = 0.0\n\
                 [topology]\nwithin_host = \"average\"\n[cluster]\nhosts = 2\n{REFERENCE}"
            )
        };
        if !plan(&text(1)).setup.properties().keeps_mean {
            continue;
        }
        let mean = |steps| firsts(&Arm::Virtual.run(&plan(&text(steps)))).iter().sum::<f64>() / 4.0;
        let (one, many) = (mean(1), mean(200));
        assert!(one != 0.0 && (one - many).abs() < 2e-5, "{algorithm}: {one}, {many}");
    }
}

#[test]
fn every_gossip_method_learns_between_hosts() {
    for algorithm in gossip() {
        let text = format!(
            "workers = 8\nsteps = 1500\n[algorithm]\n{algorithm}\n[optimizer]\nlr = 0.2\n\
             [topology]\nwithin_host = \"average\"\n[cluster]\nhosts = 4\n[task]\nname = \"logistic\"\n\
             batch = 16\npartition = \"dirichlet\"\nconcentration = 0.5"
        );
        let plan = plan(&text);
        let found = plan.problem.evaluate(&deployed(&plan, &Arm::Virtual.run(&plan)));
        assert!(found.loss < 0.14, "{algorithm}: loss {}", found.loss);
    }
}

fn losing(algorithm: &str, ranks: &[u32]) -> quelea_run::prepared::PreparedRun {
    let crash = |(place, rank)| format!("{{ rank = {rank}, at_ms = {} }}", 1030 + 150 * place);
    let crashes: Vec<String> = ranks.iter().enumerate().map(crash).collect();
    let text = format!(
        "workers = 4\nsteps = 6000\n[algorithm]\n{algorithm}\n[topology]\nwithin_host = \"average\"\n\
         {REFERENCE}[cluster]\nhosts = 2\ndetect_ms = 30\n[cluster.faults]\ncrashes = [{}]",
        crashes.join(", ")
    );
    plan(&text)
}

/// Without worker 1, whose objective pulls to −2, the optimum is 14.5/8; without both workers of
/// the second host it is that of the first host alone, −1; without worker 0, which leads the first
/// host, it is 9.5/9.
#[test]
fn after_a_loss_exact_methods_find_the_optimum_of_those_left() {
    for algorithm in ["extra", "exact-diffusion", "gradient-tracking"] {
        let name = format!("name = \"{algorithm}\"");
        for (lost, optimum) in
            [(&[1][..], 1.8125), (&[3, 2][..], -1.0), (&[2, 3][..], -1.0), (&[0][..], 9.5 / 9.0)]
        {
            for x in firsts(&Arm::Virtual.run(&losing(&name, lost))) {
                assert!((x - optimum).abs() < 3e-6, "{algorithm} without {lost:?}: {x}");
            }
        }
    }
}

#[test]
fn every_gossip_method_outlives_members_leaders_and_a_whole_host() {
    for algorithm in gossip() {
        let replaces = !has_rounds(&algorithm);
        let more = [&[0][..], &[2], &[0, 1], &[2, 0], &[0, 3]];
        let more = more.into_iter().filter(|_| replaces);
        for lost in [&[1][..], &[3][..], &[3, 2][..]].into_iter().chain(more) {
            let outcome = Arm::Virtual.run(&losing(&algorithm, lost));
            let living = firsts(&outcome);
            assert_eq!(living.len(), 4 - lost.len(), "{algorithm}");
            assert!(living.iter().all(|x| x.abs() < 3.0), "{algorithm}: {living:?}");
        }
    }
}

/// Rounds of averages over all are counted from the beginning, so nobody can come in later.
#[test]
fn where_nobody_can_take_over_the_loss_of_a_leader_ends_the_run_and_names_it() {
    for algorithm in gossip().iter().filter(|algorithm| has_rounds(algorithm)) {
        let plan = losing(algorithm, &[2]);
        let nowhere = &mut quelea_record::Silent;
        let result = quelea_sim::simulate(&plan.setup, &*plan.problem, &plan.cluster, nowhere);
        let words = result.expect_err("the host has no leader").to_string();
        assert!(words.starts_with("rank 2 was lost after 1.03 s; it gossips for"), "{words}");
    }
}

#[test]
fn rows_that_do_not_gossip_refuse_to_do_it_between_hosts() {
    let needs = |entry: &Entry| (entry.properties)(&Options::defaults(entry.meta.options)).topology;
    for entry in ALGORITHMS.iter().filter(|entry| needs(entry) == TopologyRequirement::Nothing) {
        let name = entry.meta.name;
        let text = format!("algorithm.name = \"{name}\"\ntopology.within_host = \"average\"");
        let table = quelea_run::config::source::parse(&text).expect("good TOML");
        let config = quelea_run::config::Config::read(table, &[], None).expect("good by itself");
        let Err(error) = quelea_run::prepared::PreparedRun::new(config) else {
            panic!("{name} took it")
        };
        let words = error.to_string();
        let begin = format!("`topology.within_host` = \"average\": `{name}` does not gossip");
        assert!(words.starts_with(&begin) && words.contains("d-psgd"), "{words}");
    }
}
