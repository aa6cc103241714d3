//! What a bucket has gathered from its neighbours, and the ways to mix it.

use std::sync::Arc;

use crate::codec::CodecShape;
use crate::contract::Outbox;
use crate::message::{Message, Part, Rank};
use crate::payload::Payload;
use crate::vector;
use crate::view::MixingRow;

/// Everything that came in for one bucket of one step.
#[derive(Debug)]
pub struct Gathered(Incoming);

#[derive(Debug)]
enum Incoming {
    /// The vectors of all neighbours.
    Vectors(Neighbours),
    /// The means over a group that this worker belongs to, by number of the vector.
    Means([Payload; 2]),
}

#[derive(Debug)]
struct Neighbours {
    me: Rank,
    row: Arc<MixingRow>,
    messages: Vec<(Rank, Message)>,
}

impl Gathered {
    /// The messages of everyone in `row` but `me`, by rank.
    pub(super) fn of_vectors(
        me: Rank,
        row: Arc<MixingRow>,
        messages: Vec<(Rank, Message)>,
    ) -> Gathered {
        Gathered(Incoming::Vectors(Neighbours { me, row, messages }))
    }

    /// The means over a group.
    pub(super) fn of_means(means: [Payload; 2]) -> Gathered {
        Gathered(Incoming::Means(means))
    }

    /// `own ← Σ_j W_ij v_j`, in the order of ranks, where v is vector number `part`.
    ///
    /// Where the neighbours' vectors are rounded: `own ← own + Σ_j W_ij (v_j − v_i)` with v_i
    /// rounded as they see it. What one gains another loses, so that the mean is kept, and
    /// nothing that is too small for the rounding is lost.
    pub fn mix(&self, outbox: &mut Outbox<'_>, part: usize, own: &mut [f32]) {
        let neighbours = match &self.0 {
            Incoming::Vectors(neighbours) => neighbours,
            Incoming::Means(means) => return own.copy_from_slice(&means[part]),
        };
        neighbours.report_work(outbox, own);
        if outbox.coder.shape() != CodecShape::Rounding {
            return neighbours.sum(part, own, |weight| weight);
        }
        let mut seen = outbox.pool.copy(own);
        outbox.round(seen.try_mut().expect("just taken, so held by nobody else"));
        for (weight, theirs) in neighbours.weighted(part) {
            vector::add_difference(weight, theirs, &seen, own);
        }
    }

    /// `out ← scale·Σ_j W_ij (v_j − own)`, in the order of ranks: how far mixing would move me.
    ///
    /// For symmetric W what one worker gains another loses, to the bit, and among equal vectors
    /// nothing moves. A sum that is carried over all steps must be fed from this: the rounding
    /// of [`mix`](Gathered::mix) would add up in it. The mean of a group is rounded, too: methods
    /// for which that matters gather vectors.
    pub fn pull(
        &self,
        outbox: &mut Outbox<'_>,
        part: usize,
        own: &[f32],
        scale: f32,
        out: &mut [f32],
    ) {
        out.fill(0.0);
        let neighbours = match &self.0 {
            Incoming::Vectors(neighbours) => neighbours,
            Incoming::Means(means) => {
                return vector::add_difference(scale, &means[part], own, out);
            }
        };
        neighbours.report_work(outbox, own);
        for (weight, theirs) in neighbours.weighted(part) {
            vector::add_difference(scale * weight, theirs, own, out);
        }
    }

    /// `own ← own + Σ_j v_j` over the neighbours, in the order of ranks. For exchanges of vectors.
    pub fn add(&self, outbox: &mut Outbox<'_>, part: usize, own: &mut [f32]) {
        self.neighbours().report_work(outbox, own);
        self.neighbours().sum(part, own, |_| 1.0);
    }

    /// Vector number `part` of every neighbour, in the order of ranks. For exchanges of vectors.
    pub fn vectors(&self, part: usize) -> impl Iterator<Item = (Rank, &[f32])> {
        let neighbours = self.neighbours();
        neighbours.others().map(move |(rank, _)| (*rank, neighbours.vector(*rank, part)))
    }

    /// The weight of every neighbour, in the order of ranks. For exchanges of vectors.
    pub fn weights(&self) -> impl Iterator<Item = (Rank, f32)> {
        self.neighbours().others().copied()
    }

    /// `own ← own + Σ_j factor_j (v_j − seen)`, in the order of ranks, with a factor per neighbour; a
    /// neighbour with factor 0 is not looked at. For exchanges of vectors.
    pub fn pull_by(&self, part: usize, seen: &[f32], factors: &[f32], own: &mut [f32]) {
        for ((_, theirs), factor) in self.vectors(part).zip(factors).filter(|(_, f)| **f != 0.0) {
            vector::add_difference(*factor, theirs, seen, own);
        }
    }

    /// The sum of the neighbours' scalars. For exchanges of vectors.
    pub fn scalars(&self) -> f64 {
        let neighbours = self.neighbours();
        neighbours.others().map(|(rank, _)| neighbours.message(*rank).scalar).sum()
    }

    fn neighbours(&self) -> &Neighbours {
        match &self.0 {
            Incoming::Vectors(neighbours) => neighbours,
            Incoming::Means(_) => unreachable!("an exchange of vectors gathers no means"),
        }
    }
}

impl Neighbours {
    /// Every neighbour's vector is passed over once.
    fn report_work(&self, outbox: &mut Outbox<'_>, own: &[f32]) {
        let others = self.others().count();
        if others > 0 {
            outbox.work(4 * own.len() * others);
        }
    }

    fn others(&self) -> impl Iterator<Item = &(Rank, f32)> {
        self.row.incoming.iter().filter(|(rank, _)| *rank != self.me)
    }

    fn weighted(&self, part: usize) -> impl Iterator<Item = (f32, &[f32])> {
        self.others().map(move |(rank, weight)| (*weight, self.vector(*rank, part)))
    }

    fn sum(&self, part: usize, own: &mut [f32], weight: impl Fn(f32) -> f32) {
        let incoming = &self.row.incoming;
        let place = incoming.iter().position(|(rank, _)| *rank == self.me);
        let place = place.expect("every row has the worker itself");
        let terms: Vec<(f32, &[f32])> =
            self.weighted(part).map(|(given, values)| (weight(given), values)).collect();
        vector::mix(weight(incoming[place].1), place, own, &terms);
    }

    fn vector(&self, rank: Rank, part: usize) -> &[f32] {
        match &self.message(rank).parts[part] {
            Part::Values(values) => values,
            _ => &[],
        }
    }

    fn message(&self, rank: Rank) -> &Message {
        let place = self.messages.binary_search_by_key(&rank, |(rank, _)| *rank);
        &self.messages[place.expect("gathered when nobody's was missing")].1
    }
}
