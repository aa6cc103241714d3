//! `trace.json`: a timeline in the trace-event format, which Perfetto and Chrome open.
//!
//! One track per rank with what it was doing (computing, waiting for a slower peer, waiting for
//! the network), and the messages on their way as spans beside it.

use std::collections::BTreeMap;
use std::io::{self, Write};

use quelea_record::{Outcome, Record, RecordKind};
use serde_json::{Value, json};

/// How many spans a timeline has at most: its beginning tells the story, and a browser can still
/// open it.
pub const SPANS: usize = 20_000;

/// The beginning of a run, as spans.
#[derive(Debug, Default)]
pub struct Timeline {
    spans: Vec<TraceSpan>,
    /// The last computing of each rank.
    computed: BTreeMap<u32, ComputeSpan>,
    /// When the first span that found no place began.
    cut: Option<f64>,
}

/// A span of computing, in seconds, and the end of the span before it on the same track.
#[derive(Clone, Copy, Debug, Default)]
struct ComputeSpan {
    free: f64,
    start: f64,
    end: f64,
    /// Until when the track is taken.
    taken: f64,
}

#[derive(Debug)]
struct TraceSpan {
    rank: u32,
    step: u64,
    /// In seconds.
    start: f64,
    seconds: f64,
    what: What,
}

#[derive(Debug)]
enum What {
    Compute,
    Waiting,
    Exposed,
    Transfer { to: u32, bytes: u64 },
}

impl Timeline {
    /// Whether there is no more room.
    pub fn is_full(&self) -> bool {
        self.spans.len() >= SPANS
    }

    /// Takes the spans of a record, if it has any.
    pub fn take(&mut self, record: &Record) {
        match record.event {
            RecordKind::Compute { seconds } => self.compute(record, seconds),
            RecordKind::Transfer { to, bytes, seconds } => {
                self.push(record, record.t, seconds, What::Transfer { to, bytes });
            }
            RecordKind::Step { exposed, waiting, .. } => self.idle(record, exposed, waiting),
            _ => {}
        }
    }

    fn compute(&mut self, record: &Record, seconds: f64) {
        let free = self.computed.get(&record.rank).map_or(0.0, |last| last.taken);
        let (start, end) = (record.t.max(free), record.t + seconds);
        self.push(record, start, end - start, What::Compute);
        self.computed.insert(record.rank, ComputeSpan { free, start, end, taken: end });
    }

    /// After the computing first the peer was late, then the network was busy, until the next
    /// gradient started. What is exposed beyond that was on the way to the computing.
    fn idle(&mut self, record: &Record, exposed: f64, waiting: f64) {
        let last = self.computed.entry(record.rank).or_default();
        let ComputeSpan { free, start, end, .. } = *last;
        last.taken = record.t.max(end);
        let after = (record.t - end - waiting).clamp(0.0, exposed);
        let busy = record.t - after;
        let late = (busy - waiting).max(end);
        let asked = (start - (exposed - after)).max(free);
        self.push(record, asked, start - asked, What::Exposed);
        self.push(record, late, busy - late, What::Waiting);
        self.push(record, busy, after, What::Exposed);
    }

    fn push(&mut self, record: &Record, start: f64, seconds: f64, what: What) {
        if seconds <= 0.0 {
            return;
        }
        if self.is_full() {
            self.cut.get_or_insert(start);
            return;
        }
        self.spans.push(TraceSpan { rank: record.rank, step: record.step, start, seconds, what });
    }

    /// Writes the trace of a run.
    pub fn write(&self, out: &mut impl Write, outcome: &Outcome) -> io::Result<()> {
        let about = json!({
            "spans": self.spans.len(),
            "spans_at_most": SPANS,
            "complete_until_seconds": self.cut.unwrap_or(outcome.clock_seconds),
            "run_seconds": outcome.clock_seconds,
        });
        writeln!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":[")?;
        write!(
            out,
            "{}",
            json!({"ph":"M","pid":1,"name":"process_name","args":{"name":"quelea"}})
        )?;
        let workers = outcome.ranks.iter().filter(|rank| !rank.is_server).count() as u32;
        let label = |rank: u32| match rank.checked_sub(workers) {
            None => format!("worker {rank}"),
            Some(server) => format!("server {server}"),
        };
        for rank in &outcome.ranks {
            let name = json!({"ph":"M","pid":1,"tid":rank.rank,"name":"thread_name",
                "args":{"name":label(rank.rank)}});
            write!(out, ",\n{name}")?;
        }
        for (id, span) in self.spans.iter().enumerate() {
            for event in span.events(id, &label) {
                write!(out, ",\n{event}")?;
            }
        }
        writeln!(out, "\n]}}")
    }
}

impl TraceSpan {
    fn events(&self, id: usize, label: &dyn Fn(u32) -> String) -> Vec<Value> {
        let micros = |seconds: f64| seconds * 1e6;
        let (start, span) = (micros(self.start), micros(self.seconds));
        let whole = |name: &str, category: &str| {
            vec![json!({"ph":"X","pid":1,"tid":self.rank,"ts":start,"dur":span,
                "name":name,"cat":category,"args":{"step":self.step}})]
        };
        match self.what {
            What::Compute => whole("compute", "compute"),
            What::Waiting => whole("waiting for a slower peer", "waiting"),
            What::Exposed => whole("waiting for the network", "exposed"),
            What::Transfer { to, bytes } => {
                let name = format!("{} → {}", label(self.rank), label(to));
                let event = |phase: &str, ts: f64| {
                    json!({"ph":phase,"pid":1,"tid":self.rank,"ts":ts,"id":id,
                        "name":name,"cat":"transfer","args":{"bytes":bytes,"step":self.step}})
                };
                vec![event("b", start), event("e", start + span)]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quelea_record::RankReport;

    fn record(t: f64, event: RecordKind) -> Record {
        Record { t, rank: 0, step: 1, event }
    }

    fn written(timeline: &Timeline) -> Value {
        let rank = |rank, is_server| RankReport { rank, is_server, ..RankReport::default() };
        let ranks = vec![rank(0, false), rank(1, true)];
        let outcome = Outcome { clock_seconds: 9.0, ranks, ..Outcome::default() };
        let mut bytes = Vec::new();
        timeline.write(&mut bytes, &outcome).expect("written");
        serde_json::from_slice(&bytes).expect("JSON")
    }

    #[test]
    fn spans_have_their_place_on_the_track_of_their_rank() {
        let mut timeline = Timeline::default();
        timeline.take(&record(1.0, RecordKind::Compute { seconds: 0.5 }));
        let step =
            RecordKind::Step { loss: 0.0, samples: 1, compute: 0.5, exposed: 0.25, waiting: 1.0 };
        timeline.take(&record(3.0, step));
        timeline.take(&record(1.5, RecordKind::Transfer { to: 1, bytes: 80, seconds: 0.5 }));
        let trace = written(&timeline);
        let events = trace["traceEvents"].as_array().expect("a list");
        let named = |name: &str| {
            let found = events.iter().find(|event| event["name"] == name);
            let event = found.unwrap_or_else(|| panic!("no {name}"));
            (event["ts"].as_f64(), event["dur"].as_f64())
        };
        assert_eq!(named("compute"), (Some(1e6), Some(0.5e6)));
        assert_eq!(named("waiting for a slower peer"), (Some(1.75e6), Some(1e6)));
        assert_eq!(named("waiting for the network"), (Some(2.75e6), Some(0.25e6)));
        assert_eq!(named("worker 0 → server 0"), (Some(1.5e6), None));
    }

    #[test]
    fn what_a_gradient_took_beside_computing_stands_before_it() {
        let mut timeline = Timeline::default();
        timeline.take(&record(1.0, RecordKind::Compute { seconds: 0.5 }));
        let step =
            RecordKind::Step { loss: 0.0, samples: 1, compute: 0.5, exposed: 1.0, waiting: 0.25 };
        timeline.take(&record(2.0, step));
        let spans: Vec<(f64, f64)> = timeline.spans.iter().map(|s| (s.start, s.seconds)).collect();
        assert_eq!(spans, [(1.0, 0.5), (0.25, 0.75), (1.5, 0.25), (1.75, 0.25)]);
    }

    #[test]
    fn a_long_run_keeps_its_beginning_and_says_so() {
        let mut timeline = Timeline::default();
        for k in 0..SPANS + 5 {
            timeline.take(&record(k as f64, RecordKind::Compute { seconds: 1.0 }));
        }
        let trace = written(&timeline);
        assert_eq!(trace["otherData"]["spans"], SPANS);
        assert_eq!(trace["otherData"]["complete_until_seconds"], SPANS as f64);
    }
}
