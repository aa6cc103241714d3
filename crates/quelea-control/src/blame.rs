//! Which link is to blame when nobody moves any more: messages that one rank has sent and the other
//! has not received.

use std::collections::BTreeMap;

use crate::messages::Account;
use crate::text::{REASON_CHARS, shown};

/// Links that are named in one sentence.
const NAMED: usize = 3;

/// A link on which messages were lost or are stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CutLink {
    from: u32,
    to: u32,
    /// Messages that did not arrive.
    missing: u64,
}

/// What ends the run, in a sentence: the links that deliver nothing, or who did not answer; else the
/// first complaint, which is always part of it.
pub(crate) fn sentence(complaint: &str, accounts: &BTreeMap<u32, Account>) -> String {
    let cut = cut_links(accounts);
    if let Some(edges) = named(&cut) {
        return format!("{edges} ({complaint}{})", waits(&cut, accounts));
    }
    match silent_end(accounts) {
        Some((waiting, silent)) => format!(
            "{complaint}; in the end all wait for rank {silent}, which does not say for whom it waits \
             (rank {waiting} waits for it)"
        ),
        None => complaint.to_string(),
    }
}

/// Who is at more ends of such links than anybody else: what a rank says of its messages that others do not
/// confirm is its own problem. Where two are equal, ranks of the controller's own process are believed.
pub(crate) fn culprit(accounts: &BTreeMap<u32, Account>, own_ranks: &[u32]) -> Option<u32> {
    let mut ends: BTreeMap<u32, usize> = BTreeMap::new();
    for link in cut_links(accounts) {
        *ends.entry(link.from).or_default() += 1;
        *ends.entry(link.to).or_default() += 1;
    }
    let ends = ends.into_iter().map(|(rank, count)| (count, !own_ranks.contains(&rank), rank));
    ends.max().filter(|(_, is_remote, _)| *is_remote).map(|(.., rank)| rank)
}

/// Where the sender counts more messages than the receiver.
fn cut_links(accounts: &BTreeMap<u32, Account>) -> Vec<CutLink> {
    let mut cut = Vec::new();
    for (from, sender) in accounts {
        for (to, receiver) in accounts {
            let sent = sender.sent.get(*to as usize).copied().unwrap_or(0);
            let received = receiver.received.get(*from as usize).copied().unwrap_or(0);
            if sent > received {
                cut.push(CutLink { from: *from, to: *to, missing: sent - received });
            }
        }
    }
    cut
}

/// "rank 1 could not reach rank 2: 3 messages did not arrive"
fn named(cut: &[CutLink]) -> Option<String> {
    let count = |missing: u64| match missing {
        1 => "1 message did not arrive".to_string(),
        missing => format!("{missing} messages did not arrive"),
    };
    let back = |link: &CutLink| cut.iter().find(|b| (b.from, b.to) == (link.to, link.from));
    let sentences: Vec<String> = cut
        .iter()
        .filter_map(|link| match back(link) {
            None => {
                let CutLink { from, to, missing } = link;
                Some(format!("rank {from} could not reach rank {to}: {}", count(*missing)))
            }
            // Both directions are told once.
            Some(back) if link.from < link.to => Some(format!(
                "rank {} and rank {} could not reach each other: {}",
                link.from,
                link.to,
                count(link.missing.saturating_add(back.missing))
            )),
            Some(_) => None,
        })
        .collect();
    let first = sentences.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
    match sentences.len() {
        0 => None,
        all if all <= NAMED => Some(first),
        all => Some(format!("{first}; and {} links more", all - NAMED)),
    }
}

/// What the receiver of the first cut link waits for there, if it says so.
fn waits(cut: &[CutLink], accounts: &BTreeMap<u32, Account>) -> String {
    let said = cut.iter().find_map(|link| {
        let receiver = accounts.get(&link.to)?;
        let awaited = receiver.awaiting.iter().find(|awaited| awaited.from == link.from)?;
        let what = shown(&awaited.what, REASON_CHARS);
        Some(format!(
            "; rank {} waits for {what} of step {} of rank {}",
            link.to, receiver.step, link.from
        ))
    });
    said.unwrap_or_default()
}

/// Follows who waits for whom to a rank that has given no account: the last that waits, and that one.
fn silent_end(accounts: &BTreeMap<u32, Account>) -> Option<(u32, u32)> {
    accounts.iter().find_map(|(rank, account)| {
        let silent = account.awaiting.iter().find(|peer| !accounts.contains_key(&peer.from))?;
        Some((*rank, silent.from))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::AwaitedPeer;

    /// A rank of four that waits for others, having sent and received so many messages.
    fn account(awaits: &[u32], sent: [u64; 4], received: [u64; 4]) -> Account {
        let awaiting =
            awaits.iter().map(|from| AwaitedPeer { from: *from, what: "a chunk".into() });
        Account {
            step: 5,
            awaiting: awaiting.collect(),
            sent: sent.to_vec(),
            received: received.to_vec(),
        }
    }

    const COMPLAINT: &str = "rank 3 waited 30.0 s for rank 2: a chunk of step 5";

    /// A ring 0 → 1 → 2 → 3 → 0 whose link from 1 to 2 is cut: all wait, each for the one before.
    fn ring() -> BTreeMap<u32, Account> {
        BTreeMap::from([
            (0, account(&[3], [0, 9, 0, 0], [0, 0, 0, 8])),
            (1, account(&[0], [0, 0, 9, 0], [9, 0, 0, 0])),
            (2, account(&[1], [0, 0, 0, 8], [0, 7, 0, 0])),
            (3, account(&[2], [8, 0, 0, 0], [0, 0, 8, 0])),
        ])
    }

    #[test]
    fn the_link_whose_messages_did_not_arrive_is_named_not_whoever_waits() {
        assert_eq!(
            sentence(COMPLAINT, &ring()),
            format!(
                "rank 1 could not reach rank 2: 2 messages did not arrive ({COMPLAINT}; rank 2 waits \
                 for a chunk of step 5 of rank 1)"
            )
        );
    }

    #[test]
    fn a_cut_in_both_directions_is_named_once() {
        let accounts = BTreeMap::from([
            (0, account(&[1], [0, 4, 0, 0], [0, 3, 0, 0])),
            (1, account(&[0], [4, 0, 0, 0], [3, 0, 0, 0])),
        ]);
        let text = sentence(COMPLAINT, &accounts);
        let expected = "rank 0 and rank 1 could not reach each other: 2 messages did not arrive (";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn a_rank_that_gives_no_account_is_where_the_waiting_ends() {
        let mut accounts = ring();
        accounts.remove(&1);
        let text = sentence(COMPLAINT, &accounts);
        assert!(
            text.contains("in the end all wait for rank 1") && text.contains("(rank 2"),
            "{text}"
        );
    }

    #[test]
    fn a_rank_whose_numbers_nobody_confirms_is_at_every_end() {
        let mut accounts = ring();
        accounts.insert(1, account(&[], [5, 0, 5, 0], [9, 0, 0, 0]));
        accounts.insert(2, account(&[], [0, 0, 0, 8], [0, 4, 0, 0]));
        assert_eq!(culprit(&accounts, &[]), Some(1));
        assert_eq!(culprit(&ring(), &[1, 2]), None, "ranks of this process are believed");
        assert_eq!(culprit(&ring(), &[1]), Some(2));
        assert_eq!(culprit(&BTreeMap::new(), &[]), None);
    }

    #[test]
    fn where_every_message_arrived_the_complaint_is_all_there_is() {
        let accounts = BTreeMap::from([(0, account(&[0], [0; 4], [0; 4]))]);
        assert_eq!(sentence(COMPLAINT, &accounts), COMPLAINT);
    }
}
