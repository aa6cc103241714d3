//! Every row goes on from a checkpoint with more and with fewer workers and servers.

use std::path::Path;

use quelea_core::algorithms::ALGORITHMS;
use quelea_core::options::Options;
use quelea_run::checkpoint::read;
use quelea_run::config::Config;
use quelea_run::config::source::{ConfigSetting, parse, setting};
use quelea_run::drive;
use quelea_run::execute::{Finished, execute};
use quelea_run::files::directory::Directory;
use quelea_run::files::summary::DataSummary;
use quelea_run::prepared::PreparedRun;

fn simulate(prepared: &PreparedRun, out: &Path) -> Finished {
    let directory = Directory::claim(Some(out), false, "").expect("a new folder");
    execute(prepared, &directory, &mut |_| {}, |listener| drive::simulate(prepared, listener))
        .expect("it ends well")
}

#[test]
fn every_row_goes_on_with_more_and_with_fewer_workers() {
    for entry in ALGORITHMS {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let properties = (entry.properties)(&Options::defaults(entry.meta.options));
        let takes_momentum = properties.optimizer_rule.refused_options().is_empty();
        let text = format!(
            "task.name = \"logistic\"\nworkers = 4\nsteps = 60\nevaluations = 1\noptimizer.lr = 0.1\n\
             optimizer.momentum = {}\nalgorithm.name = \"{}\"\ncheckpoint.every = 30",
            if takes_momentum && entry.meta.name != "aladdin" { 0.5 } else { 0.0 },
            entry.meta.name
        );
        let config = Config::read(parse(&text).expect("TOML"), &[], None).expect("good");
        let out = folder.path().join("run");
        let before = simulate(&PreparedRun::new(config).expect("good"), &out).summary;
        let checkpoint = read::open(&out.join("checkpoints/step-30")).expect("whole");
        for (workers, servers) in [(6, 2), (2, 1)] {
            let given = [format!("workers={workers}"), format!("cluster.servers={servers}")];
            let settings: Vec<ConfigSetting> =
                given.iter().map(|given| setting(given).expect("good")).collect();
            let table = checkpoint.config(&settings, None).expect("a table");
            let config = Config::read(table, &settings, None).expect("good");
            let prepared =
                PreparedRun::new(config).expect("good").resume_from(&checkpoint).expect("fits");
            assert!(prepared.start.resized);
            let out = folder.path().join(format!("{workers}"));
            let after = simulate(&prepared, &out).summary;
            let (was, is) = (before.loss.expect("finite"), after.loss.expect("finite"));
            assert!(is < was + 0.1, "{} with {workers}: loss {was} became {is}", entry.meta.name);
            assert_eq!(after.resumed_from_step, Some(30));
        }
    }
}

#[test]
fn shared_data_continue_the_epoch_with_another_number_of_workers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = "task = { name = \"logistic\", batch = 8 }\ndata = \"shared\"\nworkers = 4\nsteps = 60\n\
                algorithm.name = \"ad-psgd\"\ncheckpoint.every = 30\ncluster.compute_cv = 0.5\nplots = false";
    let config = Config::read(parse(text).expect("TOML"), &[], None).expect("good");
    let out = folder.path().join("run");
    let before = simulate(&PreparedRun::new(config).expect("good"), &out).summary;
    let whole = |units| Some(DataSummary { units, confirmed: units, handed_out_again: 0 });
    assert_eq!(before.data, whole(240));
    let checkpoint = read::open(&out.join("checkpoints/step-30")).expect("whole");
    let settings = [setting("workers=3").expect("good"), setting("steps=70").expect("good")];
    let table = checkpoint.config(&settings, None).expect("a table");
    let config = Config::read(table, &settings, None).expect("good");
    let prepared = PreparedRun::new(config).expect("good").resume_from(&checkpoint).expect("fits");
    let after = simulate(&prepared, &folder.path().join("resumed")).summary;
    // Of 210 units, those of the first 30 steps of four workers were confirmed before.
    assert_eq!(after.data, whole(210));
    assert_eq!(after.steps, 210, "none is computed again");
}
