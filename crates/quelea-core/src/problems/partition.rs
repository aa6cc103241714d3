//! Who gets which samples.

use std::collections::BTreeMap;

use super::dataset::Dataset;
use crate::layout::chunks;
use crate::random::Rng;

/// How samples are divided among the workers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Partition {
    /// Shuffled, then cut into equal parts (but for one sample).
    Iid,
    /// For each label, the workers' shares are drawn from a symmetric Dirichlet distribution
    /// (Hsu, Qi and Brown 2019): the smaller the `concentration`, the more the workers differ.
    Dirichlet {
        /// Above 0.
        concentration: f64,
    },
}

impl Partition {
    /// The samples of each worker, in rising order, a function of the arguments alone. Every worker gets at least
    /// one if there are enough: one that drew none takes a sample of the one that has most.
    pub fn divide(self, dataset: &Dataset, workers: usize, seed: u64) -> Vec<Vec<u32>> {
        let labels: Vec<u32> =
            dataset.samples().map(|sample| u32::from(sample.label > 0.0)).collect();
        self.divide_labels(&labels, workers, seed)
    }

    /// The same for samples of any number of classes, given by their labels.
    pub fn divide_labels(self, labels: &[u32], workers: usize, seed: u64) -> Vec<Vec<u32>> {
        let mut rng = Rng::new(seed, "partition", 0);
        let mut parts: Vec<Vec<u32>> = match self {
            Partition::Iid => {
                let mut order: Vec<u32> = (0..labels.len() as u32).collect();
                rng.shuffle(&mut order);
                chunks(order.len(), workers).into_iter().map(|part| order[part].to_vec()).collect()
            }
            Partition::Dirichlet { concentration } => {
                by_label(labels, workers, concentration, &mut rng)
            }
        };
        feed_the_empty(&mut parts);
        parts.iter_mut().for_each(|part| part.sort_unstable());
        parts
    }
}

fn by_label(labels: &[u32], workers: usize, concentration: f64, rng: &mut Rng) -> Vec<Vec<u32>> {
    let mut of_label: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (index, label) in (0..).zip(labels) {
        of_label.entry(*label).or_default().push(index);
    }
    let mut parts = vec![Vec::new(); workers];
    for mut order in of_label.into_values() {
        rng.shuffle(&mut order);
        let mut taken = 0;
        for (part, end) in parts.iter_mut().zip(ends(order.len(), workers, concentration, rng)) {
            part.extend_from_slice(&order[taken..end]);
            taken = end;
        }
    }
    parts
}

/// Where the share of each worker ends, among `len` samples.
fn ends(len: usize, workers: usize, concentration: f64, rng: &mut Rng) -> Vec<usize> {
    let mut shares: Vec<f64> = (0..workers).map(|_| rng.gamma(concentration)).collect();
    let mut sum: f64 = shares.iter().sum();
    if sum == 0.0 {
        // A tiny concentration leaves numbers too small to be told from 0; in the limit one
        // worker has everything.
        shares[rng.below(workers as u64) as usize] = 1.0;
        sum = 1.0;
    }
    let mut before = 0.0;
    let mut ends: Vec<usize> = shares
        .into_iter()
        .map(|share| {
            before += share;
            ((before / sum * len as f64).round() as usize).min(len)
        })
        .collect();
    ends[workers - 1] = len;
    ends
}

fn feed_the_empty(parts: &mut [Vec<u32>]) {
    while let Some(empty) = parts.iter().position(Vec::is_empty) {
        let most = (0..parts.len()).rev().max_by_key(|part| parts[*part].len());
        match most.filter(|part| parts[*part].len() > 1) {
            Some(most) => {
                let sample = parts[most].pop().expect("it has more than one");
                parts[empty].push(sample);
            }
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset(len: usize) -> Dataset {
        let text: String = (0..len).map(|k| format!("{} 1:1\n", k % 2)).collect();
        Dataset::parse(text.as_bytes()).expect("good text")
    }

    fn assert_divided(parts: &[Vec<u32>], len: usize) {
        let mut all = parts.concat();
        all.sort_unstable();
        assert_eq!(all, (0..len as u32).collect::<Vec<u32>>());
        assert!(parts.iter().all(|part| !part.is_empty()));
    }

    /// The mean over workers of the share of the label that a worker has more of.
    fn imbalance(parts: &[Vec<u32>]) -> f64 {
        let of_part = |part: &Vec<u32>| {
            let odd = part.iter().filter(|index| *index % 2 == 1).count() as f64;
            (odd / part.len() as f64).max(1.0 - odd / part.len() as f64)
        };
        parts.iter().map(of_part).sum::<f64>() / parts.len() as f64
    }

    #[test]
    fn iid_parts_differ_by_at_most_one_sample() {
        let parts = Partition::Iid.divide(&dataset(103), 8, 1);
        assert_divided(&parts, 103);
        assert!(parts.iter().all(|part| [12, 13].contains(&part.len())));
        assert_eq!(parts, Partition::Iid.divide(&dataset(103), 8, 1));
        assert_ne!(parts, Partition::Iid.divide(&dataset(103), 8, 2));
    }

    #[test]
    fn a_small_concentration_separates_the_labels_and_leaves_nobody_empty() {
        let divide = |concentration| {
            let parts = Partition::Dirichlet { concentration }.divide(&dataset(1000), 8, 3);
            assert_divided(&parts, 1000);
            imbalance(&parts)
        };
        let (even, skewed) = (divide(1000.0), divide(0.1));
        assert!(even < 0.55 && skewed > 0.75, "{even} {skewed}");
        divide(1e-300);
    }

    #[test]
    fn samples_of_ten_classes_are_divided_like_those_of_two() {
        let labels: Vec<u32> = (0..1000).map(|k| k % 10).collect();
        let parts = Partition::Dirichlet { concentration: 0.1 }.divide_labels(&labels, 8, 3);
        assert_divided(&parts, 1000);
        let classes = |part: &Vec<u32>| {
            let seen: std::collections::BTreeSet<u32> =
                part.iter().map(|index| labels[*index as usize]).collect();
            seen.len()
        };
        let mean = parts.iter().map(classes).sum::<usize>() as f64 / 8.0;
        assert!(mean < 8.0, "{mean} of 10 classes at a worker");
        let two: Vec<u32> = (0..103).map(|k| k % 2).collect();
        let partition = Partition::Dirichlet { concentration: 0.5 };
        assert_eq!(partition.divide_labels(&two, 4, 1), partition.divide(&dataset(103), 4, 1));
    }

    #[test]
    fn as_many_workers_as_samples_get_one_each() {
        for partition in [Partition::Iid, Partition::Dirichlet { concentration: 0.01 }] {
            let parts = partition.divide(&dataset(8), 8, 1);
            assert!(parts.iter().all(|part| part.len() == 1), "{parts:?}");
        }
    }
}
