//! How the flat model vector is cut: into buckets for sending, into shards for servers.
//!
//! The vector is in backward order: bucket 0 is the first whose gradient is complete. A server
//! holds a contiguous shard; its own layout has one bucket per piece, the intersection of a
//! global bucket with its shard.

use std::ops::Range;

/// How much smaller than others the last bucket is.
const LAST_SHARE: usize = 5;

/// A bucket, or the piece of one that a server holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The number of the bucket in the whole model; this is what messages carry.
    pub id: usize,
    /// Where it lies in the holder's vector.
    pub range: Range<usize>,
}

/// A named tensor of the model, in backward order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The layer's name for it.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl Tensor {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The cut of one holder's vector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// In order, without gaps.
    pub buckets: Vec<Bucket>,
    /// The tensors, in order; empty where the model is one plain vector.
    pub tensors: Vec<Tensor>,
}

impl Layout {
    /// `len` elements in buckets of at most `bytes` bytes each; 0 means one bucket.
    pub fn plain(len: usize, bytes: usize) -> Layout {
        let most = if bytes == 0 { len.max(1) } else { (bytes / 4).max(1) };
        let starts = (0..len.max(1)).step_by(most);
        let buckets = starts
            .enumerate()
            .map(|(id, start)| Bucket { id, range: start..(start + most).min(len) })
            .collect();
        Layout { buckets, tensors: Vec::new() }
    }

    /// Whole `tensors` in buckets of about `bytes` bytes; a tensor is never split, so a large one
    /// has a bucket of its own. The last bucket is of a fifth of that: when it is ready the
    /// gradient is complete, and nothing hides what is done with it. 0 means one bucket.
    pub fn of_tensors(tensors: Vec<Tensor>, bytes: usize) -> Layout {
        let most = if bytes == 0 { usize::MAX } else { bytes / 4 };
        let mut buckets: Vec<Bucket> = Vec::new();
        let last = start_of_last(&tensors, most / LAST_SHARE);
        let mut end = 0;
        for (index, tensor) in tensors.iter().enumerate() {
            let next = end + tensor.len();
            match buckets.last_mut() {
                Some(bucket) if index != last && next - bucket.range.start <= most => {
                    bucket.range.end = next;
                }
                _ => buckets.push(Bucket { id: buckets.len(), range: end..next }),
            }
            end = next;
        }
        if buckets.is_empty() {
            buckets.push(Bucket { id: 0, range: 0..0 });
        }
        Layout { buckets, tensors }
    }

    /// Elements in all.
    pub fn len(&self) -> usize {
        self.buckets.last().map_or(0, |bucket| bucket.range.end)
    }

    /// Whether there is nothing to train.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where bucket `index` lies.
    pub fn range(&self, index: usize) -> Range<usize> {
        self.buckets[index].range.clone()
    }

    /// Contiguous shards for `servers`, equal but for one element.
    pub fn shards(&self, servers: usize) -> Vec<Range<usize>> {
        chunks(self.len(), servers)
    }

    /// The layout of a server that holds `shard`, with ranges relative to it.
    pub fn restricted(&self, shard: &Range<usize>) -> Layout {
        let piece = |bucket: &Bucket| {
            let common = intersect(&bucket.range, shard)?;
            let range = common.start - shard.start..common.end - shard.start;
            Some(Bucket { id: bucket.id, range })
        };
        Layout { buckets: self.buckets.iter().filter_map(piece).collect(), tensors: Vec::new() }
    }
}

/// Which tensor the last bucket begins with: as many as fit into `most` elements, at least one.
fn start_of_last(tensors: &[Tensor], most: usize) -> usize {
    let mut len = 0;
    let fits = |tensor: &&Tensor| {
        len += tensor.len();
        len <= most
    };
    let count = tensors.iter().rev().take_while(fits).count().max(1);
    tensors.len().saturating_sub(count)
}

/// The common part of two ranges, unless it is empty.
pub fn intersect(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let common = a.start.max(b.start)..a.end.min(b.end);
    (common.start < common.end).then_some(common)
}

/// `len` elements in `parts` contiguous ranges that differ by at most one element.
pub fn chunks(len: usize, parts: usize) -> Vec<Range<usize>> {
    (0..parts).map(|part| len * part / parts..len * (part + 1) / parts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_layouts_cover_the_vector_in_order() {
        for (len, bytes, ends) in [(10, 0, vec![10]), (10, 16, vec![4, 8, 10]), (0, 16, vec![0])] {
            let layout = Layout::plain(len, bytes);
            let cut: Vec<_> = layout.buckets.iter().map(|b| b.range.end).collect();
            assert_eq!((cut, layout.len()), (ends, len));
        }
    }

    #[test]
    fn a_tensor_is_never_split() {
        let tensor = |n| Tensor { name: format!("t{n}"), shape: vec![n] };
        let layout = Layout::of_tensors(vec![tensor(3), tensor(2), tensor(9), tensor(1)], 20);
        let ranges: Vec<_> = layout.buckets.iter().map(|b| b.range.clone()).collect();
        assert_eq!(ranges, [0..5, 5..14, 14..15]);
    }

    #[test]
    fn the_last_bucket_is_small() {
        let tensors = |n| vec![Tensor { name: "t".into(), shape: vec![n] }; 10];
        let ends = |tensors, bytes| {
            let layout = Layout::of_tensors(tensors, bytes);
            layout.buckets.iter().map(|b| b.range.end).collect::<Vec<_>>()
        };
        assert_eq!(ends(tensors(2), 80), [16, 20]);
        assert_eq!(ends(tensors(2), 40), [10, 18, 20]);
        assert_eq!(ends(tensors(2), 400), [20], "all of it is small");
        assert_eq!(ends(tensors(2), 0), [20]);
    }

    #[test]
    fn servers_hold_the_pieces_of_their_shard() {
        let layout = Layout::plain(10, 16);
        let shards = layout.shards(2);
        assert_eq!(shards, [0..5, 5..10]);
        let second = layout.restricted(&shards[1]);
        assert_eq!(second.buckets, [Bucket { id: 1, range: 0..3 }, Bucket { id: 2, range: 3..5 }]);
    }
}
