//! Runs of the builder: against run files, in all drivers, and what is refused.

use quelea::problems::quadratic::{Quadratic, QuadraticOptions};
use quelea::{Choice, Cluster, Error, RecordKind, Run, algorithms};
use quelea_record::{ModelSlices, Silent};
use quelea_run::config::Config;
use quelea_run::config::source::parse;
use quelea_run::prepared::PreparedRun;

/// `f_i(x) = ½ Σ_k (i + 1)·(x_k − i)²`.
fn quadratic(workers: usize) -> Quadratic {
    let rows = |of: fn(usize) -> f64| (0..workers).map(|i| vec![of(i)]).collect();
    let options = QuadraticOptions {
        workers,
        dimensions: Some(6),
        curvature: rows(|i| i as f64 + 1.0),
        target: rows(|i| i as f64),
        ..QuadraticOptions::default()
    };
    Quadratic::new(&options).expect("good options")
}

/// The same run as a file, in the virtual cluster.
fn of_file(algorithm: &str) -> Vec<f32> {
    let text = format!(
        "workers = 4\nsteps = 30\nseed = 3\n[algorithm]\n{algorithm}\n[topology]\nname = \"torus\"\n\
         [optimizer]\nlr = 0.02\nmomentum = 0.5\n[optimizer.schedule]\nname = \"cosine\"\n\
         [buckets]\nsize_mb = 0.000008\n[task]\nname = \"quadratic\"\ndimensions = 6\n\
         curvature = [[1], [2], [3], [4]]\ntarget = [[0], [1], [2], [3]]\n[cluster]\nhosts = 2\n"
    );
    let config = Config::read(parse(&text).expect("TOML"), &[], None).expect("good");
    let plan = PreparedRun::new(config).expect("good");
    let outcome = quelea_sim_outcome(&plan);
    ModelSlices::of(&outcome).deployed(plan.setup.properties().deploy)
}

fn quelea_sim_outcome(plan: &PreparedRun) -> quelea::Outcome {
    let (setup, problem) = (&plan.setup, &*plan.problem);
    quelea::sim::simulate(setup, problem, &plan.cluster, &mut Silent).expect("it ends well")
}

fn run(algorithm: impl Into<Choice<algorithms::Entry>>) -> Run {
    let optimizer: Choice<quelea::optim::Entry> = "sgd".into();
    Run::of(quadratic(4))
        .workers(4)
        .hosts(2)
        .steps(30)
        .seed(3)
        .bucket_bytes(8)
        .algorithm(algorithm)
        .topology("torus")
        .optimizer(optimizer.with("momentum", 0.5))
        .learning_rate(0.02)
        .schedule("cosine")
}

fn choice(name: &str) -> Choice<algorithms::Entry> {
    name.into()
}

#[test]
fn the_builder_and_a_run_file_give_the_same_bits() {
    for (built, written) in [
        (choice("allreduce"), "name = \"allreduce\""),
        (
            choice("d-psgd").with("form", "adapt-then-combine"),
            "name = \"d-psgd\"\nform = \"adapt-then-combine\"",
        ),
        (choice("local-sgd").with("period", 3), "name = \"local-sgd\"\nperiod = 3"),
        (choice("sync-ps"), "name = \"sync-ps\""),
        (choice("sgp"), "name = \"sgp\""),
    ] {
        let outcome = run(built).simulate(&Cluster::default()).expect("it ends well");
        assert_eq!(outcome.model(), of_file(written), "{written}");
    }
}

#[test]
fn all_drivers_give_the_same_bits() {
    let run = run("exact-diffusion").topology("ring");
    let simulated = run.simulate(&Cluster::default()).expect("it ends well");
    assert_eq!(run.threads().expect("it ends well").model(), simulated.model());
    let served = run.bind("127.0.0.1:0").expect("loopback is there");
    let address = served.address().to_string();
    let over_tcp = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| run.join(&address).expect("a worker ends well"));
        }
        served.run().expect("it ends well")
    });
    assert_eq!(over_tcp.model(), simulated.model());
    assert_eq!(over_tcp.loss(), simulated.loss());
}

#[test]
fn workers_join_with_a_token_where_connections_are_encrypted() {
    let run = run("allreduce");
    let served = run.bind("0.0.0.0:0").expect("a free port");
    let token = served.token("127.0.0.1").expect("it is reachable from elsewhere").reveal();
    let over_tls = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| run.join(&token).expect("a worker ends well"));
        }
        served.run().expect("it ends well")
    });
    assert_eq!(over_tls.model(), run.threads().expect("it ends well").model());
}

#[test]
fn serving_where_nobody_could_know_the_token_is_refused_at_once() {
    let error = run("allreduce").serve("0.0.0.0:0").expect_err("nobody has the token").to_string();
    assert!(error.starts_with("workers need a token to join at 0.0.0.0:0"), "{error}");
}

#[test]
fn a_worker_with_another_run_is_told_what_differs() {
    let served = run("allreduce").bind("127.0.0.1:0").expect("loopback is there");
    let address = served.address().to_string();
    std::thread::scope(|scope| {
        let coordinator = scope.spawn(|| served.run());
        let error = run("allreduce").seed(4).join(&address).expect_err("another seed");
        let expected = "the run of this process has `seed = 4`, the coordinator's `seed = 3`";
        assert_eq!(error.to_string(), expected);
        // One worker cannot take part, so that the run cannot begin.
        assert!(matches!(coordinator.join().expect("no panic"), Err(Error::Net(_))));
    });
}

#[test]
fn evaluations_on_the_way_are_records() {
    let outcome = run("allreduce").evaluations(3).simulate(&Cluster::default()).expect("ends");
    let losses: Vec<(u64, f64)> = outcome
        .records()
        .iter()
        .filter_map(|record| match record.event {
            RecordKind::Evaluation { loss, .. } => Some((record.step, loss)),
            _ => None,
        })
        .collect();
    // The last one is the outcome's own.
    assert_eq!(losses.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [10, 20]);
    assert!(losses[1].1 < losses[0].1 && outcome.loss() < losses[1].1, "{losses:?}");
    let steps = |kind: &RecordKind| matches!(kind, RecordKind::Step { .. });
    assert_eq!(outcome.records().iter().filter(|record| steps(&record.event)).count(), 120);
}

#[test]
fn the_loss_of_a_closure_is_the_mean_over_workers_on_the_next_mini_batch() {
    let run = Run::new([0.0]).workers(2).steps(5).learning_rate(0.0).gradient(|batch, _, grad| {
        grad[0] = 1.0;
        (10 * batch.worker) as f32 + batch.step as f32
    });
    let outcome = run.simulate(&Cluster::default()).expect("it ends well");
    assert_eq!(outcome.loss(), (5.0 + 15.0) / 2.0);
}

#[test]
fn what_does_not_go_together_is_refused_by_name() {
    let refusal = |run: Run| run.simulate(&Cluster::default()).expect_err("refused").to_string();
    for (run, expected) in [
        (run("alreduce"), "there is no algorithm named `alreduce`; did you mean `allreduce`?"),
        (
            run(choice("aladdin").with("alhpa", 0.5)),
            "algorithm `aladdin`: `alhpa` = 0.5: unknown key; did you mean `alpha`?",
        ),
        (run("allreduce").workers(0), "a run needs at least one worker"),
        (run("allreduce").hosts(9), "9 hosts for 4 workers: there must be from 1 to as many"),
        (Run::new([0.0]), "a plain vector needs `gradient`"),
        (run("sync-ps").servers(7), "`sync-ps` needs from 1 server to one per parameter, not 7"),
        (run("d-psgd").topology("rung"), "there is no topology named `rung`; did you mean `ring`?"),
    ] {
        assert_eq!(refusal(run), expected);
    }
    let codec = refusal(run("d-psgd").codec("top-k"));
    assert!(codec.starts_with("`d-psgd` cannot go with `top-k`"), "{codec}");
    let optimizer = refusal(run("qg-dmsgd").topology("ring").optimizer("adam"));
    assert!(optimizer.contains("does not go with"), "{optimizer}");
}
