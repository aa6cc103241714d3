//! Answers to surveys as fields of packets.

use quelea_control::RankSurvey;
use quelea_record::{AwaitedRank, LinkTotal, ProcessMemory, RecordKind};
use quelea_wire::control::{ControlError, Reader, Writer};

use super::codec::reason;

pub(super) fn write_survey(w: Writer, survey: &RankSurvey) -> Writer {
    let w = w.number(survey.step);
    let w = write_account(w, &survey.awaiting, &survey.links, survey.memory);
    w.number(survey.sampled_at).values(&survey.sample)
}

pub(super) fn read_survey(r: &mut Reader<'_>) -> Result<RankSurvey, ControlError> {
    let step = r.number()?;
    let AccountFields { awaiting, links, memory } = AccountFields::read(r)?;
    Ok(RankSurvey { step, awaiting, links, memory, sampled_at: r.number()?, sample: r.values()? })
}

pub(super) fn write_account(
    w: Writer,
    awaiting: &[AwaitedRank],
    links: &[LinkTotal],
    memory: ProcessMemory,
) -> Writer {
    let w = w.list(awaiting, |w, awaited| w.number(awaited.rank).text(&awaited.what));
    let w = w.list(links, |w, link| {
        let LinkTotal { peer, sent, received, bytes_sent, bytes_received, .. } = link;
        let w = w.number(*peer).number(*sent).number(*received);
        let w = w.number(*bytes_sent).number(*bytes_received);
        w.number(link.round_trip_micros).number(link.resent)
    });
    w.number(memory.resident_bytes).number(memory.gpu_bytes)
}

/// What a rank says of itself, whoever asked.
pub(super) struct AccountFields {
    awaiting: Vec<AwaitedRank>,
    links: Vec<LinkTotal>,
    memory: ProcessMemory,
}

impl AccountFields {
    pub(super) fn read(r: &mut Reader<'_>) -> Result<AccountFields, ControlError> {
        let awaiting = r.list(|r| Ok(AwaitedRank { rank: r.small()?, what: reason(r)? }))?;
        let links = r.list(|r| {
            Ok(LinkTotal {
                peer: r.small()?,
                sent: r.number()?,
                received: r.number()?,
                bytes_sent: r.number()?,
                bytes_received: r.number()?,
                round_trip_micros: r.number()?,
                resent: r.number()?,
            })
        })?;
        let memory = ProcessMemory { resident_bytes: r.number()?, gpu_bytes: r.number()? };
        Ok(AccountFields { awaiting, links, memory })
    }

    pub(super) fn into_record(self) -> RecordKind {
        let AccountFields { awaiting, links, memory } = self;
        RecordKind::Account { awaiting, links, memory }
    }
}
