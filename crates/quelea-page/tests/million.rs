//! A run of a million records: how long it takes to open and to move through it. Prints; timings never
//! decide a test.

use std::fmt::Write as _;
use std::time::Instant;

use quelea_page::folder;
use quelea_page::log::{LogClock, RunLog};
use quelea_record::Record;
use quelea_run::files::read_records::read_line;

const RECORDS: u64 = 1_000_000;
const WORKERS: u64 = 64;

#[test]
fn a_run_of_a_million_records_opens_and_any_moment_of_it_can_be_shown() {
    let run = tempfile::tempdir().expect("a folder");
    let mut text = String::new();
    for k in 0..RECORDS {
        let (rank, step) = (k % WORKERS, k / WORKERS);
        let t = step as f64 * 0.125 + rank as f64 * 1e-4;
        let _ = writeln!(
            text,
            "{{\"t\":{t:?},\"rank\":{rank},\"step\":{step},\"kind\":\"step\",\"loss\":0.5,\
             \"samples\":32,\"compute\":0.1,\"exposed\":0.02,\"waiting\":0.005}}"
        );
    }
    std::fs::write(run.path().join("records.jsonl"), &text).expect("written");
    let summary = "{\"config\":{\"workers\":64,\"steps\":15625},\"records_stride\":1}";
    std::fs::write(run.path().join("summary.json"), summary).expect("written");
    let begun = Instant::now();
    let log = folder::open(run.path(), None).expect("a run");
    println!("opened {} MB in {:.2} s", text.len() / 1_000_000, begun.elapsed().as_secs_f64());
    let end = log.read(|state, _| state.t);
    let begun = Instant::now();
    let moments = 200;
    for k in 0..moments {
        let t = end * f64::from(k) / f64::from(moments);
        let steps = log.state_json(Some(t))["progress"]["steps"].as_u64().expect("a number");
        // Rank r completes step s at 0.125 s + r/10000.
        let whole = (t / 0.125).floor();
        let of_last = (((t - whole * 0.125) / 1e-4).floor() + 1.0).min(WORKERS as f64);
        let expected = whole * WORKERS as f64 + of_last;
        assert!((steps as f64 - expected).abs() <= 1.0, "{steps} for {expected} at {t}");
    }
    let each = begun.elapsed().as_secs_f64() / f64::from(moments);
    println!("one moment in {:.2} ms on average", each * 1e3);
    let live = RunLog::live(log.description().clone(), LogClock::Real);
    let records: Vec<Record> = text.lines().take(100_000).filter_map(read_line).collect();
    let taking = Instant::now();
    records.iter().for_each(|record| live.take(record));
    let nanoseconds = taking.elapsed().as_nanos() / records.len() as u128;
    println!("a live run pays {nanoseconds} ns for a record");
}
