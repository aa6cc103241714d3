//! Who waits for whom, and the longest chain as a sentence.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::description::RunDescription;
use crate::state::{MomentState, Surroundings};

/// Edges of the graph that are listed.
const LISTED: usize = 256;
/// Seconds for which an answer is shown although its rank has completed a step: until the next survey.
const FRESH: f64 = 0.75;

/// One rank waits for another.
#[derive(Clone, Debug, PartialEq)]
pub struct RankWait {
    /// Who waits.
    pub rank: u32,
    /// For whom.
    pub peer: u32,
    /// What for.
    pub what: String,
    /// At which step.
    pub step: u64,
    /// Since its last step, in seconds.
    pub seconds: f64,
}

/// The wait-for graph of a run at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WaitGraph {
    /// Its edges.
    pub waits: Vec<RankWait>,
    /// Whether they follow from the steps that ranks have completed, instead of what they said.
    pub is_inferred: bool,
}

/// Finds who waits for whom: as ranks said, or, where none was asked, as their steps imply.
pub fn find(state: &MomentState, about: &RunDescription, around: &Surroundings) -> WaitGraph {
    if around.has_ended && around.summary.is_some() {
        return WaitGraph::default();
    }
    let mut living = state.ranks.iter().filter(|rank| rank.lost.is_none());
    if living.any(|rank| rank.account.is_some()) {
        return WaitGraph { waits: said(state, around.now), is_inferred: false };
    }
    WaitGraph { waits: inferred(state, about, around.now), is_inferred: true }
}

/// What ranks said when they were last asked. Of one that has completed a step since, that is of the moment of
/// the survey, and holds until the next one is due; a step that is short would otherwise never be seen.
fn said(state: &MomentState, now: f64) -> Vec<RankWait> {
    let living = state.ranks.iter().enumerate().filter(|(_, rank)| rank.lost.is_none());
    let waits = living.flat_map(|(number, rank)| {
        let said = rank.account.as_ref().filter(|said| rank.is_waiting() || now - said.t <= FRESH);
        said.into_iter().flat_map(move |said| {
            let until = if rank.is_waiting() { now } else { said.t };
            let seconds = (until - said.since).max(0.0);
            said.awaiting.iter().map(move |awaited| RankWait {
                rank: number as u32,
                peer: awaited.rank,
                what: awaited.what.clone(),
                step: said.step,
                seconds,
            })
        })
    });
    waits.take(LISTED).collect()
}

/// Where workers take their steps together, one that has completed fewer of them is waited for: by
/// its neighbours of the round, or, without a topology, by all.
fn inferred(state: &MomentState, about: &RunDescription, now: f64) -> Vec<RankWait> {
    if !about.synchronous {
        return Vec::new();
    }
    let workers = about.workers.min(state.ranks.len());
    let alive = |rank: u32| (rank as usize) < workers && state.ranks[rank as usize].lost.is_none();
    let steps = |rank: u32| state.ranks[rank as usize].steps;
    let least = (0..workers as u32).filter(|rank| alive(*rank)).min_by_key(|rank| steps(*rank));
    let Some(slowest) = least else { return Vec::new() };
    let mut waits = Vec::new();
    for rank in (0..workers as u32).filter(|rank| alive(*rank)) {
        let edges = state.edges(about, steps(rank));
        let before = |peer: &u32| alive(*peer) && steps(*peer) < steps(rank);
        let peers: Vec<u32> = match &about.topology {
            Some(_) => {
                let to_it = edges.iter().filter(|(_, to)| *to == rank);
                to_it.map(|(from, _)| *from).filter(before).collect()
            }
            None => Some(slowest).filter(before).into_iter().collect(),
        };
        let since = state.ranks[rank as usize].stepped.unwrap_or(0.0);
        let seconds = (now - since).max(0.0);
        let what = String::from("its step");
        let wait = |peer| RankWait { rank, peer, what: what.clone(), step: steps(rank), seconds };
        waits.extend(peers.into_iter().map(wait));
    }
    waits.truncate(LISTED);
    waits
}

impl WaitGraph {
    /// The longest chain of ranks that wait for one another, from its beginning.
    pub fn chain(&self) -> Vec<&RankWait> {
        let mut by_rank: BTreeMap<u32, Vec<&RankWait>> = BTreeMap::new();
        for wait in &self.waits {
            by_rank.entry(wait.rank).or_default().push(wait);
        }
        let mut longest: Vec<&RankWait> = Vec::new();
        for start in by_rank.keys() {
            let (mut chain, mut seen, mut at) = (Vec::new(), BTreeSet::from([*start]), *start);
            // The next link is the one that leads on, else the first; a circle ends where it closes.
            while let Some(next) = by_rank.get(&at) {
                let leads_on = |wait: &&&RankWait| {
                    by_rank.contains_key(&wait.peer) && !seen.contains(&wait.peer)
                };
                let Some(wait) = next.iter().find(leads_on).or(next.first()) else { break };
                chain.push(*wait);
                if !seen.insert(wait.peer) {
                    break;
                }
                at = wait.peer;
            }
            let waited = |chain: &[&RankWait]| chain.first().map_or(0.0, |wait| wait.seconds);
            let is_longer = chain.len() > longest.len()
                || chain.len() == longest.len() && waited(&chain) > waited(&longest);
            if is_longer {
                longest = chain;
            }
        }
        longest
    }

    /// "rank 3 waits 4.1 s for the model of rank 7 at step 812, which waits for rank 2"
    pub fn sentence(&self) -> String {
        let chain = self.chain();
        let Some((first, rest)) = chain.split_first() else {
            return "nobody waits for anybody".to_string();
        };
        let RankWait { rank, peer, what, step, seconds } = first;
        // A rank says "its model"; whose that is follows in the sentence.
        let what = what.strip_prefix("its ").map_or(what.clone(), |what| format!("the {what}"));
        let mut text =
            format!("rank {rank} waits {seconds:.1} s for {what} of rank {peer} at step {step}");
        for wait in rest {
            text += &format!(", which waits for rank {}", wait.peer);
        }
        let back = chain.last().map(|wait| wait.peer);
        if chain.len() > 1 && chain.iter().any(|wait| Some(wait.rank) == back) {
            text += ": a circle";
        }
        text
    }

    /// As the API shows it.
    pub fn json(&self) -> Value {
        let edges = self.waits.iter().map(|wait| {
            let RankWait { rank, peer, what, step, seconds } = wait;
            json!({ "rank": rank, "for": peer, "what": what, "step": step, "seconds": seconds })
        });
        json!({
            "edges": edges.collect::<Vec<_>>(),
            "sentence": self.sentence(),
            "is_inferred": self.is_inferred,
        })
    }
}

#[cfg(test)]
mod tests {
    use quelea_record::{AwaitedRank, ProcessMemory, Record, RecordKind};

    use super::*;

    fn graph(edges: &[(u32, u32)]) -> WaitGraph {
        let wait = |(rank, peer): &(u32, u32)| RankWait {
            rank: *rank,
            peer: *peer,
            what: "the model".into(),
            step: 812,
            seconds: 4.125,
        };
        WaitGraph { waits: edges.iter().map(wait).collect(), is_inferred: false }
    }

    #[test]
    fn the_longest_chain_is_a_sentence() {
        assert_eq!(
            graph(&[(3, 7)]).sentence(),
            "rank 3 waits 4.1 s for the model of rank 7 at step 812"
        );
        assert_eq!(
            graph(&[(0, 1), (5, 4), (4, 2), (2, 9)]).sentence(),
            "rank 5 waits 4.1 s for the model of rank 4 at step 812, which waits for rank 2, which \
             waits for rank 9"
        );
        assert_eq!(WaitGraph::default().sentence(), "nobody waits for anybody");
    }

    fn step(t: f64, rank: u32, step: u64) -> Record {
        let event =
            RecordKind::Step { loss: 1.0, samples: 4, compute: 0.5, exposed: 0.25, waiting: 0.25 };
        Record { t, rank, step, event }
    }

    fn account(t: f64, rank: u32, awaited: &[u32]) -> Record {
        let awaited =
            awaited.iter().map(|rank| AwaitedRank { rank: *rank, what: "its model".into() });
        let (awaiting, links, memory) = (awaited.collect(), Vec::new(), ProcessMemory::default());
        Record { t, rank, step: 1, event: RecordKind::Account { awaiting, links, memory } }
    }

    /// What is found of four workers in step after these records.
    fn found(topology: Option<&str>, records: &[Record], now: f64) -> WaitGraph {
        let algorithm = if topology.is_some() { "d-psgd" } else { "allreduce" };
        let config = serde_json::json!({
            "workers": 4, "steps": 10, "algorithm": { "name": algorithm },
            "topology": { "name": topology.unwrap_or("ring") }, "task": { "name": "a script" },
        });
        let mut about = RunDescription::of_config(config, "four");
        about.topology = about.topology.filter(|_| topology.is_some());
        let mut state = MomentState::new(&about, 1);
        records.iter().for_each(|record| state.take(record));
        find(&state, &about, &Surroundings { now, ..Surroundings::default() })
    }

    fn edges(graph: &WaitGraph) -> Vec<(u32, u32)> {
        graph.waits.iter().map(|wait| (wait.rank, wait.peer)).collect()
    }

    #[test]
    fn without_a_survey_those_ahead_wait_for_the_neighbour_that_is_behind() {
        let records: Vec<Record> = [0, 1, 3].into_iter().map(|rank| step(2.0, rank, 0)).collect();
        let ring = found(Some("ring"), &records, 3.0);
        assert_eq!((edges(&ring), ring.is_inferred), (vec![(1, 2), (3, 2)], true));
        assert_eq!(ring.sentence(), "rank 1 waits 1.0 s for the step of rank 2 at step 1");
        let all = found(None, &records, 3.0);
        assert_eq!(edges(&all), [(0, 2), (1, 2), (3, 2)], "without a topology all wait for it");
    }

    #[test]
    fn ranks_that_were_asked_are_believed_also_when_they_wait_for_nobody() {
        let ahead: Vec<Record> = [0, 1, 3].into_iter().map(|rank| step(2.0, rank, 0)).collect();
        let nobody = [ahead.clone(), vec![account(2.5, 0, &[])]].concat();
        assert_eq!(found(Some("ring"), &nobody, 3.0), WaitGraph::default());
        let said = [ahead, vec![account(2.5, 1, &[2])]].concat();
        let graph = found(Some("ring"), &said, 6.1);
        assert_eq!((edges(&graph), graph.is_inferred), (vec![(1, 2)], false));
        assert_eq!(graph.sentence(), "rank 1 waits 4.1 s for the model of rank 2 at step 1");
    }

    #[test]
    fn what_was_said_before_the_last_step_is_of_the_survey_and_is_forgotten_after_the_next() {
        let records = [step(2.0, 1, 0), account(2.25, 1, &[2]), step(2.5, 1, 1)];
        let graph = found(Some("ring"), &records, 2.75);
        assert_eq!((edges(&graph), graph.waits[0].seconds), (vec![(1, 2)], 0.25));
        assert_eq!(found(Some("ring"), &records, 3.25), WaitGraph::default());
        let next = [&records[..], &[account(2.75, 1, &[])]].concat();
        assert_eq!(found(Some("ring"), &next, 2.75), WaitGraph::default());
    }

    #[test]
    fn a_circle_is_followed_once() {
        let sentence = graph(&[(0, 1), (1, 2), (2, 0)]).sentence();
        assert!(sentence.ends_with("which waits for rank 0: a circle"), "{sentence}");
    }
}
