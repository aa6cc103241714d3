//! Labelled samples in sparse rows, and the LIBSVM text format they are read from.

use crate::random::Rng;

/// Samples with two kinds of labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dataset {
    /// Row `i` holds the entries `starts[i]..starts[i + 1]`.
    starts: Vec<usize>,
    /// The feature of each entry, from 0, rising within a row.
    indices: Vec<u32>,
    values: Vec<f32>,
    /// −1 or +1.
    labels: Vec<f32>,
    features: usize,
}

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Features that are present, from 0.
    pub indices: &'a [u32],
    /// Their values.
    pub values: &'a [f32],
    /// −1 or +1.
    pub label: f32,
}

/// Why a line was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct LibsvmError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: String,
}

/// Larger indices are taken for a damaged file: a model of that size could not be held anyway.
const FEATURES_MAX: u32 = 100_000_000;

impl Dataset {
    /// Reads LIBSVM text: one sample a line, `label index:value index:value … # comment`, with
    /// indices from 1 rising within a line. Labels are either −1 and +1, or 0 and 1, or 1 and 2;
    /// in each case the larger one becomes +1. (A file in which every label is 1 has only +1.)
    pub fn parse(text: &[u8]) -> Result<Dataset, LibsvmError> {
        let mut dataset = Dataset { starts: vec![0], ..Dataset::default() };
        // The line on which each of the labels −1, 0 and 2 was first seen.
        let mut seen: [Option<usize>; 3] = [None; 3];
        for (line, content) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            let refuse = |problem| LibsvmError { line, problem };
            let content = content.split(|byte| *byte == b'#').next().unwrap_or_default();
            let content = std::str::from_utf8(content)
                .map_err(|_| refuse("is not text; is the file compressed?".into()))?;
            let mut words = content.split_ascii_whitespace();
            let Some(label) = words.next() else { continue };
            let label = parse_label(label).map_err(refuse)?;
            if let Some(slot) = [-1.0, 0.0, 2.0].iter().position(|other| *other == label) {
                seen[slot].get_or_insert(line);
            }
            dataset.labels.push(label);
            for word in words {
                dataset.push_entry(word).map_err(refuse)?;
            }
            dataset.starts.push(dataset.indices.len());
        }
        dataset.map_labels(seen)?;
        Ok(dataset)
    }

    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The largest index of a feature, counted from 1.
    pub fn features(&self) -> usize {
        self.features
    }

    /// How many values are stored.
    pub fn entries(&self) -> usize {
        self.values.len()
    }

    /// Sample `index`.
    pub fn sample(&self, index: usize) -> Sample<'_> {
        let range = self.starts[index]..self.starts[index + 1];
        Sample {
            indices: &self.indices[range.clone()],
            values: &self.values[range],
            label: self.labels[index],
        }
    }

    /// All samples, in order.
    pub fn samples(&self) -> impl Iterator<Item = Sample<'_>> {
        (0..self.len()).map(|index| self.sample(index))
    }

    /// Puts a `fraction` of the samples, drawn by `seed`, aside: (the rest, those put aside), both
    /// in their old order. Neither is empty if there are two samples and `fraction` is in (0, 1).
    pub fn hold_out(&self, fraction: f64, seed: u64) -> (Dataset, Dataset) {
        let most = self.len().saturating_sub(1);
        let aside = ((self.len() as f64 * fraction).round() as usize).clamp(1.min(most), most);
        let mut order: Vec<usize> = (0..self.len()).collect();
        Rng::new(seed, "hold-out", 0).shuffle(&mut order);
        let (aside, rest) = order.split_at_mut(aside);
        aside.sort_unstable();
        rest.sort_unstable();
        (self.select(rest), self.select(aside))
    }

    fn select(&self, chosen: &[usize]) -> Dataset {
        let mut part = Dataset { starts: vec![0], features: self.features, ..Dataset::default() };
        for index in chosen {
            let sample = self.sample(*index);
            part.indices.extend_from_slice(sample.indices);
            part.values.extend_from_slice(sample.values);
            part.labels.push(sample.label);
            part.starts.push(part.indices.len());
        }
        part
    }

    /// Adds `word`, which reads `index:value`, to the last row.
    fn push_entry(&mut self, word: &str) -> Result<(), String> {
        let (index, value) = word
            .split_once(':')
            .and_then(|(index, value)| Some((index.parse::<u32>().ok()?, value.parse().ok()?)))
            .ok_or_else(|| format!("`{}` is not of the form index:value", shown(word)))?;
        if index == 0 || index > FEATURES_MAX {
            return Err(format!("index {index} is not between 1 and {FEATURES_MAX}"));
        }
        if !f32::is_finite(value) {
            return Err(format!("`{}` is not a finite number", shown(word)));
        }
        let row_start = *self.starts.last().expect("starts with a zero");
        if self.indices[row_start..].last().is_some_and(|last| *last >= index - 1) {
            return Err(format!("index {index} does not rise above the one before it"));
        }
        self.indices.push(index - 1);
        self.values.push(value);
        self.features = self.features.max(index as usize);
        Ok(())
    }

    /// Turns the labels as written into −1 and +1.
    fn map_labels(&mut self, seen: [Option<usize>; 3]) -> Result<(), LibsvmError> {
        let mut kinds = seen.into_iter().flatten().collect::<Vec<usize>>();
        kinds.sort_unstable();
        if let [_, line, ..] = kinds[..] {
            let problem = "its label does not go with the earlier ones; allowed are \
                           −1 and +1, or 0 and 1, or 1 and 2"
                .into();
            return Err(LibsvmError { line, problem });
        }
        let larger = if seen[2].is_some() { 2.0 } else { 1.0 };
        for label in &mut self.labels {
            *label = if *label == larger { 1.0 } else { -1.0 };
        }
        Ok(())
    }
}

fn parse_label(word: &str) -> Result<f32, String> {
    let label = word.parse::<f32>().ok().filter(|label| [-1.0, 0.0, 1.0, 2.0].contains(label));
    label.ok_or_else(|| {
        format!("label `{}` is not one of −1, 0, 1, 2 (two classes only)", shown(word))
    })
}

/// Enough of a word to recognise it: a wrong file may be one long word.
fn shown(word: &str) -> String {
    word.escape_debug().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> Vec<f32> {
        Dataset::parse(text.as_bytes()).expect("good text").labels
    }

    fn refusal(text: &[u8]) -> String {
        Dataset::parse(text).expect_err("refused").to_string()
    }

    #[test]
    fn text_becomes_rows() {
        let text = b"+1 1:0.5 3:-2 # first\n\n# nothing here\r\n-1 2:1e-3\r\n-1\n";
        let dataset = Dataset::parse(text).expect("good text");
        assert_eq!((dataset.len(), dataset.features(), dataset.entries()), (3, 3, 3));
        let first = Sample { indices: &[0, 2], values: &[0.5, -2.0], label: 1.0 };
        assert_eq!(dataset.sample(0), first);
        assert_eq!(dataset.sample(1), Sample { indices: &[1], values: &[1e-3], label: -1.0 });
        assert_eq!(dataset.sample(2), Sample { indices: &[], values: &[], label: -1.0 });
        assert!(Dataset::parse(b"").expect("good text").is_empty());
    }

    #[test]
    fn the_larger_label_is_the_positive_one() {
        assert_eq!(labels("-1\n+1\n1.0\n"), [-1.0, 1.0, 1.0]);
        assert_eq!(labels("1\n0\n"), [1.0, -1.0]);
        assert_eq!(labels("1\n2\n"), [-1.0, 1.0]);
        assert_eq!(labels("1\n1\n"), [1.0, 1.0]);
    }

    #[test]
    fn refusals_name_the_line() {
        assert!(refusal(b"1 1:1\n-1 1:1 1:2\n").starts_with("line 2: index 1 does not rise"));
        assert!(refusal(b"1 0:1\n").starts_with("line 1: index 0 is not between 1"));
        assert!(refusal(b"1 4000000000:1\n").starts_with("line 1: index 4000000000 is not"));
        assert!(refusal(b"1 -1:1\n").starts_with("line 1: `-1:1` is not of the form"));
        assert!(refusal(b"1 1:x\n").starts_with("line 1: `1:x` is not of the form"));
        assert!(refusal(b"1 1\n").starts_with("line 1: `1` is not of the form"));
        assert!(refusal(b"1 1:inf\n").starts_with("line 1: `1:inf` is not a finite"));
        assert!(refusal(b"3 1:1\n").starts_with("line 1: label `3` is not one of"));
        assert!(refusal(b"NaN 1:1\n").starts_with("line 1: label `NaN`"));
        assert!(refusal(b"1\n0\n-1\n").starts_with("line 3: its label does not go"));
        assert!(refusal(b"2\n0\n").starts_with("line 2: its label does not go"));
        assert!(refusal("x".repeat(1000).as_bytes()).len() < 150);
        assert!(refusal(b"\x1f\x8b\x08\x00").contains("is the file compressed?"));
    }

    #[test]
    fn holding_out_divides_the_samples() {
        let text: String = (1..=10).map(|k| format!("{} 1:{k}\n", k % 2)).collect();
        let dataset = Dataset::parse(text.as_bytes()).expect("good text");
        let (rest, aside) = dataset.hold_out(0.3, 1);
        assert_eq!((rest.len(), aside.len(), rest.features(), aside.features()), (7, 3, 1, 1));
        let mut values = [rest.values.clone(), aside.values.clone()].concat();
        values.sort_by(f32::total_cmp);
        assert_eq!(values, dataset.values);
        assert_eq!(dataset.hold_out(0.3, 1), (rest.clone(), aside));
        assert_ne!(dataset.hold_out(0.3, 2).0, rest);
        assert_eq!(dataset.hold_out(0.001, 1).1.len(), 1);
    }
}
