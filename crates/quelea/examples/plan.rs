//! Which algorithm for this model on this cluster: the advisor as a library.

use quelea::Registry;
use quelea_plan::Advice;
use quelea_plan::scenario::Scenario;
use quelea_run::config::Config;
use quelea_run::config::source::parse;
use quelea_run::error::RunError;

const CLUSTER: &str = "
workers = 16
[cluster]
hosts = 4
bandwidth_gbps = 10
compute_ms = 120
slow = { \"5\" = 3.0 }
[task]
name = \"quadratic\"    # any task: the size of the model is given below
";

fn main() -> Result<(), RunError> {
    // Algorithms of your own are planned with, too: Registry::builtin().with(&MINE).
    let registry = Registry::builtin();
    let table = parse(CLUSTER).expect("this is TOML");
    let config = Config::read_with(&registry, table, &[], None)?;
    let advice = Advice::new(Scenario::new(config, Some(25.6e6))?)?;
    for prediction in advice.best_of_each().iter().take(5) {
        let step_ms = 1e3 * prediction.cost.step_seconds;
        println!("{:<40} {step_ms:>8.1} ms a step", prediction.candidate.name());
    }
    println!("{}", advice.verdict());
    Ok(())
}
