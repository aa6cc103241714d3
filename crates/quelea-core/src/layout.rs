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

/// Where a tensor, or the part of it that a rank holds, lies in the rank's vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRange {
    /// Its elements.
    pub range: Range<usize>,
    /// It has at most one dimension: a bias, or a scale of a normalization.
    pub is_vector: bool,
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
    /// has a bucket of its own. Tensors of one layer, whose gradients are ready together, stay
    /// together unless they are more than a bucket. The last bucket is of a fifth of the size: when
    /// it is ready the gradient is complete, and nothing hides what is done with it. 0 means one
    /// bucket.
    pub fn of_tensors(tensors: Vec<Tensor>, bytes: usize) -> Layout {
        let most = if bytes == 0 { usize::MAX } else { bytes / 4 };
        let layers = layers(&tensors, most);
        let last = start_of_last(&layers, most / LAST_SHARE);
        let mut buckets: Vec<Bucket> = Vec::new();
        let mut end = 0;
        for (index, len) in layers.into_iter().enumerate() {
            let next = end + len;
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

    /// Where the tensors lie in the vector of a rank that holds the elements `held`.
    pub fn tensor_ranges(&self, held: &Range<usize>) -> Vec<TensorRange> {
        let mut end = 0;
        let of = |tensor: &Tensor| {
            let start = end;
            end += tensor.len();
            let common = intersect(&(start..end), held)?;
            let range = common.start - held.start..common.end - held.start;
            Some(TensorRange { range, is_vector: tensor.shape.len() <= 1 })
        };
        self.tensors.iter().filter_map(of).collect()
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

/// The elements of each layer, as far as they are at most `most`: tensors in a row whose names
/// differ only after the last dot.
fn layers(tensors: &[Tensor], most: usize) -> Vec<usize> {
    let mut layers: Vec<usize> = Vec::new();
    let mut before = None;
    for tensor in tensors {
        let layer = tensor.name.rsplit_once('.').map(|(layer, _)| layer);
        match layers.last_mut() {
            Some(len) if layer.is_some() && layer == before && *len + tensor.len() <= most => {
                *len += tensor.len();
            }
            _ => layers.push(tensor.len()),
        }
        before = layer;
    }
    layers
}

/// Which layer the last bucket begins with: as many as fit into `most` elements, at least one.
fn start_of_last(layers: &[usize], most: usize) -> usize {
    let mut sum = 0;
    let fits = |len: &&usize| {
        sum += **len;
        sum <= most
    };
    let count = layers.iter().rev().take_while(fits).count().max(1);
    layers.len().saturating_sub(count)
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
    fn a_layer_is_split_only_if_it_is_larger_than_a_bucket() {
        let tensor = |(name, n): (&str, usize)| Tensor { name: name.into(), shape: vec![n] };
        let tensors =
            [("c.bias", 1), ("c.weight", 4), ("b.bias", 1), ("b.weight", 9), ("a.bias", 1)];
        let tensors = tensors.into_iter().chain([("a.weight", 4)]).map(tensor).collect();
        let layout = Layout::of_tensors(tensors, 24);
        let ends: Vec<_> = layout.buckets.iter().map(|b| b.range.end).collect();
        assert_eq!(ends, [6, 15, 20]);
    }

    #[test]
    fn every_rank_knows_where_the_tensors_of_its_part_lie() {
        let tensor = |shape: &[usize]| Tensor { name: "t".into(), shape: shape.to_vec() };
        let layout = Layout::of_tensors(
            vec![tensor(&[2, 3]), tensor(&[4]), tensor(&[0]), tensor(&[5, 1])],
            0,
        );
        let ranges = |held: Range<usize>| -> Vec<(Range<usize>, bool)> {
            let ranges = layout.tensor_ranges(&held).into_iter();
            ranges.map(|tensor| (tensor.range, tensor.is_vector)).collect()
        };
        assert_eq!(ranges(0..15), [(0..6, false), (6..10, true), (10..15, false)]);
        assert_eq!(ranges(4..8), [(0..2, false), (2..4, true)]);
        assert!(Layout::plain(10, 0).tensor_ranges(&(0..10)).is_empty());
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
