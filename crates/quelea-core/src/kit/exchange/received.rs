//! What neighbours have sent that is not mixed yet.

use std::collections::VecDeque;

use crate::message::{Message, Rank};

/// Messages by step and bucket. A fast neighbour may be a few steps ahead.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// In the order of steps, then buckets: few, and taken from the front.
    buckets: VecDeque<ReceivedBucket>,
}

#[derive(Debug)]
struct ReceivedBucket {
    step: u64,
    bucket: usize,
    /// In the order of ranks.
    messages: Vec<(Rank, Message)>,
}

impl Received {
    /// Keeps a message, unless one came before from the same rank for the same bucket. About `expected` come
    /// for each.
    pub(super) fn insert(&mut self, from: Rank, message: Message, expected: usize) {
        let (step, bucket) = (message.step, message.bucket as usize);
        let place = match self.place(step, bucket) {
            Ok(place) => place,
            Err(place) => {
                let messages = Vec::with_capacity(expected);
                self.buckets.insert(place, ReceivedBucket { step, bucket, messages });
                place
            }
        };
        let messages = &mut self.buckets[place].messages;
        if let Err(place) = messages.binary_search_by_key(&from, |(rank, _)| *rank) {
            messages.insert(place, (from, message));
        }
    }

    /// What came for a bucket, in the order of ranks.
    pub(super) fn messages(&self, step: u64, bucket: usize) -> &[(Rank, Message)] {
        self.place(step, bucket).map_or(&[], |place| &self.buckets[place].messages)
    }

    /// Takes out what came for a bucket.
    pub(super) fn take(&mut self, step: u64, bucket: usize) -> Vec<(Rank, Message)> {
        let place = self.place(step, bucket).ok();
        let taken = place.and_then(|place| self.buckets.remove(place));
        taken.map(|taken| taken.messages).unwrap_or_default()
    }

    /// Forgets what came for earlier steps.
    pub(super) fn forget_before(&mut self, step: u64) {
        while self.buckets.front().is_some_and(|first| first.step < step) {
            self.buckets.pop_front();
        }
    }

    fn place(&self, step: u64, bucket: usize) -> Result<usize, usize> {
        let key = (step, bucket);
        // Nearly always it is the first one.
        if self.buckets.front().is_some_and(|first| (first.step, first.bucket) == key) {
            return Ok(0);
        }
        self.buckets.binary_search_by(|other| (other.step, other.bucket).cmp(&key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(received: &Received, step: u64, bucket: usize) -> Vec<u32> {
        received.messages(step, bucket).iter().map(|(rank, _)| rank.0).collect()
    }

    #[test]
    fn messages_are_in_the_order_of_ranks_and_one_that_comes_again_is_dropped() {
        let mut received = Received::default();
        for (from, step, bucket, count) in
            [(5, 7, 1, 1), (2, 7, 1, 1), (9, 8, 0, 1), (3, 7, 0, 1), (5, 7, 1, 2)]
        {
            let mut message = Message::new(0, step, bucket);
            message.count = count;
            received.insert(Rank(from), message, 2);
        }
        assert_eq!(ranks(&received, 7, 0), [3]);
        assert_eq!(ranks(&received, 7, 1), [2, 5]);
        assert_eq!(ranks(&received, 8, 0), [9]);
        assert_eq!(ranks(&received, 8, 1), [0; 0]);
        let taken = received.take(7, 1);
        assert_eq!((taken[1].0, taken[1].1.count), (Rank(5), 1), "the first that came");
        assert!(received.take(7, 1).is_empty());
    }

    #[test]
    fn only_earlier_steps_are_forgotten() {
        let mut received = Received::default();
        for step in [3, 5, 4] {
            received.insert(Rank(1), Message::new(0, step, 2), 1);
        }
        received.forget_before(4);
        let left: Vec<bool> = (3..6).map(|step| !ranks(&received, step, 2).is_empty()).collect();
        assert_eq!(left, [false, true, true]);
    }
}
