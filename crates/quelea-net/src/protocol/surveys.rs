//! Answers to surveys as fields of packets.

use quelea_control::RankSurvey;
use quelea_record::{AwaitedRank, LinkTotal};
use quelea_wire::control::{ControlError, Reader, Writer};

use super::codec::reason;

pub(super) fn write_survey(w: Writer, survey: &RankSurvey) -> Writer {
    let w = w.number(survey.step);
    let w = write_account(w, &survey.awaiting, &survey.links);
    w.number(survey.sampled_at).values(&survey.sample)
}

pub(super) fn read_survey(r: &mut Reader<'_>) -> Result<RankSurvey, ControlError> {
    let step = r.number()?;
    let (awaiting, links) = read_account(r)?;
    Ok(RankSurvey { step, awaiting, links, sampled_at: r.number()?, sample: r.values()? })
}

pub(super) fn write_account(w: Writer, awaiting: &[AwaitedRank], links: &[LinkTotal]) -> Writer {
    let w = w.list(awaiting, |w, awaited| w.number(awaited.rank).text(&awaited.what));
    w.list(links, |w, link| {
        let LinkTotal { peer, sent, received, bytes_sent, bytes_received } = link;
        w.number(*peer).number(*sent).number(*received).number(*bytes_sent).number(*bytes_received)
    })
}

pub(super) fn read_account(
    r: &mut Reader<'_>,
) -> Result<(Vec<AwaitedRank>, Vec<LinkTotal>), ControlError> {
    let awaiting = r.list(|r| Ok(AwaitedRank { rank: r.small()?, what: reason(r)? }))?;
    let links = r.list(|r| {
        Ok(LinkTotal {
            peer: r.small()?,
            sent: r.number()?,
            received: r.number()?,
            bytes_sent: r.number()?,
            bytes_received: r.number()?,
        })
    })?;
    Ok((awaiting, links))
}
