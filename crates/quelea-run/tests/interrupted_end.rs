//! Being asked to end while the files of a run are written: the model comes first. One test only: what asks is the
//! process's.

use std::path::Path;
use std::sync::Arc;

use quelea_core::layout::Tensor;
use quelea_core::problems::{Evaluation, GradientSource, Problem};
use quelea_run::config::Config;
use quelea_run::config::source::parse;
use quelea_run::drive;
use quelea_run::error::RunError;
use quelea_run::execute::{EndingRun, ask_to_leave, ask_to_stop, execute};
use quelea_run::files::directory::Directory;
use quelea_run::prepared::PreparedRun;
use safetensors::SafeTensors;

/// A problem during whose export somebody presses Ctrl-C, twice.
struct Interrupted {
    inner: Arc<dyn Problem>,
}

impl Problem for Interrupted {
    fn dimensions(&self) -> usize {
        self.inner.dimensions()
    }

    fn initial(&self) -> Vec<f32> {
        self.inner.initial()
    }

    fn source(&self, rank: usize) -> Box<dyn GradientSource> {
        self.inner.source(rank)
    }

    /// Asked for while the file of the model is made; before that, for the best model until then.
    fn buffers(&self, _: &[f32]) -> Vec<(Tensor, Vec<f32>)> {
        let first = ask_to_leave();
        if first != EndingRun::None {
            assert_eq!(first, EndingRun::LeavesAfterModel, "it waits for the model");
            assert_eq!(ask_to_leave(), EndingRun::LeavesAfterModel, "the second time too");
            assert!(!ask_to_stop(), "the run has ended");
        }
        Vec::new()
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        self.inner.evaluate(params)
    }
}

fn prepared() -> PreparedRun {
    let text = "workers = 2\nsteps = 20\nevaluations = 2\n[algorithm]\nname = \"allreduce\"\n\
                [task]\nname = \"quadratic\"\ndimensions = 1000\n";
    let config = Config::read(parse(text).expect("TOML"), &[], None).expect("good");
    PreparedRun::new(config).expect("good")
}

fn model(run: &Path) -> Vec<u8> {
    let bytes = std::fs::read(run.join("final.safetensors")).expect("the model is there");
    let file = SafeTensors::deserialize(&bytes).expect("a whole file");
    file.tensor("model").expect("there").data().to_vec()
}

#[test]
fn a_run_that_is_interrupted_while_it_writes_its_model_leaves_the_whole_model() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = |prepared: &PreparedRun, out: &Path| {
        let directory = Directory::claim(Some(out), false, "").expect("a new folder");
        execute(prepared, &directory, &mut |_| {}, |recorder| drive::simulate(prepared, recorder))
    };
    let (calm, hasty) = (folder.path().join("calm"), folder.path().join("hasty"));
    let plain = prepared();
    run(&plain, &calm).expect("it ends well");
    assert_eq!(ask_to_leave(), EndingRun::None, "no run is at its end");
    let problem = Arc::new(Interrupted { inner: Arc::clone(&plain.problem) });
    let interrupted = PreparedRun::of_problem(plain.config, problem).expect("good");
    let error = run(&interrupted, &hasty).expect_err("it was interrupted");
    let place = hasty.join("final.safetensors");
    let expected =
        format!("interrupted after the run had ended; its model is in {}", place.display());
    assert!(matches!(error, RunError::Interrupted { .. }), "{error}");
    assert_eq!(error.to_string(), expected);
    assert_eq!(model(&hasty), model(&calm));
    assert!(hasty.join("records.jsonl").is_file(), "what was recorded stays");
    let names =
        std::fs::read_dir(&hasty).expect("a folder").flatten().map(|entry| entry.file_name());
    let hidden = names.filter(|name| name.to_string_lossy().starts_with('.')).count();
    assert_eq!(hidden, 0, "nothing half-written stays");
}
