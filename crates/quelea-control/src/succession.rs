//! Who controls the run when the process that did is gone: every rank's part in it.
//!
//! ```text
//!              the controller is gone         a claim of a higher term
//!  Following ───────────────────────► Orphaned ───────────────────────► Voted ──► Following
//!                                        │ lowest of those within reach   (its first command)
//!                                        └───────────► Standing ──► Leading
//!                                                      (a quorum has voted)
//! ```
//!
//! The lowest worker within reach claims the next term. Whoever has lost the controller too promises to
//! hear no older term, and sends its share of the controller's state with its vote. With the votes of a
//! quorum of the last agreed view the claimant controls the run; whoever reaches no quorum until its patience
//! is over ends. One who still hears the controller keeps a claim until that has changed: one accuser is
//! not enough.

mod messages;

use std::collections::{BTreeMap, BTreeSet};

use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_core::view::View;

use crate::member::{Inheritance, MemberState, StoredEntry, ViewEntry};
use crate::quorum::{MissingQuorum, QuorumRule};
pub use messages::{PeerMessage, SuccessionConfig, SuccessionStep};

/// Where a rank stands.
#[derive(Debug)]
enum Role {
    /// It hears a controller.
    Following,
    /// It has lost the controller.
    Orphaned,
    /// It has voted, and has heard no command of the new controller.
    Voted,
    /// It has claimed its term, then; the votes.
    Standing(Time, BTreeMap<u32, MemberState>),
    /// The controller lives in its process.
    Leading,
    /// It takes part no more.
    Ended,
}

/// One rank's part.
#[derive(Debug)]
pub struct ControllerSuccession {
    rank: u32,
    /// The term that was promised: nothing of an older one is heard.
    term: u32,
    /// The rank in whose process the controller of this term lives, as far as is known.
    controller: u32,
    /// The controller that the first view names.
    first: u32,
    /// The controller that is gone.
    before: u32,
    role: Role,
    log: Vec<ViewEntry>,
    stored: Option<StoredEntry>,
    quorum: QuorumRule,
    patience: Time,
    /// When the last controller that was heard was lost.
    since: Time,
    unreachable: BTreeSet<u32>,
    /// The controller was lost because nothing was heard of it: that may change.
    is_silent: bool,
    /// Claims that came while the controller was still heard, by claimant.
    claims: BTreeMap<u32, u32>,
    /// A vote that is not sent yet: for whom.
    owed: Option<u32>,
    out: Vec<(u32, PeerMessage)>,
    is_deposed: bool,
}

impl ControllerSuccession {
    /// As a rank begins.
    pub fn new(config: SuccessionConfig) -> ControllerSuccession {
        let SuccessionConfig { rank, controller, term, log, quorum, patience } = config;
        let role = if rank == controller { Role::Leading } else { Role::Following };
        ControllerSuccession {
            rank,
            term,
            controller,
            first: controller,
            before: controller,
            role,
            log,
            stored: None,
            quorum,
            patience,
            since: Time::ZERO,
            unreachable: BTreeSet::new(),
            is_silent: false,
            claims: BTreeMap::new(),
            owed: None,
            out: Vec::new(),
            is_deposed: false,
        }
    }

    /// The term that was promised.
    pub fn term(&self) -> u32 {
        self.term
    }

    /// The rank in whose process the controller lives, as far as is known.
    pub fn controller(&self) -> u32 {
        self.controller
    }

    /// Whether there is nobody to tell anything: the controller is gone, and no other was voted for.
    pub fn is_orphaned(&self) -> bool {
        matches!(self.role, Role::Orphaned | Role::Standing(..))
    }

    /// Whether it has to send a vote, for which its share must be up to date.
    pub fn owes_vote(&self) -> bool {
        self.owed.is_some()
    }

    /// Whether it takes part no more.
    pub fn has_ended(&self) -> bool {
        matches!(self.role, Role::Ended)
    }

    /// Whether the controller lives in its process.
    pub fn is_leading(&self) -> bool {
        matches!(self.role, Role::Leading)
    }

    /// Who cannot be reached.
    pub fn unreachable(&self) -> impl Iterator<Item = u32> {
        self.unreachable.iter().copied()
    }

    /// What is to be sent, and to whom.
    pub fn take_messages(&mut self) -> Vec<(u32, PeerMessage)> {
        std::mem::take(&mut self.out)
    }

    /// Adds what only this knows to a rank's share of the controller's state.
    pub fn complete(&self, state: MemberState) -> MemberState {
        MemberState { rank: self.rank, log: self.log.clone(), stored: self.stored.clone(), ..state }
    }

    /// A command of the controller in the process of `from` has come, of this term. Whether it is heard;
    /// else the sender is told that its term is over.
    pub fn hears_command(&mut self, from: u32, term: u32) -> bool {
        if term < self.term || self.has_ended() {
            let outdated = PeerMessage::Outdated { term: self.term };
            self.out.push((from, outdated));
            return false;
        }
        if term > self.term || matches!(self.role, Role::Voted | Role::Standing(..)) {
            // Whoever commands has a quorum, whether or not it has asked this rank.
            (self.term, self.controller) = (term, from);
            self.role = Role::Following;
            self.claims.retain(|_, claimed| *claimed > term);
        }
        if matches!(self.role, Role::Orphaned) && self.is_silent && from == self.controller {
            // It was only silent, and nobody has claimed its place.
            self.role = Role::Following;
            self.unreachable.remove(&from);
        }
        true
    }

    /// A view that is to follow is stored.
    pub fn store(&mut self, entry: ViewEntry) {
        self.stored = Some(StoredEntry { term: self.term, entry });
    }

    /// A view is in force.
    pub fn enter_view(&mut self, entry: ViewEntry) {
        if entry.change.number as usize == self.log.len() + 1 {
            self.stored.take_if(|stored| stored.entry.change.number <= entry.change.number);
            self.log.push(entry);
        }
    }

    /// Nothing is heard of this peer any more; it may come back.
    pub fn silent(&mut self, now: Time, peer: u32, view: &View) {
        if self.unreachable.contains(&peer) {
            return;
        }
        self.lost(now, peer, view);
        self.is_silent = peer == self.controller;
    }

    /// This peer cannot be reached, or is gone.
    pub fn lost(&mut self, now: Time, peer: u32, view: &View) {
        if peer == self.controller {
            self.is_silent = false;
        }
        self.unreachable.insert(peer);
        self.claims.remove(&peer);
        if peer != self.controller || self.is_leading() || self.has_ended() {
            return;
        }
        if matches!(self.role, Role::Following) {
            self.since = now;
            self.before = self.controller;
        }
        self.role = Role::Orphaned;
        self.answer_claims(view);
    }

    /// A peer is back, or another has taken its place.
    pub fn met(&mut self, peer: u32) {
        self.unreachable.remove(&peer);
    }

    fn answer_claims(&mut self, view: &View) {
        let highest = self.claims.iter().max_by_key(|(_, term)| **term);
        if let Some((claimant, term)) = highest.map(|(claimant, term)| (*claimant, *term))
            && term > self.term
            && view.is_alive(Rank(claimant))
        {
            self.vote_for(claimant, term);
        }
    }

    fn vote_for(&mut self, claimant: u32, term: u32) {
        (self.term, self.controller) = (term, claimant);
        self.role = Role::Voted;
        self.claims.clear();
        self.owed = Some(claimant);
    }

    /// A peer says something.
    pub fn handle(&mut self, from: u32, message: PeerMessage, view: &View) {
        if self.has_ended() {
            return;
        }
        match message {
            PeerMessage::Claim { term } if term <= self.term => {
                self.out.push((from, PeerMessage::Outdated { term: self.term }));
            }
            PeerMessage::Claim { term } => {
                self.claims.insert(from, term);
                if matches!(self.role, Role::Orphaned | Role::Voted | Role::Standing(..)) {
                    self.answer_claims(view);
                }
            }
            PeerMessage::Vote { term, state } => {
                if let Role::Standing(_, votes) = &mut self.role
                    && term == self.term
                {
                    votes.insert(from, *state);
                }
            }
            PeerMessage::Outdated { term } => match self.role {
                // Others have another controller: this one's term is over.
                Role::Leading if term > self.term => self.is_deposed = true,
                Role::Standing(..) if term >= self.term => {
                    // It stands again above all terms that are known.
                    (self.term, self.role) = (term, Role::Orphaned);
                }
                _ => {}
            },
        }
    }

    /// Does what has become due. `own` is this rank's share of the controller's state.
    pub fn poll(
        &mut self,
        now: Time,
        view: &View,
        own: impl Fn() -> MemberState,
    ) -> SuccessionStep {
        if std::mem::take(&mut self.is_deposed) {
            self.role = Role::Ended;
            return SuccessionStep::Deposed;
        }
        if matches!(self.role, Role::Orphaned) && self.is_first(view) {
            self.stand(now, view);
        }
        if let Some(claimant) = self.owed.take() {
            let state = Box::new(self.complete(own()));
            self.out.push((claimant, PeerMessage::Vote { term: self.term, state }));
        }
        let step = match self.role {
            Role::Standing(..) => self.count(now, view, &own),
            Role::Orphaned | Role::Voted if self.until() <= now => {
                SuccessionStep::End(MissingQuorum::new(&view.workers, &self.within_reach(view)))
            }
            _ => SuccessionStep::Wait,
        };
        if matches!(step, SuccessionStep::End(_)) {
            self.role = Role::Ended;
        }
        step
    }

    /// When to call [`poll`](ControllerSuccession::poll) at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        match self.role {
            Role::Orphaned | Role::Voted => Some(self.until()),
            Role::Standing(stood, _) => Some(stood + self.patience),
            _ => None,
        }
    }

    /// Until when somebody else may take over: those before this rank may have to give up first.
    fn until(&self) -> Time {
        self.since + Time(4 * self.patience.0)
    }

    fn within_reach(&self, view: &View) -> BTreeSet<u32> {
        let members = view.workers.iter().chain(&view.servers).map(|rank| rank.0);
        let mut reached: BTreeSet<u32> =
            members.filter(|rank| !self.unreachable.contains(rank)).collect();
        reached.insert(self.rank);
        reached
    }

    /// Whether this is the lowest worker within reach, and these are a quorum: whoever votes for one that
    /// cannot take over hears nobody else.
    fn is_first(&self, view: &View) -> bool {
        let reached = self.within_reach(view);
        let named = self.log.last().map_or(self.first, |entry| entry.controller);
        if !self.quorum.is_met(&view.workers, named, &reached) {
            return false;
        }
        view.workers.iter().map(|rank| rank.0).find(|rank| reached.contains(rank))
            == Some(self.rank)
    }

    fn stand(&mut self, now: Time, view: &View) {
        self.term += 1;
        self.controller = self.rank;
        self.role = Role::Standing(now, BTreeMap::new());
        for peer in self.within_reach(view).into_iter().filter(|peer| *peer != self.rank) {
            self.out.push((peer, PeerMessage::Claim { term: self.term }));
        }
    }

    /// Takes over once all within reach have voted, or, after the patience, a quorum.
    fn count(&mut self, now: Time, view: &View, own: &impl Fn() -> MemberState) -> SuccessionStep {
        let reached = self.within_reach(view);
        let Role::Standing(stood, votes) = &self.role else { return SuccessionStep::Wait };
        let is_over = *stood + self.patience <= now;
        let all_voted = reached.iter().all(|rank| *rank == self.rank || votes.contains_key(rank));
        if !all_voted && !is_over {
            return SuccessionStep::Wait;
        }
        let mut present: BTreeSet<u32> = votes.keys().copied().collect();
        present.insert(self.rank);
        let (workers, named) = self.last_view(view, votes);
        let takes_part = workers.contains(&Rank(self.rank));
        if !takes_part || !self.quorum.is_met(&workers, named, &present) {
            let missing = MissingQuorum::new(&workers, &present);
            return if is_over { SuccessionStep::End(missing) } else { SuccessionStep::Wait };
        }
        let Role::Standing(_, votes) = std::mem::replace(&mut self.role, Role::Leading) else {
            return SuccessionStep::Wait;
        };
        let mut members: Vec<MemberState> = votes.into_values().collect();
        members.push(self.complete(own()));
        members.sort_by_key(|member| member.rank);
        let (term, rank, before) = (self.term, self.rank, self.before);
        SuccessionStep::TakeOver(Box::new(Inheritance { term, rank, before, members }))
    }

    /// The workers of the last agreed view that any voter knows, and the controller that it names.
    fn last_view(&self, view: &View, votes: &BTreeMap<u32, MemberState>) -> (Vec<Rank>, u32) {
        let longest = votes.values().map(|vote| &vote.log).max_by_key(|log| log.len());
        let longest = longest.filter(|log| log.len() > self.log.len());
        let mut workers: BTreeSet<Rank> = view.workers.iter().copied().collect();
        let log = longest.unwrap_or(&self.log);
        for entry in log.iter().skip(self.log.len()) {
            workers.retain(|rank| !entry.change.ranks().contains(rank));
            workers.extend(&entry.change.joined);
        }
        let named = log.last().map_or(self.first, |entry| entry.controller);
        (workers.into_iter().collect(), named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quelea_core::view::DepartedRank;
    use quelea_core::view::ViewChange;

    const PATIENCE: Time = Time(1_000);

    fn view(workers: u32) -> View {
        View::first(workers as usize, 0, (0..workers).collect(), None)
    }

    fn members(workers: u32, quorum: QuorumRule) -> Vec<ControllerSuccession> {
        let member = |rank| {
            let log = Vec::new();
            let config =
                SuccessionConfig { rank, controller: 0, term: 1, log, quorum, patience: PATIENCE };
            ControllerSuccession::new(config)
        };
        (0..workers).map(member).collect()
    }

    fn own(rank: usize) -> impl Fn() -> MemberState {
        move || MemberState { steps: 10 * rank as u64, ..MemberState::default() }
    }

    /// Lets all messages arrive among `present`, at `now`; what follows for each.
    fn exchange(
        all: &mut [ControllerSuccession],
        present: &[usize],
        view: &View,
        now: Time,
    ) -> Vec<(usize, SuccessionStep)> {
        let mut steps = Vec::new();
        loop {
            let mut sent = Vec::new();
            for rank in present {
                let step = all[*rank].poll(now, view, own(*rank));
                if step != SuccessionStep::Wait {
                    steps.push((*rank, step));
                }
                sent.extend(all[*rank].take_messages().into_iter().map(|word| (*rank, word)));
            }
            if sent.is_empty() {
                return steps;
            }
            for (from, (to, message)) in sent {
                if present.contains(&(to as usize)) {
                    all[to as usize].handle(from as u32, message, view);
                }
            }
        }
    }

    fn lose(all: &mut [ControllerSuccession], present: &[usize], lost: &[u32], view: &View) {
        for rank in present {
            for peer in lost {
                all[*rank].lost(Time(5), *peer, view);
            }
        }
    }

    #[test]
    fn the_lowest_living_worker_takes_over_with_everybodys_share() {
        let (view, mut all) = (view(4), members(4, QuorumRule::Majority));
        lose(&mut all, &[1, 2, 3], &[0], &view);
        let steps = exchange(&mut all, &[1, 2, 3], &view, Time(6));
        let [(1, SuccessionStep::TakeOver(inheritance))] = &steps[..] else { panic!("{steps:?}") };
        let shares: Vec<(u32, u64)> =
            inheritance.members.iter().map(|member| (member.rank, member.steps)).collect();
        assert_eq!(shares, [(1, 10), (2, 20), (3, 30)]);
        assert_eq!((inheritance.term, inheritance.before), (2, 0));
        assert!(all[1].is_leading());
        assert!(all[2].hears_command(1, 2) && all[2].controller() == 1);
    }

    #[test]
    fn commands_of_an_older_term_are_refused_and_their_controller_is_deposed() {
        let (view, mut all) = (view(3), members(3, QuorumRule::Majority));
        lose(&mut all, &[1, 2], &[0], &view);
        exchange(&mut all, &[1, 2], &view, Time(6));
        // The paused controller wakes up.
        assert!(!all[2].hears_command(0, 1));
        let messages = all[2].take_messages();
        assert_eq!(messages, [(0, PeerMessage::Outdated { term: 2 })]);
        for (_, message) in messages {
            all[0].handle(2, message, &view);
        }
        assert_eq!(all[0].poll(Time(60_000), &view, own(0)), SuccessionStep::Deposed);
        assert!(all[0].has_ended());
    }

    #[test]
    fn one_who_still_hears_the_controller_votes_for_nobody_until_that_has_changed() {
        let (view, mut all) = (view(3), members(3, QuorumRule::Majority));
        lose(&mut all, &[1], &[0], &view);
        assert_eq!(exchange(&mut all, &[1, 2], &view, Time(6)), []);
        assert_eq!(all[2].term(), 1, "one accuser is not enough");
        lose(&mut all, &[2], &[0], &view);
        let steps = exchange(&mut all, &[1, 2], &view, Time(7));
        assert!(matches!(&steps[..], [(1, SuccessionStep::TakeOver(_))]), "{steps:?}");
    }

    #[test]
    fn three_of_eight_end_and_name_whom_they_could_not_reach() {
        let (view, mut all) = (view(8), members(8, QuorumRule::Majority));
        lose(&mut all, &[5, 6, 7], &[0, 1, 2, 3, 4], &view);
        assert_eq!(exchange(&mut all, &[5, 6, 7], &view, Time(6)), []);
        assert!(all.iter().all(|member| member.term() == 1), "nobody claims in vain");
        let late = Time(5 + 4 * PATIENCE.0);
        let steps = exchange(&mut all, &[5, 6, 7], &view, late);
        assert_eq!(steps.len(), 3);
        for (_, step) in steps {
            let SuccessionStep::End(missing) = step else { panic!("{step:?}") };
            assert_eq!(missing.missing, [0, 1, 2, 3, 4]);
        }
    }

    #[test]
    fn the_half_without_the_controller_ends() {
        let (view, mut all) = (view(8), members(8, QuorumRule::Majority));
        lose(&mut all, &[4, 5, 6, 7], &[0, 1, 2, 3], &view);
        let late = Time(5 + 4 * PATIENCE.0);
        let mut steps = exchange(&mut all, &[4, 5, 6, 7], &view, Time(6));
        steps.extend(exchange(&mut all, &[4, 5, 6, 7], &view, late));
        assert!(steps.iter().all(|(_, step)| matches!(step, SuccessionStep::End(_))), "{steps:?}");
    }

    #[test]
    fn of_two_the_one_without_the_controller_continues_only_if_any_may() {
        for (quorum, continues) in [(QuorumRule::Majority, false), (QuorumRule::Any, true)] {
            let (view, mut all) = (view(2), members(2, quorum));
            lose(&mut all, &[1], &[0], &view);
            let mut steps = exchange(&mut all, &[1], &view, Time(6));
            steps.extend(exchange(&mut all, &[1], &view, Time(5 + 4 * PATIENCE.0)));
            let took_over = matches!(&steps[..], [(1, SuccessionStep::TakeOver(_)), ..]);
            assert_eq!(took_over, continues, "{steps:?}");
        }
    }

    #[test]
    fn a_view_that_only_a_voter_has_entered_or_stored_is_inherited() {
        let (view, mut all) = (view(5), members(5, QuorumRule::Majority));
        let entry = |number, rank| {
            let departed = vec![DepartedRank { rank: Rank(rank), steps: 3, left: false }];
            let change = ViewChange { number, departed, joined: Vec::new(), from_step: 9 };
            ViewEntry { controller: 0, change }
        };
        all[3].enter_view(entry(1, 4));
        all[2].store(entry(1, 4));
        all[3].store(entry(2, 1));
        lose(&mut all, &[1, 2, 3], &[0, 4], &view);
        let steps = exchange(&mut all, &[1, 2, 3], &view, Time(6));
        let [(1, SuccessionStep::TakeOver(inheritance))] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!(inheritance.log(), [entry(1, 4)]);
        assert_eq!(inheritance.pending().map(|stored| stored.entry), Some(entry(2, 1)));
    }

    #[test]
    fn a_controller_that_was_only_silent_is_heard_again_if_nobody_could_take_over() {
        let (view, mut all) = (view(2), members(2, QuorumRule::Majority));
        all[1].silent(Time(5), 0, &view);
        assert_eq!(exchange(&mut all, &[1], &view, Time(6)), []);
        assert!(all[1].is_orphaned() && all[1].hears_command(0, 1) && !all[1].is_orphaned());
        all[1].lost(Time(7), 0, &view);
        assert!(all[1].hears_command(0, 1), "what was on its way");
        assert!(all[1].is_orphaned(), "it is gone all the same");
    }

    #[test]
    fn when_the_one_that_takes_over_is_lost_too_the_next_one_does() {
        let (view, mut all) = (view(5), members(5, QuorumRule::Majority));
        lose(&mut all, &[1, 2, 3, 4], &[0], &view);
        exchange(&mut all, &[1, 2, 3, 4], &view, Time(6));
        lose(&mut all, &[2, 3, 4], &[1], &view);
        let steps = exchange(&mut all, &[2, 3, 4], &view, Time(7));
        let [(2, SuccessionStep::TakeOver(inheritance))] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!((inheritance.term, inheritance.before), (3, 0), "rank 1 has said nothing");
    }
}
