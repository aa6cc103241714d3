//! Reports, records and states as fields of packets.

use std::borrow::Cow;

use quelea_core::message::Rank;
use quelea_core::state::Saved;
use quelea_core::view::{DepartedRank, ViewChange};
use quelea_record::{FactKind, FactTotals, RankCheckpoint, RankReport, Record, RecordKind};
use quelea_wire::control::{ControlError, Reader, Writer};

use super::codec::reason;
use super::surveys::{AccountFields, write_account};

pub(super) fn write_part(w: Writer, part: &RankCheckpoint) -> Writer {
    let Saved { numbers, vectors } = &part.state;
    let numbers: Vec<(&String, &u64)> = numbers.iter().collect();
    let vectors: Vec<(&String, &Vec<f32>)> = vectors.iter().collect();
    let w = w.list(&numbers, |w, (name, value)| w.text(name).number(**value));
    let w = w.list(&vectors, |w, (name, values)| w.text(name).values(values));
    write_report(w, &part.report)
}

/// As [`write_part`] after `w`, without a copy of the vectors.
pub(super) fn saved_pieces(w: Writer, part: &RankCheckpoint) -> Vec<Cow<'_, [u8]>> {
    let Saved { numbers, vectors } = &part.state;
    let numbers: Vec<(&String, &u64)> = numbers.iter().collect();
    let w = w.list(&numbers, |w, (name, value)| w.text(name).number(**value));
    let mut pieces = vec![Cow::Owned(w.number(vectors.len() as u64).body())];
    for (name, values) in vectors {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let w = Writer::default().text(name).number(bytes.len() as u64);
        pieces.extend([Cow::Owned(w.body()), Cow::Borrowed(bytes)]);
    }
    pieces.push(Cow::Owned(write_report(Writer::default(), &part.report).body()));
    pieces
}

pub(super) fn read_part(r: &mut Reader<'_>) -> Result<RankCheckpoint, ControlError> {
    let numbers = r.list(|r| Ok((r.text()?, r.number()?)))?.into_iter().collect();
    let vectors = r.list(|r| Ok((r.text()?, r.values()?)))?.into_iter().collect();
    let (state, report) = (Saved { numbers, vectors }, read_report(r)?);
    Ok(RankCheckpoint { state, report, ..RankCheckpoint::default() })
}

pub(super) fn write_change(w: Writer, change: &ViewChange) -> Writer {
    let w = w.number(change.number).number(change.from_step);
    w.list(&change.departed, |w, departed| {
        w.number(departed.rank.0).number(departed.steps).number(departed.left)
    })
    .list(&change.joined, |w, rank| w.number(rank.0))
}

pub(super) fn read_change(r: &mut Reader<'_>) -> Result<ViewChange, ControlError> {
    let (number, from_step) = (r.small()?, r.number()?);
    let departed = r.list(|r| {
        Ok(DepartedRank { rank: Rank(r.small()?), steps: r.number()?, left: r.flag()? })
    })?;
    let joined = r.list(|r| Ok(Rank(r.small()?)))?;
    Ok(ViewChange { number, departed, joined, from_step })
}

pub(super) fn write_report(w: Writer, report: &RankReport) -> Writer {
    let facts: Vec<(&str, u64, u64)> = report.facts.iter().collect();
    w.number(report.rank)
        .number(report.is_server)
        .number(report.lost)
        .number(report.left)
        .number(report.steps)
        .number(report.samples)
        .real(report.compute_seconds)
        .real(report.exposed_seconds)
        .real(report.waiting_seconds)
        .number(report.bytes_sent)
        .number(report.bytes_received)
        .number(report.messages_sent)
        .list(&facts, |w, (name, number, times)| w.text(name).number(*number).number(*times))
        .number(report.last_loss.to_bits())
        .values(&report.params)
        .values(&report.model)
}

pub(super) fn read_report(r: &mut Reader<'_>) -> Result<RankReport, ControlError> {
    Ok(RankReport {
        rank: r.small()?,
        is_server: r.flag()?,
        lost: r.flag()?,
        left: r.flag()?,
        steps: r.number()?,
        samples: r.number()?,
        compute_seconds: r.real()?,
        exposed_seconds: r.real()?,
        waiting_seconds: r.real()?,
        bytes_sent: r.number()?,
        bytes_received: r.number()?,
        messages_sent: r.number()?,
        facts: read_facts(r)?,
        last_loss: f32::from_bits(r.small()?),
        params: r.values()?,
        model: r.values()?,
    })
}

fn read_facts(r: &mut Reader<'_>) -> Result<FactTotals, ControlError> {
    let mut facts = FactTotals::default();
    for (kind, number, times) in r.list(|r| Ok((read_fact_kind(r)?, r.number()?, r.number()?)))? {
        facts.add(kind, number, times);
    }
    Ok(facts)
}

fn read_fact_kind(r: &mut Reader<'_>) -> Result<&'static FactKind, ControlError> {
    let name = r.text()?;
    FactKind::find(&name).ok_or_else(|| r.unknown())
}

pub(super) fn write_record(w: Writer, record: &Record) -> Writer {
    let w = w.real(record.t).number(record.rank).number(record.step);
    match &record.event {
        RecordKind::Step { loss, samples, compute, exposed, waiting } => {
            let w = w.number(0u8).number(loss.to_bits()).number(*samples);
            w.real(*compute).real(*exposed).real(*waiting)
        }
        RecordKind::Compute { seconds } => w.number(1u8).real(*seconds),
        RecordKind::Transfer { to, bytes, seconds } => {
            w.number(2u8).number(*to).number(*bytes).real(*seconds)
        }
        RecordKind::Evaluation { loss, accuracy, consensus } => w
            .number(3u8)
            .real(*loss)
            .number(accuracy.is_some())
            .real(accuracy.unwrap_or_default())
            .real(*consensus),
        RecordKind::Workers { loss, accuracy } => {
            let reals =
                [loss[0], loss[1], accuracy.map_or(0.0, |a| a[0]), accuracy.map_or(0.0, |a| a[1])];
            let w = w.number(9u8).number(accuracy.is_some());
            reals.iter().fold(w, |w, real| w.real(*real))
        }
        RecordKind::Checkpoint { failure } => {
            let w = w.number(10u8).number(failure.is_some());
            w.text(failure.as_deref().unwrap_or_default())
        }
        RecordKind::Measured { kind, number } => w.number(4u8).text(kind.name).number(*number),
        RecordKind::Account { awaiting, links, memory } => {
            write_account(w.number(13u8), awaiting, links, *memory)
        }
        RecordKind::Deviation { distance, error } => w.number(14u8).real(*distance).real(*error),
        RecordKind::Lost => w.number(7u8),
        RecordKind::Left => w.number(11u8),
        RecordKind::Joined => w.number(12u8),
        RecordKind::TookOver => w.number(15u8),
        RecordKind::StateTransferred { bytes, seconds } => {
            w.number(16u8).number(*bytes).real(*seconds)
        }
        RecordKind::Reconnected { peer } => w.number(17u8).number(*peer),
        RecordKind::View { number } => w.number(8u8).number(*number),
    }
}

pub(super) fn read_record(r: &mut Reader<'_>) -> Result<Record, ControlError> {
    let (t, rank, step) = (r.real()?, r.small()?, r.number()?);
    let event = match r.number()? {
        0 => RecordKind::Step {
            loss: f32::from_bits(r.small()?),
            samples: r.small()?,
            compute: r.real()?,
            exposed: r.real()?,
            waiting: r.real()?,
        },
        1 => RecordKind::Compute { seconds: r.real()? },
        2 => RecordKind::Transfer { to: r.small()?, bytes: r.number()?, seconds: r.real()? },
        3 => RecordKind::Evaluation {
            loss: r.real()?,
            accuracy: {
                let (known, accuracy) = (r.flag()?, r.real()?);
                known.then_some(accuracy)
            },
            consensus: r.real()?,
        },
        4 => RecordKind::Measured { kind: read_fact_kind(r)?, number: r.number()? },
        7 => RecordKind::Lost,
        11 => RecordKind::Left,
        12 => RecordKind::Joined,
        15 => RecordKind::TookOver,
        16 => RecordKind::StateTransferred { bytes: r.number()?, seconds: r.real()? },
        17 => RecordKind::Reconnected { peer: r.small()? },
        8 => RecordKind::View { number: r.small()? },
        9 => {
            let known = r.flag()?;
            let loss = [r.real()?, r.real()?];
            let accuracy = [r.real()?, r.real()?];
            RecordKind::Workers { loss, accuracy: known.then_some(accuracy) }
        }
        10 => {
            let (failed, reason) = (r.flag()?, reason(r)?);
            RecordKind::Checkpoint { failure: failed.then_some(reason) }
        }
        13 => AccountFields::read(r)?.into_record(),
        14 => RecordKind::Deviation { distance: r.real()?, error: r.real()? },
        _ => return Err(r.unknown()),
    };
    Ok(Record { t, rank, step, event })
}
