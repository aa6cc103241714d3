//! What the processes of a run compare before they start: every setting, as lines of text.

use std::fmt::Write;

use quelea_core::options::Options;
use quelea_core::run_spec::RunSpec;

use crate::spec::{CheckedRun, write_entry};

/// The settings that all processes of a run must have in common, one a line.
pub(crate) fn describe(run: &CheckedRun) -> String {
    let spec = &run.spec;
    let mut text = String::from("quelea run 1\n");
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name} = {value}");
    };
    line("algorithm", entry(spec.entry.meta.name, &spec.options));
    line("codec", entry(spec.codec.entry.meta.name, &spec.codec.options));
    line("workers", spec.workers().to_string());
    line("servers", (spec.ranks() - spec.workers()).to_string());
    line("hosts", format!("{:?}", spec.view.hosts));
    line("topology", spec.view.topology(0).map_or("none", |(_, s)| s.name()).to_string());
    line("steps", spec.steps.to_string());
    line("seed", spec.seed.to_string());
    line("clip norm", format!("{:?}", spec.clip));
    let ends: Vec<usize> = spec.layout.buckets.iter().map(|bucket| bucket.range.end).collect();
    line("buckets end at", format!("{ends:?}"));
    line("optimizer", run.optimizer.clone());
    line("initial parameters", format!("{} of digest {:016x}", spec.initial.len(), digest(spec)));
    text
}

/// Where the two descriptions differ, in a sentence.
pub(crate) fn difference(here: &str, there: &str) -> Option<String> {
    let (mut ours, mut theirs) = (here.lines(), there.lines());
    loop {
        match (ours.next(), theirs.next()) {
            (None, None) => return None,
            (here, there) if here == there => {}
            (here, there) => {
                let shown = |line: Option<&str>| line.unwrap_or("nothing").to_string();
                let (here, there) = (shown(here), shown(there));
                return Some(format!(
                    "the run of this process has `{here}`, the coordinator's `{there}`"
                ));
            }
        }
    }
}

fn entry(name: &str, options: &Options) -> String {
    let mut text = String::new();
    let _ = write_entry(&mut text, name, options);
    text
}

/// FNV-1a over the bits of the initial parameters.
fn digest(spec: &RunSpec) -> u64 {
    let bytes = spec.initial.iter().flat_map(|x| x.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
