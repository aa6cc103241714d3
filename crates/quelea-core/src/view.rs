//! Numbered membership, and who mixes with whom at which step.
//!
//! When a worker is lost, its weight goes to the receivers themselves at once, for all steps of
//! the old topology; the topology rebuilt over the survivors takes effect at `from_step`, which
//! is beyond the step of every worker.
//!
//! Where workers of one host average exactly, only the first living worker of each host mixes: the
//! view has a second one inside, [`View::between`], whose workers are those.

mod change;
mod plan;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::message::Rank;
use crate::topology::{GroupExchange, Schedule};

pub use change::{DepartedRank, ViewChange};
use plan::Plan;

/// Who is alive.
#[derive(Debug)]
pub struct View {
    /// Counts up from 0.
    pub number: u32,
    /// Living workers, by rank.
    pub workers: Vec<Rank>,
    /// Living servers, by rank.
    pub servers: Vec<Rank>,
    /// The host of every rank that ever was.
    pub hosts: Arc<[u32]>,
    /// Rank to index among the living workers.
    index: Vec<Option<u32>>,
    /// Topologies in order of the step from which they hold; the first from step 0.
    plans: Vec<Plan>,
    /// The steps that were agreed on after losses.
    changes: Vec<u64>,
    /// The view of those who mix for their host, where only they mix.
    between: Option<Arc<View>>,
}

/// A topology with its members.
struct Members {
    /// In the order of the topology's places.
    ranks: Vec<Rank>,
    schedule: Arc<Schedule>,
}

/// Who mixes with whom, from one worker's side, at one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MixingRow {
    /// Whose vectors come in, with what weight, by rank; this worker itself included.
    pub incoming: Vec<(Rank, f32)>,
    /// Who is sent to, in order of the offset `(j − i) mod n`, which spreads the load.
    pub outgoing: Vec<Rank>,
    /// Whether they are a group that may average as one.
    pub group: RowGroup,
}

/// Whether a worker and its neighbours of a step are a group of three or more that all take the
/// mean of the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowGroup {
    /// They are not, or they send their vectors to each other.
    #[default]
    None,
    /// They are, and average like this.
    Whole(GroupExchange),
    /// They were, and a member was lost: its weight goes to the others, each its own.
    Broken,
}

impl MixingRow {
    /// The row of `me` if only those who are present send: the weight of others goes to `me`.
    pub fn only(&self, me: Rank, is_present: impl Fn(Rank) -> bool) -> MixingRow {
        let mut row = self.clone();
        row.incoming.retain(|(rank, _)| is_present(*rank));
        let others = row.incoming.iter().filter(|(rank, _)| *rank != me);
        let own = 1.0 - others.map(|(_, weight)| f64::from(*weight)).sum::<f64>();
        for (_, weight) in row.incoming.iter_mut().filter(|(rank, _)| *rank == me) {
            *weight = own as f32;
        }
        row
    }
}

impl View {
    /// The first view: `workers` workers, then `servers` servers, on these `hosts` (by rank).
    pub fn first(
        workers: usize,
        servers: usize,
        hosts: Arc<[u32]>,
        topology: Option<Arc<Schedule>>,
    ) -> View {
        View::with_spare_seats(workers, 0, servers, hosts, topology)
    }

    /// As [`first`](View::first), with `spare` ranks between the workers and the servers as which nobody
    /// takes part yet: workers that join later may.
    pub fn with_spare_seats(
        workers: usize,
        spare: usize,
        servers: usize,
        hosts: Arc<[u32]>,
        topology: Option<Arc<Schedule>>,
    ) -> View {
        let members: Vec<Rank> = (0..workers).map(Rank::from).collect();
        let plans = topology.map(|schedule| Plan::new(0, members.clone(), schedule));
        let seats = workers + spare;
        View {
            number: 0,
            index: index(&members, seats + servers),
            workers: members,
            servers: (seats..seats + servers).map(Rank::from).collect(),
            hosts,
            plans: plans.into_iter().collect(),
            changes: Vec::new(),
            between: None,
        }
    }

    /// The first view where the workers of a host average exactly and `topology` is one of hosts:
    /// its places are the hosts in the order of their first workers.
    pub fn of_hosts(workers: usize, hosts: Arc<[u32]>, topology: Arc<Schedule>) -> View {
        let outer = View::first(workers, 0, hosts, None);
        let leaders = outer.leaders();
        let between = View {
            index: index(&leaders, workers),
            workers: leaders.clone(),
            hosts: Arc::clone(&outer.hosts),
            plans: vec![Plan::new(0, leaders, topology)],
            ..View::first(0, 0, Arc::from([]), None)
        };
        View { between: Some(Arc::new(between)), ..outer }
    }

    /// The view after `lost` were lost; `rebuilt` over the survivors holds from `from_step`.
    pub fn without(&self, lost: &[Rank], from_step: u64, rebuilt: Option<Arc<Schedule>>) -> View {
        if let Some(between) = &self.between {
            let outer = self.after(remain(&self.workers, lost), lost, from_step, None);
            let between = if between.workers.iter().any(|leader| lost.contains(leader)) {
                let rebuilt = rebuilt.map(|schedule| Members { ranks: outer.leaders(), schedule });
                let rebuilt = rebuilt.or_else(|| between.replaced(&outer));
                let between = between.after(outer.leaders(), lost, from_step, rebuilt);
                // Messages bear the number of the outer view, so it counts inside too.
                Arc::new(View { number: outer.number, ..between })
            } else {
                Arc::clone(between)
            };
            return View { between: Some(between), ..outer };
        }
        let workers = remain(&self.workers, lost);
        let rebuilt = rebuilt.map(|schedule| Members { ranks: workers.clone(), schedule });
        self.after(workers, lost, from_step, rebuilt)
    }

    /// The view after `joined` take part again; `rebuilt` over all workers holds from `from_step`.
    /// Until then nobody mixes with those who have joined.
    pub fn with(&self, joined: &[Rank], from_step: u64, rebuilt: Option<Arc<Schedule>>) -> View {
        let mut workers = [&self.workers, joined].concat();
        workers.sort_unstable();
        let mut plans: Vec<Plan> = self.plans.iter().map(Plan::again).collect();
        if let Some(schedule) = rebuilt {
            plans.retain(|plan| plan.from_step < from_step);
            plans.push(Plan::new(from_step, workers.clone(), schedule));
        } else if let Some(last) = plans.last() {
            // One that cannot be rebuilt: those who have joined take their places in it.
            plans.push(last.from(from_step, &index(&workers, self.index.len())));
        }
        let mut changes = self.changes.clone();
        changes.push(from_step);
        View {
            number: self.number + 1,
            between: None,
            servers: self.servers.clone(),
            hosts: Arc::clone(&self.hosts),
            index: index(&workers, self.index.len()),
            workers,
            plans,
            changes,
        }
    }

    /// The members of the topology in force, those who were lost replaced by those who mix for
    /// their hosts now. For a topology that cannot be rebuilt.
    fn replaced(&self, outer: &View) -> Option<Members> {
        let plan = self.plans.last()?;
        let now = |member: &Rank| outer.neighbours_on_host(*member).next().unwrap_or(*member);
        let ranks = plan.members.iter().map(now).collect();
        Some(Members { ranks, schedule: Arc::clone(&plan.schedule) })
    }

    /// The view of these workers, with the topology over some members from a step on, if any.
    fn after(
        &self,
        workers: Vec<Rank>,
        lost: &[Rank],
        from_step: u64,
        rebuilt: Option<Members>,
    ) -> View {
        let index = index(&workers, self.index.len());
        let kept = self.plans.iter().filter(|plan| plan.from_step < from_step || rebuilt.is_none());
        let mut plans: Vec<Plan> = kept.map(|plan| plan.with_living(&index)).collect();
        if let Some(Members { ranks, schedule }) = rebuilt {
            plans.push(Plan::new(from_step, ranks, schedule).with_living(&index));
        }
        let mut changes = self.changes.clone();
        changes.push(from_step);
        View {
            number: self.number + 1,
            between: None,
            servers: remain(&self.servers, lost),
            hosts: Arc::clone(&self.hosts),
            workers,
            index,
            plans,
            changes,
        }
    }

    /// The view of those who mix for their host, where the others of the host do not: its workers
    /// are the first of each host.
    pub fn between(&self) -> Option<&Arc<View>> {
        self.between.as_ref()
    }

    /// Whether the loss of `rank` leaves workers of its host without the one who mixes for them.
    pub fn is_leader_of_others(&self, rank: Rank) -> bool {
        let leads = self.between().is_some_and(|between| between.workers.contains(&rank));
        leads && self.neighbours_on_host(rank).count() > 1
    }

    /// Living workers on the host of `rank`, by rank.
    pub fn neighbours_on_host(&self, rank: Rank) -> impl Iterator<Item = Rank> {
        let host = self.hosts[rank.index()];
        let workers = self.workers.iter().copied();
        workers.filter(move |other| self.hosts[other.index()] == host)
    }

    /// The workers that mix once `lost` are lost, by rank.
    pub fn mixing_without(&self, lost: &[Rank]) -> Vec<Rank> {
        let workers = remain(&self.workers, lost);
        if self.between.is_none() {
            return workers;
        }
        let mut seen = BTreeSet::new();
        workers.into_iter().filter(|rank| seen.insert(self.hosts[rank.index()])).collect()
    }

    /// The first living worker of each host, by rank.
    fn leaders(&self) -> Vec<Rank> {
        let first = |rank: &Rank| self.neighbours_on_host(*rank).next() == Some(*rank);
        self.workers.iter().copied().filter(first).collect()
    }

    /// Whether `rank` is a living worker or server.
    pub fn is_alive(&self, rank: Rank) -> bool {
        self.worker_index(rank).is_some() || self.servers.contains(&rank)
    }

    /// The place of a living worker among the living workers.
    pub fn worker_index(&self, rank: Rank) -> Option<usize> {
        self.index.get(rank.index()).copied().flatten().map(|index| index as usize)
    }

    /// Who mixes with `rank` at `step`.
    pub fn row(&self, step: u64, rank: Rank) -> Arc<MixingRow> {
        self.row_of_every(1, step, rank)
    }

    /// As [`row`](View::row), where workers mix once per `every` steps: the topology goes from round
    /// to round when they do.
    pub fn row_of_every(&self, every: u64, step: u64, rank: Rank) -> Arc<MixingRow> {
        let plan = self.plans.iter().rev().find(|plan| plan.from_step <= step);
        plan.expect("the run has a topology").row(step / every, rank)
    }

    /// Whether the topology gives `rank` a single neighbour at a time, and not always the same. Of
    /// one that is drawn at random, as far as its first rounds show.
    pub fn changes_partners(&self, rank: Rank) -> bool {
        let Some(plan) = self.plans.first().filter(|_| self.worker_index(rank).is_some()) else {
            return false;
        };
        let rounds = plan.schedule.period().unwrap_or(8) as u64;
        let rows: Vec<_> = (0..rounds).map(|step| plan.row(step, rank)).collect();
        let is_single = rows.iter().all(|row| row.outgoing.len() <= 1);
        is_single && rows.iter().any(|row| row.outgoing != rows[0].outgoing)
    }

    /// Whether `step` was agreed on after a loss: what the lost have left in the survivors' sums
    /// can be cleared there, because all of them reach it, and none has passed it yet.
    pub fn changes_at(&self, step: u64) -> bool {
        self.changes.contains(&step)
    }

    /// Whether a worker was lost that averages, in some round, in a group of three or more.
    pub fn has_broken_groups(&self) -> bool {
        self.plans.iter().any(Plan::has_broken_groups)
    }

    /// The topology in force at `step`, with its members.
    pub fn topology(&self, step: u64) -> Option<(&[Rank], &Schedule)> {
        let plan = self.plans.iter().rev().find(|plan| plan.from_step <= step)?;
        Some((&plan.members, &plan.schedule))
    }
}

fn remain(ranks: &[Rank], lost: &[Rank]) -> Vec<Rank> {
    ranks.iter().copied().filter(|rank| !lost.contains(rank)).collect()
}

fn index(workers: &[Rank], ranks: usize) -> Vec<Option<u32>> {
    let mut index = vec![None; ranks];
    for (place, rank) in workers.iter().enumerate() {
        index[rank.index()] = Some(place as u32);
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Round;

    #[test]
    fn partners_change_only_where_there_is_one_at_a_time() {
        let changes = |name: &str, workers: usize| {
            let entry = crate::topology::find(name).expect("in the table");
            let params = crate::options::Options::defaults(entry.meta.options);
            let hosts: Vec<u32> = (0..workers as u32).collect();
            let (hosts, params) = (&hosts[..], &params);
            let request =
                crate::topology::TopologyRequest { hosts, seed: 1, options: params, text: None };
            let schedule = entry.build(&request).expect("it is built");
            View::first(workers, 0, hosts.into(), Some(Arc::new(schedule)))
                .changes_partners(Rank(1))
        };
        assert!(changes("one-peer-hypercube", 4) && changes("one-peer-exponential", 8));
        assert!(!changes("ring", 4) && !changes("one-peer-hypercube", 2));
    }

    fn ring(n: usize) -> Arc<Schedule> {
        let third = 1.0 / 3.0;
        let rows = (0..n).map(|i| {
            let mut row = vec![(i, third), ((i + 1) % n, third), ((i + n - 1) % n, third)];
            row.sort_by_key(|(j, _)| *j);
            row
        });
        Arc::new(Schedule::periodic(vec![Round::new(rows.collect())]))
    }

    #[test]
    fn the_weight_of_a_lost_worker_goes_to_the_receiver_until_the_rebuilt_ring_holds() {
        let hosts: Arc<[u32]> = (0..5).collect();
        let view = View::first(5, 0, hosts, Some(ring(5)));
        let row = view.row(3, Rank(0));
        assert_eq!(row.outgoing, [Rank(1), Rank(4)]);
        let view = view.without(&[Rank(1)], 10, Some(ring(4)));
        let own = |step| view.row(step, Rank(0)).incoming[0];
        assert_eq!(own(9).0, Rank(0));
        assert!((own(9).1 - 2.0 / 3.0).abs() < 1e-6);
        assert_eq!(view.row(10, Rank(0)).outgoing, [Rank(2), Rank(4)]);
        assert!(!view.is_alive(Rank(1)) && view.is_alive(Rank(4)));
        let view = view.without(&[Rank(2)], 12, None);
        let agreed: Vec<u64> = (0..20).filter(|step| view.changes_at(*step)).collect();
        assert_eq!(agreed, [10, 12]);
    }

    #[test]
    fn rows_sum_to_one_in_f32() {
        let hosts: Arc<[u32]> = (0..5).collect();
        let view = View::first(5, 0, hosts, Some(ring(5)));
        let sum: f64 = view.row(0, Rank(2)).incoming.iter().map(|(_, w)| f64::from(*w)).sum();
        assert!((sum - 1.0).abs() < 1e-8);
    }
}
