//! A real network: every row of the table trains it as well as exact averaging does.

use conformance::{ARMS, Arm, deployed, plan};
use quelea_core::algorithms::ALGORITHMS;

/// Keys of rows whose defaults are meant for other lengths and learning rates than these.
fn keys(name: &str) -> (&'static str, f64) {
    match name {
        "bmuf" => ("", 0.02),
        // Its steps have about the length of the learning rate in every coordinate.
        "d-amsgrad" => ("", 0.002),
        // Its defaults are for runs of many thousand steps.
        "diloco" => ("period = 20\nouter_momentum = 0.5\n", 0.05),
        // The paper's 0.99 is for learning rates that are far smaller.
        "eamsgd" => ("momentum = 0.9\n", 0.05),
        "easgd" => ("", 0.1),
        _ => ("", 0.05),
    }
}

/// The share of held-out digits that the deployed model recognises.
fn accuracy(name: &str, arm: Arm) -> f64 {
    let (more, lr) = keys(name);
    let plan = plan(&format!(
        "workers = 8\nsteps = 2000\n[algorithm]\nname = \"{name}\"\n{more}\
         [optimizer]\nlr = {lr}\n[task]\nname = \"digits-mlp\"\n"
    ));
    let outcome = arm.run(&plan);
    let found = plan.problem.evaluate(&deployed(&plan, &outcome));
    found.accuracy().expect("there are digits held out")
}

/// One percentage point: 3 of the 360 held-out digits.
const NEAR: f64 = 0.01;

#[test]
fn every_row_trains_the_digits_as_well_as_exact_averaging() {
    let exact = accuracy("allreduce", Arm::Virtual);
    assert!(exact >= 0.965, "{exact}");
    for entry in ALGORITHMS {
        let found = accuracy(entry.meta.name, Arm::Virtual);
        assert!(found > exact - NEAR, "{}: {found}, allreduce: {exact}", entry.meta.name);
    }
}

#[test]
fn a_row_of_each_family_trains_the_digits_for_real() {
    let exact = accuracy("allreduce", Arm::Virtual);
    for name in ["aladdin", "d-psgd", "allreduce"] {
        for arm in ARMS {
            let found = accuracy(name, arm);
            assert!(found > exact - NEAR, "{name}, {arm:?}: {found}, allreduce: {exact}");
        }
    }
}
