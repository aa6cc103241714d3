//! `records.jsonl`: what was measured, one record a line. `docs/records.md` lists the kinds.

use std::io::{self, BufRead, Write};

use quelea_record::{
    AwaitedRank, FactKind, LinkTotal, ProcessMemory, Record, RecordKind, ResumePoint,
};
use serde_json::Value;

use super::directory::Draft;
use super::limited::{LINE_BYTES, LimitedLines};
use super::plots::Curves;
use super::trace::Timeline;

/// How many lines of one kind a file may about have; of longer runs every k-th step is written.
const LINES: u64 = 250_000;

/// Takes the records of a run: writes lines, keeps the beginning of the timeline, and passes
/// every record on to whoever shows progress.
pub struct RecordWriter<'a> {
    /// The lines, or the first failure to write them: then the file is given up at once, so that its
    /// space goes to checkpoints and to the model.
    draft: io::Result<Draft>,
    stride: u64,
    has_steps: bool,
    /// How many accounts were written; a run that lasts for days has enough of them.
    accounts: u64,
    timeline: Timeline,
    curves: Curves,
    watch: &'a mut (dyn FnMut(&Record) + Send),
}

/// What is left when a run has ended.
#[derive(Debug)]
pub struct Recorded {
    /// The lines, not yet in their place, or why they could not be written.
    pub draft: io::Result<Draft>,
    /// Of every worker, each step whose number this divides was written.
    pub stride: u64,
    /// The beginning of the timeline.
    pub timeline: Timeline,
    /// What the plots are made of.
    pub curves: Curves,
}

impl<'a> RecordWriter<'a> {
    /// For a run of `steps` steps of each of some workers.
    pub fn new(
        draft: Draft,
        steps: u64,
        workers: usize,
        watch: &'a mut (dyn FnMut(&Record) + Send),
    ) -> RecordWriter<'a> {
        let stride = steps.saturating_mul(workers as u64).div_ceil(LINES).max(1);
        let (timeline, curves) = (Timeline::default(), Curves::new(steps));
        RecordWriter {
            draft: Ok(draft),
            stride,
            has_steps: false,
            accounts: 0,
            timeline,
            curves,
            watch,
        }
    }

    /// Takes over the records of the run that is resumed, until its checkpoint.
    pub fn resume(&mut self, lines: impl BufRead, start: &ResumePoint) -> io::Result<()> {
        let mut lines = LimitedLines::new(lines, LINE_BYTES);
        while let Some(line) = lines.next_line()? {
            self.resume_line(line, start);
        }
        self.resume_line(lines.unfinished(), start);
        Ok(())
    }

    fn resume_line(&mut self, line: &[u8], start: &ResumePoint) {
        // The last line of a run that was killed may be half there.
        let Ok(record) = serde_json::from_slice::<Value>(line) else { return };
        if is_before(&record, start) {
            self.write(|draft| draft.write_all(line).and_then(|()| writeln!(draft)));
            self.has_steps |= record["kind"] == "step";
            self.curves.take_line(&record);
        }
    }

    /// Makes sure that what was recorded is with the system, whatever becomes of this process.
    pub fn flush(&mut self) {
        self.write(Draft::flush);
    }

    fn write(&mut self, write: impl FnOnce(&mut Draft) -> io::Result<()>) {
        if let Ok(draft) = &mut self.draft
            && let Err(error) = write(draft)
        {
            self.draft = Err(error);
        }
    }

    /// Takes the file away to make room for something more important. Whether there was one.
    pub fn give_up(&mut self) -> bool {
        let had = self.draft.is_ok();
        if had {
            self.draft = Err(io::ErrorKind::StorageFull.into());
        }
        had
    }

    /// Whether a step was recorded.
    pub fn has_steps(&self) -> bool {
        self.has_steps
    }

    /// Ends the recording.
    pub fn finish(mut self) -> Recorded {
        self.flush();
        let RecordWriter { draft, stride, timeline, curves, .. } = self;
        Recorded { draft, stride, timeline, curves }
    }

    fn is_written(&self, record: &Record) -> bool {
        match record.event {
            RecordKind::Compute { .. } | RecordKind::Transfer { .. } => false,
            RecordKind::Measured { kind, .. } if !kind.is_frequent => true,
            RecordKind::Step { .. } | RecordKind::Measured { .. } => {
                record.step.is_multiple_of(self.stride)
            }
            RecordKind::Account { .. } => self.accounts < LINES,
            _ => true,
        }
    }
}

impl RecordWriter<'_> {
    /// Takes one record.
    pub fn record(&mut self, record: Record) {
        if self.is_written(&record) {
            self.accounts += u64::from(matches!(record.event, RecordKind::Account { .. }));
            self.write(|draft| write_line(draft, &record));
        }
        self.has_steps |= matches!(record.event, RecordKind::Step { .. });
        (self.watch)(&record);
        self.timeline.take(&record);
        self.curves.take(&record);
    }

    /// Whether there is still room for the timeline.
    pub fn wants_timeline(&self) -> bool {
        !self.timeline.is_full()
    }
}

/// Whether a record is from before the checkpoint that is resumed.
fn is_before(record: &Value, start: &ResumePoint) -> bool {
    let number = |key: &str| record[key].as_u64();
    let (Some(rank), Some(step), Some(t)) = (number("rank"), number("step"), record["t"].as_f64())
    else {
        return false;
    };
    let is_frequent =
        |kind: &str| kind == "step" || FactKind::find(kind).is_some_and(|fact| fact.is_frequent);
    match record["kind"].as_str() {
        Some(kind) if is_frequent(kind) && !start.resized => {
            start.parts.get(rank as usize).is_some_and(|part| {
                // Servers count nothing; their records go by the clock.
                if part.report.is_server { t <= start.now.seconds() } else { step < part.step() }
            })
        }
        Some(_) => t <= start.now.seconds(),
        None => false,
    }
}

// long: one arm for every kind of record
/// Writes one record as one line of JSON.
pub fn write_line(out: &mut impl Write, record: &Record) -> io::Result<()> {
    let Record { t, rank, step, .. } = record;
    write!(out, "{{\"t\":{},\"rank\":{rank},\"step\":{step},\"kind\":", Real(*t))?;
    match &record.event {
        RecordKind::Step { loss, samples, compute, exposed, waiting } => write!(
            out,
            "\"step\",\"loss\":{},\"samples\":{samples},\"compute\":{},\"exposed\":{},\"waiting\":{}",
            Single(*loss),
            Real(*compute),
            Real(*exposed),
            Real(*waiting)
        ),
        RecordKind::Compute { seconds } => {
            write!(out, "\"compute\",\"seconds\":{}", Real(*seconds))
        }
        RecordKind::Transfer { to, bytes, seconds } => {
            write!(out, "\"transfer\",\"to\":{to},\"bytes\":{bytes},\"seconds\":{}", Real(*seconds))
        }
        RecordKind::Evaluation { loss, accuracy, consensus } => write!(
            out,
            "\"evaluation\",\"loss\":{},\"accuracy\":{},\"consensus\":{}",
            Real(*loss),
            Real(accuracy.unwrap_or(f64::NAN)),
            Real(*consensus)
        ),
        RecordKind::Workers { loss, accuracy } => {
            let [mean, worst] = accuracy.unwrap_or([f64::NAN; 2]);
            write!(
                out,
                "\"workers\",\"loss_mean\":{},\"loss_worst\":{},\"accuracy_mean\":{},\
                 \"accuracy_worst\":{}",
                Real(loss[0]),
                Real(loss[1]),
                Real(mean),
                Real(worst)
            )
        }
        RecordKind::Checkpoint { failure } => {
            let failure = serde_json::to_string(failure).map_err(io::Error::other)?;
            write!(out, "\"checkpoint\",\"failure\":{failure}")
        }
        RecordKind::Measured { kind: FactKind { name, number: None, .. }, .. } => {
            write!(out, "\"{name}\"")
        }
        RecordKind::Measured { kind: FactKind { name, number: Some(key), .. }, number } => {
            write!(out, "\"{name}\",\"{key}\":{number}")
        }
        RecordKind::Account { awaiting, links, memory } => {
            write_account(out, awaiting, links, *memory)
        }
        RecordKind::Deviation { distance, error } => {
            let (distance, error) = (Real(*distance), Real(*error));
            write!(out, "\"deviation\",\"distance\":{distance},\"error\":{error}")
        }
        RecordKind::Lost => write!(out, "\"lost\""),
        RecordKind::Left => write!(out, "\"left\""),
        RecordKind::Joined => write!(out, "\"joined\""),
        RecordKind::StateTransferred { bytes, seconds } => {
            let seconds = Real(*seconds);
            write!(out, "\"state_transferred\",\"bytes\":{bytes},\"seconds\":{seconds}")
        }
        RecordKind::Reconnected { peer } => write!(out, "\"reconnected\",\"peer\":{peer}"),
        RecordKind::TookOver => write!(out, "\"took_over\""),
        RecordKind::View { number } => write!(out, "\"view\",\"number\":{number}"),
    }?;
    out.write_all(b"}\n")
}

fn write_account(
    out: &mut impl Write,
    awaiting: &[AwaitedRank],
    links: &[LinkTotal],
    memory: ProcessMemory,
) -> io::Result<()> {
    write!(out, "\"account\",\"awaiting\":[")?;
    for (place, awaited) in awaiting.iter().enumerate() {
        let comma = if place > 0 { "," } else { "" };
        let what = serde_json::to_string(&awaited.what).map_err(io::Error::other)?;
        write!(out, "{comma}{{\"rank\":{},\"what\":{what}}}", awaited.rank)?;
    }
    write!(out, "],\"links\":[")?;
    for (place, link) in links.iter().enumerate() {
        let comma = if place > 0 { "," } else { "" };
        let LinkTotal { peer, sent, received, bytes_sent, bytes_received, .. } = link;
        let LinkTotal { round_trip_micros, resent, .. } = link;
        write!(out, "{comma}[{peer},{sent},{received},{bytes_sent},{bytes_received},")?;
        write!(out, "{round_trip_micros},{resent}]")?;
    }
    let ProcessMemory { resident_bytes, gpu_bytes } = memory;
    write!(out, "],\"resident_bytes\":{resident_bytes},\"gpu_bytes\":{gpu_bytes}")
}

/// A number as JSON has it: what is not finite is `null`.
struct Real(f64);

impl std::fmt::Display for Real {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_finite() { write!(f, "{:?}", self.0) } else { f.write_str("null") }
    }
}

/// As [`Real`], with the digits of single precision.
struct Single(f32);

impl std::fmt::Display for Single {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_finite() { write!(f, "{:?}", self.0) } else { f.write_str("null") }
    }
}

#[cfg(test)]
mod tests {
    use quelea_record::FACTS;

    use super::*;

    fn line(event: RecordKind) -> serde_json::Value {
        let mut bytes = Vec::new();
        let record = Record { t: 0.25, rank: 3, step: 7, event };
        write_line(&mut bytes, &record).expect("written");
        assert_eq!(bytes.last(), Some(&b'\n'));
        serde_json::from_slice(&bytes).expect("JSON")
    }

    #[test]
    fn every_kind_is_one_line_of_json() {
        let step = RecordKind::Step {
            loss: 0.1,
            samples: 32,
            compute: 1e-9,
            exposed: 2.5e10,
            waiting: 0.0,
        };
        let read = line(step);
        assert_eq!(read["t"], 0.25);
        assert_eq!((read["rank"].as_u64(), read["step"].as_u64()), (Some(3), Some(7)));
        assert_eq!(read["kind"], "step");
        assert_eq!((&read["loss"], &read["samples"]), (&0.1.into(), &32.into()));
        assert_eq!(read["compute"], 1e-9);
        assert_eq!(read["exposed"], 2.5e10);
        for (event, kind) in [
            (RecordKind::Compute { seconds: 1.0 }, "compute"),
            (RecordKind::Transfer { to: 1, bytes: 80, seconds: 0.5 }, "transfer"),
            (
                RecordKind::Evaluation { loss: 1.0, accuracy: Some(0.5), consensus: 0.0 },
                "evaluation",
            ),
            (RecordKind::Workers { loss: [1.0, 2.0], accuracy: None }, "workers"),
            (RecordKind::Checkpoint { failure: Some("disk \"full\"".into()) }, "checkpoint"),
            (RecordKind::Lost, "lost"),
            (RecordKind::Left, "left"),
            (RecordKind::Joined, "joined"),
            (RecordKind::StateTransferred { bytes: 8, seconds: 0.5 }, "state_transferred"),
            (RecordKind::Reconnected { peer: 3 }, "reconnected"),
            (RecordKind::TookOver, "took_over"),
            (RecordKind::View { number: 2 }, "view"),
        ] {
            assert_eq!(line(event)["kind"], kind);
        }
    }

    #[test]
    fn facts_are_written_under_their_names_with_the_numbers_that_say_something() {
        for kind in FACTS {
            let read = line(RecordKind::Measured { kind, number: 4 });
            assert_eq!(read["kind"], kind.name);
            assert_eq!(read.as_object().expect("a record").len(), 4 + kind.number.iter().len());
            kind.number.iter().for_each(|key| assert_eq!(read[key], 4));
        }
    }

    #[test]
    fn what_is_not_a_number_is_null() {
        let event =
            RecordKind::Evaluation { loss: f64::NAN, accuracy: None, consensus: f64::INFINITY };
        let read = line(event);
        assert!(read["loss"].is_null() && read["accuracy"].is_null());
        assert!(read["consensus"].is_null());
    }
}
