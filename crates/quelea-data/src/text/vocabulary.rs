//! Byte-pair vocabularies (Sennrich, Haddow and Birch 2016) over bytes, trained here.
//!
//! Text is cut into words (a run of letters and digits, or of other signs, with the space before
//! it); within words, the pair of tokens that is most frequent becomes a new token, again and
//! again. Of equally frequent pairs the one with the smaller numbers is taken, so the same text
//! gives the same vocabulary. Bytes are tokens, so there is nothing that cannot be encoded, and
//! what was encoded decodes to the same text.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt::Write as _;
use std::path::Path;

use crate::error::DataError;
use crate::files::{Content, write_beside};
use crate::sha256;

/// Fills the room behind a shorter sentence.
pub const PAD: u32 = 0;
/// Begins a sentence.
pub const BEGIN: u32 = 1;
/// Ends a sentence.
pub const END: u32 = 2;
/// The token of byte 0; the other bytes follow.
const BYTES: u32 = 3;
/// The token of the first merged pair.
const MERGED: u32 = BYTES + 256;
/// The largest vocabulary that is read or made.
const SIZE_MAX: usize = 1 << 20;
/// What all tokens of a vocabulary that is read may have together: pairs of pairs double with every line.
const TOKEN_BYTES_MAX: usize = 64 << 20;

type Pair = (u32, u32);

/// A vocabulary of tokens, each a sequence of bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Vocabulary {
    /// Pair `k` makes the token `MERGED + k`.
    merges: Vec<Pair>,
    token_of: BTreeMap<Pair, u32>,
    /// The bytes of each token; the three signs have none.
    bytes_of: Vec<Vec<u8>>,
}

impl Vocabulary {
    /// Trains a vocabulary of at most `size` tokens, of which 259 are signs and bytes. It stays
    /// smaller where no pair occurs twice any more.
    pub fn train<'a>(texts: impl IntoIterator<Item = &'a str>, size: usize) -> Vocabulary {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for word in texts.into_iter().flat_map(words) {
            *counts.entry(word).or_default() += 1;
        }
        let merges = size.min(SIZE_MAX).saturating_sub(MERGED as usize);
        Vocabulary::of(Trainer::new(&counts).run(merges))
    }

    /// The vocabulary that `path` holds if it was made of the same texts and size, else a new one
    /// that is saved there. A folder that cannot be written to is no reason to stop.
    pub fn cached(path: &Path, texts: &[&[String]], size: usize) -> Vocabulary {
        let origin = origin(texts, size);
        if let Ok((known, vocabulary)) = Vocabulary::read(path)
            && known == origin
        {
            return vocabulary;
        }
        let texts = texts.iter().flat_map(|lines| lines.iter().map(String::as_str));
        let vocabulary = Vocabulary::train(texts, size);
        let _ = write_beside(path, vocabulary.written(&origin).as_bytes());
        vocabulary
    }

    /// Writes it beside `path` and renames it.
    pub fn save(&self, path: &Path) -> Result<(), DataError> {
        write_beside(path, self.written("unknown").as_bytes())
    }

    /// Reads what [`Vocabulary::save`] or [`Vocabulary::cached`] has written.
    pub fn load(path: &Path) -> Result<Vocabulary, DataError> {
        Vocabulary::read(path).map(|(_, vocabulary)| vocabulary)
    }

    /// How many tokens there are.
    pub fn size(&self) -> usize {
        self.bytes_of.len()
    }

    /// The tokens of a text, without [`BEGIN`] and [`END`].
    pub fn encode(&self, text: &str) -> Vec<u32> {
        words(text).flat_map(|word| self.encode_word(word)).collect()
    }

    /// The tokens of many texts; each word is looked up once.
    pub fn encode_all(&self, texts: &[String]) -> Vec<Vec<u32>> {
        let mut known: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        let mut all = Vec::with_capacity(texts.len());
        for text in texts {
            let mut tokens = Vec::new();
            for word in words(text) {
                let encoded = known.entry(word).or_insert_with(|| self.encode_word(word));
                tokens.extend_from_slice(encoded);
            }
            all.push(tokens);
        }
        all
    }

    /// The text of these tokens up to the first [`END`]; [`BEGIN`] and [`PAD`] are passed over, as
    /// are tokens that do not exist. A network may break a letter into parts: what is not UTF-8
    /// becomes �.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let until_end = tokens.iter().take_while(|token| **token != END);
        let bytes: Vec<u8> = until_end
            .filter_map(|token| self.bytes_of.get(*token as usize))
            .flat_map(|bytes| bytes.iter().copied())
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn of(merges: Vec<Pair>) -> Vocabulary {
        let mut bytes_of = vec![Vec::new(); BYTES as usize];
        bytes_of.extend((0..=255).map(|byte| vec![byte]));
        for (left, right) in &merges {
            let bytes = [&bytes_of[*left as usize][..], &bytes_of[*right as usize]].concat();
            bytes_of.push(bytes);
        }
        let token_of = merges.iter().copied().zip(MERGED..).collect();
        Vocabulary { merges, token_of, bytes_of }
    }

    /// Merges the pair that was merged first in training, until none is left.
    fn encode_word(&self, word: &str) -> Vec<u32> {
        let mut tokens: Vec<u32> = word.bytes().map(|byte| BYTES + u32::from(byte)).collect();
        loop {
            let pairs = tokens.windows(2).map(|pair| (pair[0], pair[1]));
            let known = pairs.filter_map(|pair| self.token_of.get(&pair).map(|to| (*to, pair)));
            let Some((token, pair)) = known.min() else { return tokens };
            merge(&mut tokens, pair, token);
        }
    }

    /// As text: what it was made of, a pair a line, and the checksum of all that.
    fn written(&self, origin: &str) -> String {
        let mut text = format!("{HEADER}\norigin {origin}\n");
        for (left, right) in &self.merges {
            let _ = writeln!(text, "{left} {right}");
        }
        let sum = sha256::of(text.as_bytes());
        let _ = writeln!(text, "sha256 {sum}");
        text
    }

    fn read(path: &Path) -> Result<(String, Vocabulary), DataError> {
        let wrong = |problem: String| DataError::damaged(path, problem);
        let bytes = Content::open(path)?.rest(32 * SIZE_MAX)?;
        let text = std::str::from_utf8(&bytes);
        let text = text.map_err(|_| wrong("is not a vocabulary".into()))?;
        let cut = text.rfind("sha256 ").unwrap_or(text.len());
        let (content, sum) = text.split_at(cut);
        let mut lines = content.lines();
        if lines.next() != Some(HEADER) {
            return Err(wrong(format!("is not a vocabulary: it does not begin `{HEADER}`")));
        }
        if sum.trim_end() != format!("sha256 {}", sha256::of(content.as_bytes())) {
            return Err(wrong("is damaged: its checksum is wrong".into()));
        }
        let origin = lines.next().and_then(|line| line.strip_prefix("origin "));
        let origin = origin.ok_or_else(|| wrong("does not say what it was made of".into()))?;
        let mut merges = Vec::new();
        let mut lengths = [vec![0; BYTES as usize], vec![1; 256]].concat();
        let mut total = 0;
        for (place, line) in lines.enumerate() {
            let next = MERGED + place as u32;
            let pair = line.split_once(' ').and_then(|(left, right)| {
                let pair: Pair = (left.parse().ok()?, right.parse().ok()?);
                let is_older = |token| (BYTES..next).contains(&token);
                (is_older(pair.0) && is_older(pair.1)).then_some(pair)
            });
            let problem = || wrong(format!("line {}: `{line}` is no pair of tokens", place + 3));
            let pair = pair.ok_or_else(problem)?;
            let length = lengths[pair.0 as usize] + lengths[pair.1 as usize];
            total += length;
            if total > TOKEN_BYTES_MAX || lengths.len() >= SIZE_MAX {
                let problem = format!(
                    "line {}: more than {SIZE_MAX} tokens, or of more than {TOKEN_BYTES_MAX} bytes together",
                    place + 3
                );
                return Err(wrong(problem));
            }
            lengths.push(length);
            merges.push(pair);
        }
        Ok((origin.to_string(), Vocabulary::of(merges)))
    }
}

const HEADER: &str = "quelea byte pairs 1";

/// What a vocabulary is made of: its size and the texts.
fn origin(texts: &[&[String]], size: usize) -> String {
    let mut sum = sha256::Sum::default();
    for line in texts.iter().flat_map(|lines| lines.iter()) {
        sum.take(line.as_bytes());
        sum.take(b"\n");
    }
    format!("{size} {}", sum.hex())
}

/// Cuts a text into words; nothing is lost.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let after_space = rest.strip_prefix(' ').and_then(|after| after.chars().next());
        let len = match after_space.filter(|second| !second.is_whitespace()) {
            Some(second) => 1 + run(&rest[1..], second),
            None if first.is_whitespace() => white_run(rest),
            None => run(rest, first),
        };
        let (word, others) = rest.split_at(len);
        rest = others;
        Some(word)
    })
}

/// The length of the run of letters and digits, or of other signs, that begins with `first`.
fn run(text: &str, first: char) -> usize {
    let is_same = |c: char| !c.is_whitespace() && c.is_alphanumeric() == first.is_alphanumeric();
    text.find(|c| !is_same(c)).unwrap_or(text.len())
}

/// The length of the white space, but for a space that belongs to the word behind it.
fn white_run(text: &str) -> usize {
    let len = text.find(|c: char| !c.is_whitespace()).unwrap_or(text.len());
    let is_before_word = len < text.len() && len > 1 && text[..len].ends_with(' ');
    if is_before_word { len - 1 } else { len }
}

/// Replaces every `pair` by `token`, from left to right.
fn merge(tokens: &mut Vec<u32>, pair: Pair, token: u32) {
    let (mut read, mut written) = (0, 0);
    while read < tokens.len() {
        let is_pair = read + 1 < tokens.len() && (tokens[read], tokens[read + 1]) == pair;
        tokens[written] = if is_pair { token } else { tokens[read] };
        read += if is_pair { 2 } else { 1 };
        written += 1;
    }
    tokens.truncate(written);
}

/// The state of training.
struct Trainer {
    /// The tokens of every different word, and how often it occurs.
    words: Vec<(Vec<u32>, u64)>,
    counts: BTreeMap<Pair, u64>,
    /// Words that hold a pair, or did so once.
    places: BTreeMap<Pair, BTreeSet<u32>>,
    /// Candidates; a count that is no longer true is passed over.
    best: BinaryHeap<(u64, Reverse<Pair>)>,
}

impl Trainer {
    fn new(counts: &BTreeMap<&str, u64>) -> Trainer {
        let tokens = |word: &str| word.bytes().map(|byte| BYTES + u32::from(byte)).collect();
        let words = counts.iter().map(|(word, count)| (tokens(word), *count)).collect();
        let (counts, places) = (BTreeMap::new(), BTreeMap::new());
        let mut trainer = Trainer { words, counts, places, best: BinaryHeap::new() };
        for place in 0..trainer.words.len() {
            trainer.count(place as u32, true);
        }
        trainer.best = trainer.counts.iter().map(|(pair, n)| (*n, Reverse(*pair))).collect();
        trainer
    }

    fn run(mut self, merges: usize) -> Vec<Pair> {
        let mut done = Vec::new();
        while done.len() < merges {
            let Some((count, Reverse(pair))) = self.best.pop() else { break };
            if self.counts.get(&pair) != Some(&count) {
                continue;
            }
            if count < 2 {
                break;
            }
            self.merge(pair, MERGED + done.len() as u32);
            done.push(pair);
        }
        done
    }

    fn merge(&mut self, pair: Pair, token: u32) {
        let mut changed = BTreeSet::new();
        for place in self.places.remove(&pair).unwrap_or_default() {
            changed.extend(self.count(place, false));
            merge(&mut self.words[place as usize].0, pair, token);
            changed.extend(self.count(place, true));
        }
        for pair in changed {
            match self.counts.get(&pair) {
                Some(0) => drop(self.counts.remove(&pair)),
                Some(count) => self.best.push((*count, Reverse(pair))),
                None => {}
            }
        }
    }

    /// Adds the pairs of a word to the counts, or takes them away; returns which.
    fn count(&mut self, place: u32, is_added: bool) -> Vec<Pair> {
        let (tokens, times) = &self.words[place as usize];
        let pairs: Vec<Pair> = tokens.windows(2).map(|pair| (pair[0], pair[1])).collect();
        for pair in &pairs {
            let count = self.counts.entry(*pair).or_default();
            if is_added {
                *count += times;
                self.places.entry(*pair).or_default().insert(place);
            } else {
                *count -= times;
            }
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts all pairs anew for every merge: slow and plain.
    fn train_plainly(texts: &[&str], size: usize) -> Vec<Pair> {
        let mut all: Vec<Vec<u32>> = texts
            .iter()
            .flat_map(|text| words(text))
            .map(|word| word.bytes().map(|byte| BYTES + u32::from(byte)).collect())
            .collect();
        let mut merges = Vec::new();
        while MERGED as usize + merges.len() < size {
            let mut counts: BTreeMap<Pair, u64> = BTreeMap::new();
            for pair in all.iter().flat_map(|tokens| tokens.windows(2)) {
                *counts.entry((pair[0], pair[1])).or_default() += 1;
            }
            let best = counts.iter().max_by_key(|(pair, count)| (**count, Reverse(**pair)));
            let Some((pair, 2..)) = best.map(|(pair, count)| (*pair, *count)) else { break };
            let token = MERGED + merges.len() as u32;
            all.iter_mut().for_each(|tokens| merge(tokens, pair, token));
            merges.push(pair);
        }
        merges
    }

    const TEXTS: [&str; 4] = [
        "the cat sat on the mat, the cat and the other cat",
        "aaaa aaaaa aaaaaa banana bananas ananas",
        "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
        "  three   spaces\tand\na line … 3.14 x86-64 ",
    ];

    #[test]
    fn training_finds_the_same_pairs_as_counting_anew_every_time() {
        for size in [259, 260, 300, 10_000] {
            let trained = Vocabulary::train(TEXTS, size);
            assert_eq!(trained.merges, train_plainly(&TEXTS, size), "size {size}");
            assert!(trained.size() <= size);
        }
        assert_eq!(Vocabulary::train([], 1000).size(), 259);
    }

    #[test]
    fn words_are_cut_without_loss() {
        let cut = |text| words(text).collect::<Vec<&str>>();
        assert_eq!(cut("A man, 30."), ["A", " man", ",", " 30", "."]);
        assert_eq!(cut("  two  spaces "), [" ", " two", " ", " spaces", " "]);
        assert_eq!(cut("it's \t\n"), ["it", "'", "s", " \t\n"]);
        for text in TEXTS {
            assert_eq!(cut(text).concat(), text);
        }
    }

    #[test]
    fn what_was_encoded_decodes_to_the_same_text() {
        let vocabulary = Vocabulary::train(TEXTS, 320);
        for text in TEXTS.iter().copied().chain(["", " ", "日本語 😀\0\r\n", "unseen words Ω"])
        {
            let tokens = vocabulary.encode(text);
            assert!(tokens.iter().all(|token| (3..vocabulary.size() as u32).contains(token)));
            assert_eq!(vocabulary.decode(&tokens), text);
            let marked = [&[BEGIN][..], &tokens, &[END, PAD, PAD, 77]].concat();
            assert_eq!(vocabulary.decode(&marked), text);
        }
        assert!(vocabulary.encode(TEXTS[0]).len() < TEXTS[0].len() / 2);
        let lines = TEXTS.map(String::from);
        let one_by_one: Vec<Vec<u32>> = lines.iter().map(|line| vocabulary.encode(line)).collect();
        assert_eq!(vocabulary.encode_all(&lines), one_by_one);
        assert_eq!(vocabulary.decode(&[5_000_000, BYTES + 0xff]), "\u{fffd}");
    }

    #[test]
    fn a_saved_vocabulary_is_the_same_and_a_damaged_one_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("vocabulary.txt");
        let lines = TEXTS.map(String::from);
        let vocabulary = Vocabulary::cached(&path, &[&lines], 300);
        assert_eq!(Vocabulary::load(&path).expect("whole"), vocabulary);
        let text = std::fs::read_to_string(&path).expect("text");
        let refusal = |text: &str| {
            std::fs::write(&path, text).expect("written");
            Vocabulary::load(&path).expect_err("refused").to_string()
        };
        assert!(refusal(&text.replacen("origin 300", "origin 301", 1)).contains("checksum"));
        assert!(refusal(&text[..text.len() / 2]).contains("checksum"));
        assert!(refusal("hello\n").contains("does not begin"));
        assert!(refusal("").contains("does not begin"));
        let signed = |text: String| format!("{text}sha256 {}\n", sha256::of(text.as_bytes()));
        let future = signed(format!("{HEADER}\norigin x\n3 259\n"));
        assert!(refusal(&future).contains("line 3: `3 259` is no pair"), "{}", refusal(&future));
        // Every token twice as long as the one before it: 2^60 bytes in 60 lines.
        let doubling: String = (258..318).map(|token| format!("{token} {token}\n")).collect();
        let doubling = refusal(&signed(format!("{HEADER}\norigin x\n{doubling}")));
        assert!(doubling.contains("or of more than 67108864 bytes together"), "{doubling}");
        // A damaged cache is made anew, one of other texts too.
        assert_eq!(Vocabulary::cached(&path, &[&lines], 300), vocabulary);
        assert_eq!(std::fs::read_to_string(&path).expect("text"), text);
        let other = Vocabulary::cached(&path, &[&lines[..1]], 300);
        assert_ne!(other, vocabulary);
    }
}
