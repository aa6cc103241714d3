//! A run from the command line: progress while it lasts, a report at its end.

use quelea_record::Record;
use quelea_run::checkpoint;
use quelea_run::drive::Driven;
use quelea_run::error::RunError;
use quelea_run::execute::execute;
use quelea_run::files::directory::Directory;
use quelea_run::prepared::PreparedRun;
use quelea_run::recorder::RunRecorder;

use crate::page::{DriverKind, Onlookers};
use crate::progress::Progress;
use crate::report;
use crate::request::{Invocation, Output};
use crate::text::mention;

/// Drives a prepared run and reports. `asked` is the command that the person typed, with its run file.
pub fn run(
    prepared: PreparedRun,
    asked: Invocation<'_>,
    output: &Output,
    kind: DriverKind,
    drive: impl FnOnce(&PreparedRun, &mut RunRecorder<'_>) -> Driven,
) -> anyhow::Result<()> {
    let directory = claim(&prepared, output)?;
    if let (Some(resumed), false) = (&prepared.resumed, output.quiet) {
        prepared.config.notes.iter().for_each(|note| mention(note));
        mention(&format!("resuming from step {} of {}", resumed.step, resumed.run.display()));
    }
    let done = prepared.start.steps(prepared.config.workers);
    let mut progress = Progress::new(prepared.total_steps(), done, output.quiet);
    let onlookers = Onlookers::start(&prepared, directory.path(), output, kind);
    let mut onlookers = onlookers.inspect_err(|_| directory.abandon())?;
    let survey_pace = onlookers.survey_pace();
    let mut watch = |record: &Record| {
        progress.take(record);
        onlookers.take(record);
    };
    let finished = execute(&prepared, &directory, &mut watch, |recorder| {
        if let Some(pace) = survey_pace {
            recorder.survey(pace);
        }
        drive(&prepared, recorder)
    });
    progress.finish();
    let shown = onlookers.finish(&finished);
    let finished = finished.inspect_err(|error| {
        let is_kept = checkpoint::exist(directory.path());
        let has_model = matches!(error, RunError::Stopped { .. } | RunError::Interrupted { .. });
        if is_kept && !has_model {
            let path = directory.path().display();
            mention(&format!("resume it with --resume {path}"));
        }
    })?;
    shown?;
    if output.json {
        crate::text::say(&serde_json::to_string_pretty(&finished.summary)?);
    } else if !output.quiet {
        report::print(&prepared.config.registry, &finished, asked);
    }
    Ok(())
}

/// Says before a run of several processes whose loss would be its end.
pub fn say_whether_it_survives(prepared: &PreparedRun, output: &Output) {
    if output.quiet {
        return;
    }
    if let Some(why) = prepared.survival_refusal() {
        mention(&format!("should this process be lost, the run ends with it: {why}"));
    }
    let ranks = prepared.irreplaceable();
    if !ranks.is_empty() {
        let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
        mention(&format!(
            "should the process of rank {} be lost, the run ends with it: it mixes for its host \
             (`topology.within_host`), and nobody can take over the state of the algorithm there",
            ranks.join(" or ")
        ));
    }
}

/// The folder of the run: that of the run that is resumed, unless another is named.
fn claim(prepared: &PreparedRun, output: &Output) -> anyhow::Result<Directory> {
    let algorithm = prepared.config.algorithm.entry.meta.name;
    Ok(match (&output.out, &prepared.resumed) {
        (None, Some(resumed)) => Directory::reopen(&resumed.run)?,
        (Some(out), Some(resumed)) if *out == resumed.run => Directory::reopen(out)?,
        (out, _) => Directory::claim(out.as_deref(), output.force, algorithm)?,
    })
}
