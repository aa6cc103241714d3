//! Plain text as bytes, and random windows of it for language models.

use std::path::Path;
use std::sync::Arc;

use quelea_core::random::Rng;

use super::BYTES_MAX;
use crate::error::DataError;
use crate::files::{self, Content};
use crate::loader::{BatchSource, Effort};

/// A text, of which the end is put aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainText {
    /// The first nine tenths, to learn from.
    pub train: Arc<[u8]>,
    /// The last tenth, to measure with.
    pub validation: Arc<[u8]>,
}

/// Reads a text, plain or packed: a file, or the `input.txt` of a folder.
pub fn plain(path: &Path) -> Result<PlainText, DataError> {
    let file = if path.is_dir() { files::require(path, "input.txt")? } else { path.to_path_buf() };
    let bytes = Content::open(&file)?.rest(BYTES_MAX)?;
    if bytes.len() < 20 {
        let problem = format!("holds {} bytes: too few to learn from", bytes.len());
        return Err(DataError::damaged(&file, problem));
    }
    let (train, validation) = bytes.split_at(bytes.len() / 10 * 9);
    Ok(PlainText { train: train.into(), validation: validation.into() })
}

/// Windows of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowBatch {
    /// How many windows.
    pub count: usize,
    /// Window after window of `length + 1` bytes each: the last one has no successor and is there
    /// only to be predicted.
    pub tokens: Vec<u32>,
}

/// The batches of one worker: a [`BatchSource`] for a [`crate::loader::Loader`].
#[derive(Debug)]
pub struct WindowBatches {
    text: Arc<[u8]>,
    length: usize,
    batch: usize,
    /// Seed and stream of random windows; without them one window after the other.
    random: Option<(u64, String)>,
}

impl WindowBatches {
    /// Random windows, a function of seed, rank and step. None if the text is shorter than one.
    pub fn shuffled(
        text: Arc<[u8]>,
        length: usize,
        batch: usize,
        seed: u64,
        rank: usize,
    ) -> Option<WindowBatches> {
        WindowBatches::new(text, length, batch, Some((seed, format!("windows.{rank}"))))
    }

    /// The whole text once, window after window, for evaluation; a rest shorter than a window is
    /// left out.
    pub fn in_turn(text: Arc<[u8]>, length: usize, batch: usize) -> Option<WindowBatches> {
        WindowBatches::new(text, length, batch, None)
    }

    fn new(
        text: Arc<[u8]>,
        length: usize,
        batch: usize,
        random: Option<(u64, String)>,
    ) -> Option<WindowBatches> {
        assert!(length > 0 && batch > 0, "a batch has at least one window of one byte");
        (text.len() > length).then_some(WindowBatches { text, length, batch, random })
    }

    /// Steps after which as many bytes were seen as there are.
    pub fn steps_per_epoch(&self) -> u64 {
        self.windows().div_ceil(self.batch) as u64
    }

    /// Windows that do not overlap but for the byte that is only predicted in the first of two.
    fn windows(&self) -> usize {
        (self.text.len() - 1) / self.length
    }
}

impl BatchSource for WindowBatches {
    type Batch = WindowBatch;

    fn effort(&self) -> Effort {
        Effort::Little
    }

    fn fill(&self, step: u64, batch: &mut WindowBatch) -> Result<(), DataError> {
        batch.tokens.clear();
        let window = |begin: usize| &self.text[begin..=begin + self.length];
        let bytes = |begin| window(begin).iter().map(|byte| u32::from(*byte));
        match &self.random {
            Some((seed, stream)) => {
                let mut rng = Rng::new(*seed, stream, step);
                let places = (self.text.len() - self.length) as u64;
                for _ in 0..self.batch {
                    batch.tokens.extend(bytes(rng.below(places) as usize));
                }
                batch.count = self.batch;
            }
            None => {
                let first = (step * self.batch as u64).min(self.windows() as u64) as usize;
                let end = (first + self.batch).min(self.windows());
                (first..end).for_each(|place| batch.tokens.extend(bytes(place * self.length)));
                batch.count = end - first;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(batches: &WindowBatches, step: u64) -> Vec<Vec<u32>> {
        let mut batch = WindowBatch { count: 9, tokens: vec![9; 99] };
        batches.fill(step, &mut batch).expect("in memory");
        let windows: Vec<Vec<u32>> =
            batch.tokens.chunks(batches.length + 1).map(<[u32]>::to_vec).collect();
        assert_eq!(windows.len(), batch.count);
        windows
    }

    #[test]
    fn windows_in_turn_cover_the_text_once() {
        let text: Arc<[u8]> = (0..14).collect();
        let batches = WindowBatches::in_turn(Arc::clone(&text), 4, 2).expect("long enough");
        assert_eq!(batches.steps_per_epoch(), 2);
        assert_eq!(fill(&batches, 0), [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]);
        assert_eq!(fill(&batches, 1), [[8, 9, 10, 11, 12]]);
        assert!(fill(&batches, 2).is_empty());
        assert!(WindowBatches::in_turn(text, 14, 1).is_none());
    }

    #[test]
    fn random_windows_reach_both_ends_and_depend_on_seed_rank_and_step_alone() {
        let text: Arc<[u8]> = (0..6).collect();
        let batches = |seed, rank| {
            WindowBatches::shuffled(Arc::clone(&text), 4, 8, seed, rank).expect("long enough")
        };
        let all: Vec<Vec<u32>> = (0..20).flat_map(|step| fill(&batches(1, 0), step)).collect();
        assert!(all.contains(&vec![0, 1, 2, 3, 4]) && all.contains(&vec![1, 2, 3, 4, 5]));
        assert_eq!(fill(&batches(1, 0), 7), all[56..64]);
        assert_ne!(fill(&batches(1, 0), 7), fill(&batches(1, 0), 8));
        assert_ne!(fill(&batches(1, 0), 7), fill(&batches(1, 1), 7));
        assert_ne!(fill(&batches(1, 0), 7), fill(&batches(2, 0), 7));
    }
}
