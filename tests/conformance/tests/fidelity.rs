//! Algorithms against their papers, by recursions written out here in double precision.

use std::sync::Arc;

use conformance::{Arm, REFERENCE, deployed, firsts, plan};
use quelea_run::config::Config;
use quelea_run::config::source;
use quelea_run::prepared::PreparedRun;
use quelea_wire::HEADER_BYTES;

const CURVATURE: [f64; 4] = [1.0, 2.0, 3.0, 4.0];
const TARGET: [f64; 4] = [1.0, -2.0, 0.5, 3.0];

/// The gradient of worker `i` on the reference problem.
fn gradient(i: usize, x: f64) -> f64 {
    CURVATURE[i] * (x - TARGET[i])
}

fn near(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() < 3e-6, "{what}: {found} is not {expected}");
}

/// Keeps the larger of two numbers: top-k with a share of one half.
fn larger_of(two: [f64; 2]) -> [f64; 2] {
    if two[0].abs() >= two[1].abs() { [two[0], 0.0] } else { [0.0, two[1]] }
}

/// What a codec leaves out of a gradient is a step of the rate that it was left out at.
#[test]
fn what_all_reduce_leaves_out_counts_as_much_after_the_learning_rate_drops() {
    let (steps, drop, rate) = (60, 20, 0.05);
    let text = format!(
        "workers = 2\nsteps = {steps}\n[algorithm]\nname = \"allreduce\"\n\
         [codec]\nname = \"top-k\"\nshare = 0.5\n[optimizer]\nlr = {rate}\n\
         [optimizer.schedule]\nname = \"step\"\nmilestones = [{drop}]\ngamma = 0.1\n\
         [task]\nname = \"quadratic\"\ncurvature = [[1, 0.3], [2, 0.2]]\ntarget = [[1, 2], [-2, 5]]"
    );
    let found = {
        let plan = plan(&text);
        deployed(&plan, &Arm::Virtual.run(&plan))
    };
    let (curvature, target) = ([[1.0, 0.3], [2.0, 0.2]], [[1.0, 2.0], [-2.0, 5.0]]);
    let (mut x, mut left) = ([0.0f64; 2], [[0.0f64; 2]; 2]);
    for step in 0..steps {
        let rate = if step < drop { rate } else { 0.1 * rate };
        let mut moved = [0.0; 2];
        for i in 0..2 {
            let step: [f64; 2] = std::array::from_fn(|k| {
                left[i][k] + rate * curvature[i][k] * (x[k] - target[i][k])
            });
            let sent = larger_of(step);
            for k in 0..2 {
                left[i][k] = step[k] - sent[k];
                moved[k] += sent[k] / 2.0;
            }
        }
        (0..2).for_each(|k| x[k] -= moved[k]);
    }
    (0..2).for_each(|k| near(f64::from(found[k]), x[k], "all-reduce with top-k"));
}

/// The first step of Adam is η·sign(g) whatever g is multiplied by: a worker of five samples among
/// workers of one moves the mean five times as far only if its displacement is weighed.
#[test]
fn under_adam_a_worker_counts_by_its_samples() {
    let samples = [1u32, 1, 1, 5];
    for algorithm in [
        "local-sgd\"\nperiod = 1",
        "d-psgd\"\nform = \"adapt-then-combine\"",
        "d-psgd\"",
        "exact-diffusion\"",
        "sgp\"",
        "aladdin\"\nbarrier = true\nperiod = 1\nalpha = 1.0",
    ] {
        let mut plan = plan(&format!(
            "workers = 4\nsteps = 1\n[algorithm]\nname = \"{algorithm}\n\
             [optimizer]\nname = \"adam\"\nlr = 0.01\n{REFERENCE}"
        ));
        plan.setup.samples = Arc::from(samples);
        let all = f64::from(samples.iter().sum::<u32>());
        let moved = |i: usize| 0.01 * f64::from(samples[i]) / all * gradient(i, 0.0).signum();
        let expected: f64 = -(0..4).map(moved).sum::<f64>();
        near(f64::from(deployed(&plan, &Arm::Virtual.run(&plan))[0]), expected, algorithm);
    }
}

/// Without momentum DecentLaM is D-PSGD in adapt-then-combine form; with clipping, too, if it is the
/// gradient that is clipped and not the pull of the neighbours.
#[test]
fn decentlam_clips_the_gradient_alone() {
    let run = |algorithm: &str| {
        let text = format!(
            "workers = 4\nsteps = 40\n[algorithm]\nname = \"{algorithm}\n\
             [optimizer]\nlr = 0.05\nclip_norm = 0.7\n{REFERENCE}"
        );
        firsts(&Arm::Virtual.run(&plan(&text)))
    };
    let atc = run("d-psgd\"\nform = \"adapt-then-combine\"");
    assert!(atc.iter().any(|x| (x - atc[0]).abs() > 1e-2), "workers pull at each other: {atc:?}");
    atc.iter().zip(run("decentlam\"")).for_each(|(atc, x)| near(x, *atc, "decentlam"));
}

/// The sentence with which a run file is refused.
fn refusal(text: &str) -> String {
    let table = source::parse(text).expect("TOML");
    let config = Config::read(table, &[], None).expect("good by itself");
    PreparedRun::new(config).err().unwrap_or_else(|| panic!("accepted:\n{text}")).to_string()
}

#[test]
fn optimizers_that_an_algorithm_cannot_use_are_refused_with_the_reason() {
    for (algorithm, optimizer, expected) in [
        (
            "eamsgd",
            "momentum = 0.9",
            "`optimizer.momentum` = 0.9: `eamsgd`: the workers have Nesterov",
        ),
        ("qg-dmsgd", "name = \"adam\"", "`optimizer.name` = \"adam\": `qg-dmsgd`: it replaces"),
        (
            "d-amsgrad",
            "name = \"adamw\"",
            "`optimizer.name` = \"adamw\": `d-amsgrad`: it keeps both",
        ),
    ] {
        let text = format!(
            "workers = 4\nsteps = 1\n[algorithm]\nname = \"{algorithm}\"\n[optimizer]\n\
             {optimizer}\n{REFERENCE}"
        );
        let found = refusal(&text);
        assert!(found.starts_with(expected), "{found}");
    }
}

/// Algorithm 2 of Assran et al.: shares leave once per τ steps, along the next round of the
/// topology, and are in by the time that the next ones leave.
fn overlap_sgp(tau: usize, steps: usize, rate: f64) -> Vec<f64> {
    let n = 4;
    let (mut x, mut w, mut z) = (vec![0.0; n], vec![1.0; n], vec![0.0; n]);
    let mut flying: Vec<(f64, f64)> = vec![(0.0, 0.0); n];
    for k in 0..steps {
        (0..n).for_each(|i| x[i] -= rate * gradient(i, z[i]));
        if k.is_multiple_of(tau) {
            let hop = 1 << (k / tau % 2);
            let arrived = std::mem::replace(&mut flying, vec![(0.0, 0.0); n]);
            for i in 0..n {
                (x[i], w[i]) = (x[i] / 2.0, w[i] / 2.0);
                flying[(i + hop) % n] = (x[i], w[i]);
            }
            for (i, (share, weight)) in arrived.into_iter().enumerate() {
                (x[i], w[i]) = (x[i] + share, w[i] + weight);
            }
        }
        (0..n).for_each(|i| z[i] = x[i] / w[i]);
    }
    for (i, (share, weight)) in flying.into_iter().enumerate() {
        z[i] = (x[i] + share) / (w[i] + weight);
    }
    z
}

#[test]
fn sgp_with_overlap_is_algorithm_2_of_its_paper() {
    for (tau, steps) in [(1, 30), (2, 30), (2, 31), (3, 30), (5, 33)] {
        let plan = plan(&format!(
            "workers = 4\nsteps = {steps}\n[algorithm]\nname = \"sgp\"\noverlap = {tau}\n\
             [topology]\nname = \"one-peer-exponential\"\n[optimizer]\nlr = 0.02\n{REFERENCE}"
        ));
        let found = firsts(&Arm::Virtual.run(&plan));
        let expected = overlap_sgp(tau, steps, 0.02);
        for (found, expected) in found.iter().zip(expected) {
            near(*found, expected, &format!("τ = {tau}, {steps} steps"));
        }
    }
}

/// Bytes that all ranks send in a run of `steps` steps.
fn bytes(workers: usize, steps: usize, algorithm: &str) -> f64 {
    let plan = plan(&format!(
        "workers = {workers}\nsteps = {steps}\n[algorithm]\nname = \"{algorithm}\n\
         [task]\nname = \"quadratic\"\ndimensions = 1000\ncurvature = {:?}\ntarget = {:?}",
        vec![[1.0]; workers],
        vec![[1.0]; workers],
    ));
    Arm::Virtual.run(&plan).ranks.iter().map(|rank| rank.bytes_sent as f64).sum()
}

#[test]
fn sgp_with_an_overlap_of_tau_steps_sends_one_tau_th_of_the_bytes() {
    let every_step = bytes(4, 60, "sgp\"\noverlap = 1");
    for tau in [2.0, 3.0, 5.0] {
        let ratio = every_step / bytes(4, 60, &format!("sgp\"\noverlap = {tau}"));
        assert!((ratio / tau - 1.0).abs() < 1e-9, "τ = {tau}: {ratio} times fewer");
    }
}

/// Chen and Huo 2016 deploy Θ, not the point ahead of it where the workers of the next block start.
#[test]
fn bmuf_with_nesterov_momentum_deploys_the_model_without_the_look_ahead() {
    let (period, rate, mu) = (3, 0.02, 0.75);
    for steps in [6, 30, 32] {
        let plan = plan(&format!(
            "workers = 4\nsteps = {steps}\n[algorithm]\nname = \"bmuf\"\nform = \"nesterov\"\n\
             period = {period}\n[optimizer]\nlr = {rate}\n{REFERENCE}"
        ));
        let found = deployed(&plan, &Arm::Virtual.run(&plan))[0];
        let (mut theta, mut delta, mut x) = (0.0, 0.0, [0.0; 4]);
        for step in 1..=steps {
            (0..4).for_each(|i| x[i] -= rate * gradient(i, x[i]));
            if step % period == 0 {
                let block = x.iter().sum::<f64>() / 4.0 - (theta + mu * delta);
                delta = mu * delta + block;
                theta += delta;
                x = [theta + mu * delta; 4];
            }
        }
        // Between two blocks: the mean of the workers, without the look-ahead that they started at.
        let expected = x.iter().sum::<f64>() / 4.0 - mu * delta;
        near(f64::from(found), expected, &format!("{steps} steps"));
    }
}

/// An average is a model each way; the request for one without a vector hardly counts.
#[test]
fn ad_psgd_averages_once_per_gradient_and_by_name_half_as_often() {
    let (workers, steps) = (4, 400);
    let average = 2.0 * (HEADER_BYTES as f64 + 4000.0);
    let gradients = (workers * steps) as f64;
    let per_gradient =
        |keys: &str| bytes(workers, steps, &format!("ad-psgd\"{keys}")) / average / gradients;
    let (all, active) = (per_gradient(""), per_gradient("\naveraging = \"active\""));
    assert!((all - 1.0).abs() < 0.01, "{all} averages per gradient");
    assert!((active - 0.5).abs() < 0.005, "{active} averages per gradient");
}

/// Algorithm 1 of Wang et al. 2020 with SGP as the base algorithm, on the one-peer exponential graph
/// of both papers.
#[test]
fn slowmo_over_sgp_is_algorithm_1_of_its_paper() {
    let (period, steps, rate, (alpha, beta)) = (6, 40, 0.02, (0.9, 0.6));
    let plan = plan(&format!(
        "workers = 4\nsteps = {steps}\n[algorithm]\nname = \"slowmo\"\nbase = \"sgp\"\n\
         period = {period}\nslow_momentum = {beta}\nslow_lr = {alpha}\n\
         [topology]\nname = \"one-peer-exponential\"\n[optimizer]\nlr = {rate}\n{REFERENCE}"
    ));
    let found = firsts(&Arm::Virtual.run(&plan));
    let (mut x, mut outer, mut slow) = ([0.0; 4], 0.0, 0.0);
    for step in 0..steps {
        let stepped: [f64; 4] = std::array::from_fn(|i| x[i] - rate * gradient(i, x[i]));
        if (step + 1) % period == 0 {
            let mean = stepped.iter().sum::<f64>() / 4.0;
            slow = beta * slow + (outer - mean) / rate;
            outer -= alpha * rate * slow;
            x = [outer; 4];
        } else {
            let hop = 1 << (step % 2);
            x = std::array::from_fn(|i| (stepped[i] + stepped[(i + 4 - hop) % 4]) / 2.0);
        }
    }
    found.iter().zip(x).for_each(|(found, x)| near(*found, x, "slowmo over sgp"));
}

/// Without outer momentum nothing is left of the outer step but the average.
#[test]
fn an_outer_optimizer_over_sgp_without_outer_momentum_is_gossip_pga() {
    let run = |algorithm: &str| {
        let text = format!(
            "workers = 4\nsteps = 24\n[algorithm]\nname = \"{algorithm}\nperiod = 5\n\
             [topology]\nname = \"exponential\"\n{REFERENCE}"
        );
        firsts(&Arm::Virtual.run(&plan(&text)))
    };
    let expected = run("gossip-pga\"");
    for algorithm in [
        "slowmo\"\nbase = \"sgp\"\nslow_momentum = 0.0",
        "bmuf\"\nbase = \"sgp\"\nblock_momentum = 0.0",
        "diloco\"\nbase = \"sgp\"\nouter_momentum = 0.0\nouter_lr = 1.0",
    ] {
        run(algorithm).iter().zip(&expected).for_each(|(x, y)| near(*x, *y, algorithm));
    }
}
