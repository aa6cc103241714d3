//! How inputs are made of seeds: a few changes of the kinds that find mistakes in readers.

use quelea_core::random::Rng;

use crate::target::{FuzzTarget, InputFormat};

/// Longer inputs are cut; limits of readers are tested by what a header says, not by what follows.
pub const INPUT_BYTES: usize = 64 << 10;

/// Makes the inputs of one target: a function of seed and number.
#[derive(Debug)]
pub struct InputMaker<'a> {
    target: &'a FuzzTarget,
    seeds: Vec<Vec<u8>>,
    seed: u64,
}

impl<'a> InputMaker<'a> {
    /// For this target.
    pub fn new(target: &'a FuzzTarget, seed: u64) -> InputMaker<'a> {
        InputMaker { target, seeds: target.all_seeds(), seed }
    }

    /// Input `number`.
    pub fn input(&self, number: u64) -> Vec<u8> {
        let mut rng = Rng::new(self.seed, self.target.name, number);
        let mut bytes = pick(&mut rng, &self.seeds).cloned().unwrap_or_default();
        // Many inputs with one change, some with several, a few as they are.
        let changes = match rng.below(8) {
            0 => 0,
            1..=4 => 1,
            _ => 2 + rng.below(6),
        };
        for _ in 0..changes {
            match self.target.format {
                InputFormat::Text if rng.below(4) > 0 => change_text(&mut bytes, &mut rng),
                _ => change_bytes(&mut bytes, &mut rng, &self.seeds),
            }
        }
        bytes.truncate(INPUT_BYTES);
        if rng.below(8) > 0 {
            (self.target.repair)(&mut bytes);
        }
        bytes
    }
}

fn pick<'a, T>(rng: &mut Rng, items: &'a [T]) -> Option<&'a T> {
    if items.is_empty() { None } else { items.get(rng.below(items.len() as u64) as usize) }
}

/// A place from 0 to `len`, both included.
fn place(rng: &mut Rng, len: usize) -> usize {
    rng.below(len as u64 + 1) as usize
}

/// A short range.
fn range(rng: &mut Rng, len: usize) -> std::ops::Range<usize> {
    let start = place(rng, len);
    let longest = if rng.below(4) == 0 { len - start } else { (len - start).min(16) };
    start..start + place(rng, longest)
}

/// Numbers at which lengths, counts and signs go wrong.
fn awkward(rng: &mut Rng, len: usize) -> u64 {
    let len = len as u64;
    let base =
        [0, 1, 2, 7, 8, 127, 128, 255, 256, len, len / 2, 1 << 15, 1 << 16, 1 << 20, 1 << 24];
    let large = [
        1 << 31,
        1 << 32,
        1 << 33,
        1 << 40,
        1 << 47,
        1 << 60,
        1 << 62,
        1 << 63,
        u64::MAX,
        u64::MAX / 8,
    ];
    let number = if rng.below(2) == 0 { pick(rng, &base) } else { pick(rng, &large) };
    let number = number.copied().expect("the lists are not empty");
    number.wrapping_add(rng.below(3)).wrapping_sub(1)
}

/// Real numbers that sums and comparisons stumble over.
const REALS: [f64; 8] =
    [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, -0.0, 1e300, f64::MIN_POSITIVE, 1e19];

/// One change of an input in bytes.
fn change_bytes(bytes: &mut Vec<u8>, rng: &mut Rng, seeds: &[Vec<u8>]) {
    match rng.below(12) {
        0 if !bytes.is_empty() => {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << rng.below(8);
        }
        1 if !bytes.is_empty() => {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] =
                [0, 1, 0x7f, 0x80, 0xff, b'\n', b' ', rng.next_u64() as u8][rng.below(8) as usize];
        }
        2..=5 => overwrite_number(bytes, rng),
        6 => bytes.truncate(place(rng, bytes.len())),
        7 => drop(bytes.drain(range(rng, bytes.len()))),
        8 => {
            let copy = bytes[range(rng, bytes.len())].to_vec();
            insert(bytes, rng, &copy);
        }
        9 => {
            let count = 1 + rng.below(32);
            let drawn: Vec<u8> = (0..count).map(|_| rng.next_u64() as u8).collect();
            insert(bytes, rng, &drawn);
        }
        10 => {
            // A field of eight bytes more, as counted lists need.
            let word = awkward(rng, bytes.len()).to_le_bytes();
            insert(bytes, rng, &word);
        }
        _ => {
            let Some(other) = pick(rng, seeds) else { return };
            let tail = other[place(rng, other.len())..].to_vec();
            bytes.truncate(place(rng, bytes.len()));
            bytes.extend(tail);
        }
    }
}

fn insert(bytes: &mut Vec<u8>, rng: &mut Rng, more: &[u8]) {
    let at = place(rng, bytes.len());
    bytes.splice(at..at, more.iter().copied());
}

/// Writes a number over some bytes: often where fields begin, in either byte order.
fn overwrite_number(bytes: &mut [u8], rng: &mut Rng) {
    let width = [1, 2, 4, 4, 8, 8, 8, 8][rng.below(8) as usize];
    if bytes.len() < width {
        return;
    }
    let mut at = place(rng, bytes.len() - width);
    if rng.below(4) > 0 {
        at -= at % width.min(4);
    }
    let number = if width == 8 && rng.below(6) == 0 {
        pick(rng, &REALS).copied().unwrap_or_default().to_bits()
    } else if rng.below(3) == 0 {
        rng.below(64)
    } else {
        awkward(rng, bytes.len())
    };
    let (little, big) = (number.to_le_bytes(), number.to_be_bytes());
    let written = if rng.below(3) > 0 { &little[..width] } else { &big[8 - width..] };
    bytes[at..at + width].copy_from_slice(written);
}

/// Words that readers of text stumble over.
const WORDS: [&str; 40] = [
    "-1",
    "0",
    "1",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "1e308",
    "1e-400",
    "nan",
    "inf",
    "-inf",
    "0x10",
    "1_000",
    "true",
    "null",
    "\"\"",
    "\"",
    "'",
    "[",
    "]",
    "{",
    "}",
    "[]",
    "{}",
    "=",
    ":",
    ",",
    ".",
    "..",
    "/",
    "../../etc/passwd",
    "\\u0000",
    "\u{1b}[2J",
    "\u{feff}",
    "é",
    "\r\n",
    "\n\n",
    "\t",
    "#",
    "\\",
];

/// One change of an input of words.
fn change_text(bytes: &mut Vec<u8>, rng: &mut Rng) {
    match rng.below(8) {
        0..=2 => {
            let numbers = runs(bytes, |byte| byte.is_ascii_digit() || b"+-.".contains(&byte));
            let Some(run) = pick(rng, &numbers).cloned() else { return };
            let word = pick(rng, &WORDS[..14]).copied().unwrap_or_default();
            bytes.splice(run, word.bytes());
        }
        3 => {
            let words = runs(bytes, |byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
            let (Some(to), Some(from)) = (pick(rng, &words).cloned(), pick(rng, &words).cloned())
            else {
                return;
            };
            let copy = bytes[from].to_vec();
            bytes.splice(to, copy);
        }
        4 => {
            let word = pick(rng, &WORDS).copied().unwrap_or_default();
            insert(bytes, rng, word.as_bytes());
        }
        5 => {
            let depth = 1 << rng.below(12);
            let open = [b"[".as_slice(), b"{\"a\":", b"(", b"a.", b"a = {"][rng.below(5) as usize];
            insert(bytes, rng, &open.repeat(depth));
        }
        _ => {
            let lines = runs(bytes, |byte| byte != b'\n');
            let Some(line) = pick(rng, &lines).cloned() else { return };
            let mut copy = bytes[line.clone()].to_vec();
            copy.push(b'\n');
            if rng.below(2) == 0 {
                bytes.drain(line);
            } else {
                let at = pick(rng, &lines).map_or(0, |line| line.start);
                bytes.splice(at..at, copy);
            }
        }
    }
}

/// The longest stretches of bytes of one kind.
fn runs(bytes: &[u8], is_inside: impl Fn(u8) -> bool) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, byte) in bytes.iter().enumerate() {
        match runs.last_mut() {
            _ if !is_inside(*byte) => {}
            Some(run) if run.end == at => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target;

    #[test]
    fn an_input_is_a_function_of_target_seed_and_number() {
        for target in target::all() {
            let (first, second) = (InputMaker::new(target, 7), InputMaker::new(target, 7));
            for number in [0, 1, 99, 1 << 40] {
                assert_eq!(first.input(number), second.input(number), "{}", target.name);
            }
            let others = InputMaker::new(target, 8);
            let differ = (0..50).filter(|number| first.input(*number) != others.input(*number));
            assert!(differ.count() > 10, "{}", target.name);
        }
    }

    #[test]
    fn runs_are_found_with_their_ends() {
        assert_eq!(runs(b"ab 12-x 3", |byte| byte.is_ascii_digit()), [3..5, 8..9]);
    }
}
