//! The records of all parts, in order and without doubles.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::failed;
use super::parts::RunPart;
use crate::checkpoint::BestModel;
use crate::error::{RequestError, RunError};
use crate::files::limited::{LINE_BYTES, LimitedLines};
use crate::files::plots::Curves;

/// What a process records of the others because it controls the run: after its term it knows nothing of them.
const OF_CONTROLLER: [&str; 4] = ["lost", "left", "joined", "view"];

/// Takes a record, with its line.
type TakeLine<'a> = &'a mut dyn FnMut(Line, &[u8]) -> Result<(), RunError>;

/// What became of the records.
#[derive(Debug, Default)]
pub(super) struct MergedLines {
    pub(super) records: u64,
    pub(super) doubles: u64,
    /// What was left out, in sentences.
    pub(super) notes: Vec<String>,
    /// The best evaluation of every part.
    pub(super) best: Vec<Option<BestModel>>,
}

/// One record, as far as it must be understood.
struct Line {
    t: f64,
    rank: u64,
    kind: String,
    value: Value,
}

impl Line {
    fn parse(bytes: &[u8]) -> Option<Line> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        value["step"].as_u64()?;
        let (t, rank) = (value["t"].as_f64()?, value["rank"].as_u64()?);
        let kind = value["kind"].as_str()?.to_string();
        Some(Line { t, rank, kind, value })
    }

    fn evaluation(&self) -> Option<BestModel> {
        let loss = self.value["loss"].as_f64().filter(|_| self.kind == "evaluation")?;
        let accuracy = self.value["accuracy"].as_f64();
        Some(BestModel { step: self.value["step"].as_u64()?, loss, accuracy })
    }
}

/// A digest of a line: two different ones never have the same.
fn digest(line: &[u8]) -> [u8; 16] {
    let whole = Sha256::digest(line);
    let mut half = [0; 16];
    half.copy_from_slice(&whole[..16]);
    half
}

/// Writes the records of all parts to `out`.
pub(super) fn merge(
    parts: &[RunPart],
    out: &mut impl Write,
    curves: &mut Curves,
) -> Result<MergedLines, RunError> {
    let mut merged = MergedLines::default();
    let mut earlier = EarlierParts::default();
    for (place, part) in parts.iter().enumerate() {
        let next = parts.get(place + 1);
        let end = next.map(taken_over_at).transpose()?.flatten();
        let mut current = CurrentPart { end, ..CurrentPart::of(part) };
        current.read(&mut |line, bytes| {
            let Some(line) = earlier.admit(part, line, bytes, &mut merged)? else { return Ok(()) };
            curves.take_line(&line.value);
            merged.records += 1;
            out.write_all(bytes).and_then(|()| writeln!(out)).map_err(failed(&part.folder))
        })?;
        merged.best.push(current.best);
        merged.notes.append(&mut current.notes);
        earlier.end();
    }
    Ok(merged)
}

/// When the process of this part took over, by its records.
fn taken_over_at(part: &RunPart) -> Result<Option<f64>, RunError> {
    let mut at = None;
    let mut current = CurrentPart::of(part);
    current.read(&mut |line, _| {
        at = at.or((line.kind == "took_over").then_some(line.t));
        Ok(())
    })?;
    Ok(at)
}

/// What is known of the parts before.
#[derive(Default)]
struct EarlierParts {
    /// Their lines.
    lines: BTreeSet<[u8; 16]>,
    /// The lines of the part that is being read.
    own: BTreeSet<[u8; 16]>,
    /// When every rank has finished its last step in them.
    last: BTreeMap<u64, f64>,
    /// The same in the part that is being read.
    own_last: BTreeMap<u64, f64>,
}

impl EarlierParts {
    /// The line, unless it was in an earlier part.
    fn admit(
        &mut self,
        part: &RunPart,
        line: Line,
        bytes: &[u8],
        merged: &mut MergedLines,
    ) -> Result<Option<Line>, RequestError> {
        let digest = digest(bytes);
        if self.lines.contains(&digest) {
            merged.doubles += 1;
            return Ok(None);
        }
        self.own.insert(digest);
        if line.kind != "step" {
            return Ok(Some(line));
        }
        // A rank says every record once, in order and by its own clock.
        let (t, rank) = (line.t, line.rank);
        if let Some(last) = self.last.get(&rank).filter(|last| t < **last) {
            return Err(RequestError::Conflict(format!(
                "the records of {} overlap with those of a part before it: a step of rank {rank} ended after \
                 {t:.3} s, although the earlier part has steps of it until {last:.3} s",
                part.folder.display()
            )));
        }
        let until = self.own_last.entry(rank).or_insert(t);
        *until = until.max(t);
        Ok(Some(line))
    }

    /// The part that was read is an earlier one now.
    fn end(&mut self) {
        self.lines.append(&mut self.own);
        for (rank, t) in std::mem::take(&mut self.own_last) {
            let last = self.last.entry(rank).or_insert(t);
            *last = last.max(t);
        }
    }
}

/// The part that is being read.
struct CurrentPart<'a> {
    part: &'a RunPart,
    /// When the next process took over, if one did.
    end: Option<f64>,
    best: Option<BestModel>,
    notes: Vec<String>,
}

impl<'a> CurrentPart<'a> {
    fn of(part: &'a RunPart) -> CurrentPart<'a> {
        CurrentPart { part, end: None, best: None, notes: Vec::new() }
    }

    /// Hands on every record that counts.
    fn read(&mut self, take: TakeLine<'_>) -> Result<(), RunError> {
        let Some(path) = &self.part.records else {
            let folder = self.part.folder.display();
            self.notes.push(format!("{folder} has no records"));
            return Ok(());
        };
        let unreadable = |error| RequestError::file(path, error);
        let file = File::open(path).map_err(unreadable)?;
        let mut lines = LimitedLines::new(BufReader::new(file), LINE_BYTES);
        let (mut number, mut late) = (0u64, 0u64);
        while let Some(bytes) = lines.next_line().map_err(unreadable)? {
            number += 1;
            let line = Line::parse(bytes).ok_or_else(|| no_record(path, number))?;
            if is_late(&line, self.end) {
                late += 1;
                continue;
            }
            self.note_evaluation(&line);
            take(line, bytes)?;
        }
        let rest = lines.unfinished();
        if let Some(line) = Line::parse(rest).filter(|line| !is_late(line, self.end)) {
            self.note_evaluation(&line);
            take(line, rest)?;
        } else if !rest.is_empty() {
            let place = path.display();
            self.notes.push(format!("the last line of {place} is half a record and was left out"));
        }
        if late > 0 {
            self.notes.push(format!(
                "{late} records of {} about losses and joins are from after another process took over and were left out",
                path.display()
            ));
        }
        Ok(())
    }

    fn note_evaluation(&mut self, line: &Line) {
        let Some(found) = line.evaluation() else { return };
        if self.best.is_none_or(|best| found.beats(&best)) {
            self.best = Some(found);
        }
    }
}

fn no_record(path: &Path, number: u64) -> RequestError {
    RequestError::file(path, format!("line {number} is no record"))
}

/// Whether a process recorded this of others after it had lost control of the run, as one that was stopped does.
fn is_late(line: &Line, end: Option<f64>) -> bool {
    end.is_some_and(|end| line.t > end) && OF_CONTROLLER.contains(&line.kind.as_str())
}
