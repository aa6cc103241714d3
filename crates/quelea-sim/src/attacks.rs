//! Byzantine workers: what they send instead of what their algorithm says.
//!
//! A Byzantine worker computes and receives as any other. When one of its messages leaves, the vectors in
//! it are replaced. Attackers that collude know the vectors that the honest workers send in the same
//! round: their messages wait until the last of these has left, and leave at that moment.

mod refusal;
mod vectors;

use std::collections::BTreeMap;

use quelea_core::message::{Message, MessageFields, Part, Rank};
use quelea_core::payload::Payload;
use quelea_core::problems::{GradientSource, Problem};
use quelea_core::run_spec::RunSpec;

use crate::SimError;
use crate::cluster::{Cluster, ClusterError};
use crate::driver::Driver;
use refusal::refusal;
use vectors::HonestRound;

/// A worker is Byzantine, from the beginning to the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attack {
    /// Which.
    pub rank: u32,
    /// What it does.
    pub kind: AttackKind,
    /// How strongly; [`AttackEntry::strength`] says what it means and what it is by default.
    pub strength: Option<f64>,
}

/// What a Byzantine worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttackKind {
    /// Sends its own vectors times −strength.
    SignFlip,
    /// Trains on reversed labels, and sends what comes of it.
    LabelFlip,
    /// Sends normal noise of standard deviation `strength`.
    Gaussian,
    /// A little is enough (Baruch et al. 2019): mean + strength·deviation of the honest vectors.
    Alie,
    /// Inner-product manipulation (Xie et al. 2020): −strength times the honest mean.
    Ipm,
    /// Sends what the first honest worker sends (Karimireddy et al. 2022).
    Mimic,
    /// Pushes every neighbour away from what it would take from the honest ones (He et al. 2022).
    Dissensus,
    /// Pushes every neighbour along the slowest mode of the honest graph (Gaucher et al. 2025).
    Spectral,
}

/// One entry of the table of attacks.
#[derive(Clone, Copy, Debug)]
pub struct AttackEntry {
    /// Its name in the configuration.
    pub name: &'static str,
    /// What it is.
    pub kind: AttackKind,
    /// The strength, where none is given.
    pub strength: f64,
    /// One line for people.
    pub help: &'static str,
}

/// All attacks, by name.
pub const ATTACKS: &[AttackEntry] = &[
    AttackEntry {
        name: "alie",
        kind: AttackKind::Alie,
        strength: 1.5,
        help: "mean of the honest vectors plus so many of their standard deviations",
    },
    AttackEntry {
        name: "dissensus",
        kind: AttackKind::Dissensus,
        strength: 1.5,
        help: "against what the honest neighbours of each receiver pull it to, times so much",
    },
    AttackEntry {
        name: "gaussian",
        kind: AttackKind::Gaussian,
        strength: 1.0,
        help: "normal noise of this standard deviation",
    },
    AttackEntry {
        name: "ipm",
        kind: AttackKind::Ipm,
        strength: 2.0,
        help: "the mean of the honest vectors, times minus so much",
    },
    AttackEntry {
        name: "label-flip",
        kind: AttackKind::LabelFlip,
        strength: 1.0,
        help: "honest training on labels in reverse order",
    },
    AttackEntry {
        name: "mimic",
        kind: AttackKind::Mimic,
        strength: 1.0,
        help: "what the first honest worker sends",
    },
    AttackEntry {
        name: "sign-flip",
        kind: AttackKind::SignFlip,
        strength: 1.0,
        help: "its own vectors, times minus so much",
    },
    AttackEntry {
        name: "spectral",
        kind: AttackKind::Spectral,
        strength: 2.0,
        help: "each receiver along the slowest mode of the honest graph, times so much",
    },
];

impl AttackKind {
    /// Its entry in the table.
    pub fn entry(self) -> &'static AttackEntry {
        ATTACKS.iter().find(|entry| entry.kind == self).expect("every kind has an entry")
    }

    /// Whether it needs the honest vectors of the round.
    fn colludes(self) -> bool {
        !matches!(self, AttackKind::SignFlip | AttackKind::LabelFlip | AttackKind::Gaussian)
    }

    /// Whether it needs to know who mixes with whom.
    fn needs_topology(self) -> bool {
        matches!(self, AttackKind::Dissensus | AttackKind::Spectral)
    }
}

impl Attack {
    /// The strength that was given, or that of the table.
    fn strength(&self) -> f64 {
        self.strength.unwrap_or(self.kind.entry().strength)
    }
}

/// Refuses attacks that the run cannot have.
pub(crate) fn check(attacks: &[Attack], setup: &RunSpec) -> Result<(), ClusterError> {
    let workers = setup.seats();
    let refuse = |field: &str, value: String, allowed: String| {
        Err(ClusterError::new(format!("faults.attacks.{field}"), value, allowed))
    };
    let mut byzantine = vec![false; workers];
    for attack in attacks {
        let rank = attack.rank.to_string();
        match byzantine.get_mut(attack.rank as usize) {
            None => {
                let allowed = format!("there are {workers} workers, numbered from 0");
                return refuse("rank", rank, allowed);
            }
            Some(true) => return refuse("rank", rank, "has an attack already".into()),
            Some(seen) => *seen = true,
        }
        if !(0.0..=1e30).contains(&attack.strength()) {
            let allowed = "must be a number from 0 to 1e30".to_string();
            return refuse("strength", attack.strength().to_string(), allowed);
        }
        if let Some(reason) = refusal(attack.kind, setup) {
            return refuse("kind", format!("\"{}\"", attack.kind.entry().name), reason);
        }
    }
    if !byzantine.is_empty() && byzantine.iter().all(|is| *is) {
        return refuse("rank", "all".into(), "at least one worker must be honest".into());
    }
    Ok(())
}

/// The gradient sources of workers whose labels are flipped.
pub(crate) fn sources(
    problem: &dyn Problem,
    cluster: &Cluster,
    workers: usize,
) -> Result<BTreeMap<usize, Box<dyn GradientSource>>, SimError> {
    let attacks = &cluster.faults.attacks;
    let flips = |rank: usize| {
        let mine = |attack: &Attack| attack.rank as usize == rank;
        attacks.iter().any(|attack| mine(attack) && attack.kind == AttackKind::LabelFlip)
    };
    let source = |rank: usize| {
        let source = problem.flipped_source(rank).ok_or_else(|| {
            let (field, allowed) = ("faults.attacks.kind", "the task has no labels");
            SimError::Cluster(ClusterError::new(field, "\"label-flip\"", allowed))
        })?;
        Ok((rank, source))
    };
    (0..workers).filter(|rank| flips(*rank)).map(source).collect()
}

/// Messages that belong together: what all workers send in one round, for one part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RoundKey {
    step: u64,
    kind: u8,
    bucket: u32,
    stage: u32,
    /// The server it goes to, if it goes to one: servers hold different parts.
    server: Option<u32>,
}

/// A message that waits for the honest ones of its round.
struct HeldAttack {
    from: usize,
    to: Rank,
    message: Message,
    holds_link: bool,
}

/// What attackers know, and what waits.
#[derive(Default)]
pub(crate) struct Attacks {
    by_rank: BTreeMap<u32, Attack>,
    /// Whether anybody needs to know the honest vectors.
    collude: bool,
    /// Of the last rounds, what honest workers have sent.
    rounds: BTreeMap<RoundKey, BTreeMap<u32, [Part; 2]>>,
    held: BTreeMap<RoundKey, Vec<HeldAttack>>,
}

/// Rounds that are remembered: a worker of a synchronous algorithm is at most one step ahead.
const REMEMBERED: u64 = 2;

impl Attacks {
    pub(crate) fn new(cluster: &Cluster) -> Attacks {
        let attacks = &cluster.faults.attacks;
        Attacks {
            by_rank: attacks.iter().map(|attack| (attack.rank, *attack)).collect(),
            collude: attacks.iter().any(|attack| attack.kind.colludes()),
            ..Attacks::default()
        }
    }

    fn remember(&mut self, key: RoundKey, from: usize, message: &Message) {
        let round = self.rounds.entry(key).or_default();
        round.entry(from as u32).or_insert_with(|| message.parts.clone());
        self.rounds.retain(|other, _| other.step + REMEMBERED >= key.step);
    }
}

impl Driver<'_> {
    /// A message leaves its sender.
    pub(crate) fn hand_over(&mut self, from: usize, to: Rank, message: Message, holds_link: bool) {
        let attack = self.attacks.by_rank.get(&(from as u32)).copied();
        match attack {
            None if self.attacks.collude && from < self.setup.seats() => {
                let key = self.round_key(to, &message);
                self.attacks.remember(key, from, &message);
                self.put_on_wire(from, to, message, holds_link);
                self.release_if_complete(key);
            }
            Some(attack) if attack.kind.colludes() && !message.collective => {
                let key = self.round_key(to, &message);
                let held = HeldAttack { from, to, message, holds_link };
                self.attacks.held.entry(key).or_default().push(held);
                self.release_if_complete(key);
            }
            Some(attack) => {
                let message = self.corrupted_alone(attack, message);
                self.put_on_wire(from, to, message, holds_link);
            }
            None => self.put_on_wire(from, to, message, holds_link),
        }
    }

    /// Nothing else can happen: what waits leaves with what is known. Whether anything did.
    pub(crate) fn release_attacks(&mut self) -> bool {
        let Some((key, _)) = self.attacks.held.first_key_value() else { return false };
        let key = *key;
        self.release(key);
        true
    }

    fn round_key(&self, to: Rank, message: &Message) -> RoundKey {
        let server = (to.index() >= self.setup.seats()).then_some(to.0);
        let MessageFields { step, kind, bucket, stage, .. } = **message;
        RoundKey { step, kind, bucket, stage, server }
    }

    /// Lets attackers send if all honest workers that send in this round have.
    fn release_if_complete(&mut self, key: RoundKey) {
        if !self.attacks.held.contains_key(&key) {
            return;
        }
        let seen = self.attacks.rounds.get(&key);
        let is_waited_for = |rank: &usize| {
            let state = &self.ranks[*rank];
            let has_sent = seen.is_some_and(|round| round.contains_key(&(*rank as u32)));
            let honest = !self.attacks.by_rank.contains_key(&(*rank as u32));
            honest && !has_sent && state.is_alive() && self.sends_in(key, *rank)
        };
        if (0..self.setup.seats()).all(|rank| !is_waited_for(&rank)) {
            self.release(key);
        }
    }

    fn sends_in(&self, key: RoundKey, rank: usize) -> bool {
        let view = self.ranks[rank].machine.node().view();
        key.server.is_some() || !view.row(key.step, Rank::from(rank)).outgoing.is_empty()
    }

    fn release(&mut self, key: RoundKey) {
        for held in self.attacks.held.remove(&key).unwrap_or_default() {
            let HeldAttack { from, to, mut message, holds_link } = held;
            if !self.ranks[from].is_alive() {
                continue;
            }
            let attack = self.attacks.by_rank[&(from as u32)];
            for part in 0..message.parts.len() {
                if let Some(values) = self.crafted(attack, key, to, part) {
                    message.parts[part] = Part::Values(Payload::from(values));
                }
            }
            self.put_on_wire(from, to, message, holds_link);
        }
    }

    /// What a colluding attacker sends to `to`; nothing if it knows too little.
    fn crafted(&self, attack: Attack, key: RoundKey, to: Rank, part: usize) -> Option<Vec<f32>> {
        let round = self.attacks.rounds.get(&key)?;
        let values = |(rank, parts): (&u32, &'_ [Part; 2])| match &parts[part] {
            Part::Values(values) => Some((*rank, values.clone())),
            _ => None,
        };
        let payloads: Vec<(u32, Payload)> = round.iter().filter_map(values).collect();
        let vectors = payloads.iter().map(|(rank, values)| (*rank, &**values)).collect();
        let honest = HonestRound { vectors };
        let strength = attack.strength();
        match attack.kind {
            AttackKind::Alie => honest.deviated(strength),
            AttackKind::Ipm => honest.scaled_mean(-strength),
            AttackKind::Mimic => honest.first(),
            AttackKind::Dissensus => {
                let row = self.ranks[to.index()].machine.node().view().row(key.step, to);
                honest.dissensus(to.0, &row.incoming, strength)
            }
            AttackKind::Spectral => {
                let view = self.ranks[to.index()].machine.node().view();
                let weights = |rank: u32| view.row(key.step, Rank(rank)).incoming.clone();
                honest.spectral(to.0, weights, strength)
            }
            AttackKind::SignFlip | AttackKind::LabelFlip | AttackKind::Gaussian => None,
        }
    }

    /// What an attacker sends that knows only its own vectors.
    fn corrupted_alone(&self, attack: Attack, mut message: Message) -> Message {
        let strength = attack.strength();
        let MessageFields { step, bucket, stage, .. } = *message;
        for (place, part) in message.parts.iter_mut().enumerate() {
            let Part::Values(values) = part else { continue };
            let replaced: Vec<f32> = match attack.kind {
                AttackKind::SignFlip => values.iter().map(|x| -strength as f32 * x).collect(),
                AttackKind::Gaussian => {
                    let name = format!("attack.{}.{bucket}.{stage}.{place}", attack.rank);
                    vectors::noise(self.setup.seed, &name, step, strength, values.len())
                }
                _ => continue,
            };
            *part = Part::Values(Payload::from(replaced));
        }
        message
    }
}
