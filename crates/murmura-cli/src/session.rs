//! A run from the command line: progress while it lasts, a report at its end.

use murmura_record::Record;
use murmura_run::conduct::{Listener, conduct};
use murmura_run::drive::Driven;
use murmura_run::files::directory::Directory;
use murmura_run::plan::Plan;

use crate::progress::Progress;
use crate::report;
use crate::request::{Output, Run};

/// Drives a plan and reports. `asked` is the command that the person typed, with its run file.
pub fn run(
    plan: Plan,
    asked: (&'static str, &Run),
    output: &Output,
    drive: impl FnOnce(&Plan, &mut Listener<'_>) -> Driven,
) -> anyhow::Result<()> {
    let algorithm = plan.config.algorithm.entry.name;
    let directory = Directory::claim(output.out.as_deref(), output.force, algorithm)?;
    let mut progress = Progress::new(plan.total_steps(), output.quiet);
    let mut watch = |record: &Record| progress.take(record);
    let finished = conduct(&plan, &directory, &mut watch, |listener| drive(&plan, listener));
    progress.finish();
    let finished = finished?;
    if output.json {
        crate::text::say(&serde_json::to_string_pretty(&finished.summary)?);
    } else if !output.quiet {
        report::print(&finished, asked);
    }
    Ok(())
}
