//! The timelines of whole runs.

use std::collections::BTreeMap;

use quelea_core::algorithms::ALGORITHMS;
use quelea_run::config::Config;
use quelea_run::config::source::{Table, parse};
use quelea_run::drive::{self, Driven};
use quelea_run::execute::{RunRecorder, execute};
use quelea_run::files::directory::Directory;
use quelea_run::prepared::PreparedRun;
use serde_json::Value;

fn prepared(text: &str) -> PreparedRun {
    let table: Table = parse(text).expect("TOML");
    PreparedRun::new(Config::read(table, &[], None).expect("good")).expect("good")
}

/// Start and end of every span, by track, in microseconds.
fn tracks(
    prepared: &PreparedRun,
    drive: fn(&PreparedRun, &mut RunRecorder<'_>) -> Driven,
) -> BTreeMap<u64, Vec<(f64, f64)>> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let directory = Directory::claim(Some(folder.path()), false, "").expect("empty");
    execute(prepared, &directory, &mut |_| {}, |listener| drive(prepared, listener))
        .expect("it ends");
    let bytes = std::fs::read(folder.path().join("trace.json")).expect("there");
    let trace: Value = serde_json::from_slice(&bytes).expect("JSON");
    let mut tracks: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    let events = trace["traceEvents"].as_array().expect("a list").iter();
    for event in events.filter(|event| event["ph"] == "X") {
        let number = |key: &str| event[key].as_f64().expect("a number");
        let track = tracks.entry(event["tid"].as_u64().expect("a track")).or_default();
        track.push((number("ts"), number("ts") + number("dur")));
    }
    tracks
}

#[test]
fn no_two_spans_of_a_track_overlap_in_any_algorithm() {
    const NANOSECOND: f64 = 1e-3;
    for entry in ALGORITHMS {
        let text = format!("workers = 4\nsteps = 12\nalgorithm.name = \"{}\"", entry.meta.name);
        let varied = format!("{text}\n[cluster]\ncompute_cv = 0.4\nhandoff_send_us = 900");
        let real = tracks(&prepared(&text), drive::threads);
        let simulated = tracks(&prepared(&varied), drive::simulate);
        for (how, tracks) in [("threads", real), ("simulated", simulated)] {
            assert!(!tracks.is_empty(), "{}, {how}: somebody computes", entry.meta.name);
            for (rank, mut spans) in tracks {
                spans.sort_by(|a, b| a.0.total_cmp(&b.0));
                for pair in spans.windows(2) {
                    let overlap = pair[0].1 - pair[1].0;
                    assert!(
                        overlap < NANOSECOND,
                        "{}, {how}, rank {rank}: {pair:?}",
                        entry.meta.name
                    );
                }
            }
        }
    }
}
