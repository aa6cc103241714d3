//! Corpus BLEU (Papineni et al. 2002) as sacreBLEU computes it (Post 2018): tokens of `13a`,
//! exponential smoothing, case kept: `case:mixed|eff:no|tok:13a|smooth:exp`.

use std::collections::BTreeMap;

/// The longest n-gram that counts.
const ORDER: usize = 4;

/// A score and what it was made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bleu {
    /// From 0 to 100.
    pub score: f64,
    /// Of 1- to 4-grams, in percent, smoothed.
    pub precisions: [f64; ORDER],
    /// Below 1 where translations are shorter than references.
    pub brevity: f64,
    /// Tokens of the translations.
    pub tokens: u64,
    /// Tokens of the references.
    pub reference_tokens: u64,
}

/// The score of translations against one or more lists of references, each as long as they are.
pub fn bleu<A: AsRef<str>, B: AsRef<str>>(translations: &[A], references: &[&[B]]) -> Bleu {
    let is_good = |list: &&[B]| list.len() == translations.len();
    assert!(!references.is_empty() && references.iter().all(is_good), "a reference for each");
    let mut counts = Counts::default();
    for (place, translation) in translations.iter().enumerate() {
        let references: Vec<Vec<String>> =
            references.iter().map(|list| tokens(list[place].as_ref())).collect();
        counts.add(&tokens(translation.as_ref()), &references);
    }
    counts.score()
}

/// What the score is a function of.
#[derive(Debug, Default)]
struct Counts {
    /// N-grams that the reference has too.
    right: [u64; ORDER],
    total: [u64; ORDER],
    tokens: u64,
    reference_tokens: u64,
}

impl Counts {
    fn add(&mut self, translation: &[String], references: &[Vec<String>]) {
        let len = translation.len();
        let nearest = references.iter().map(Vec::len).min_by_key(|own| (own.abs_diff(len), *own));
        self.tokens += len as u64;
        self.reference_tokens += nearest.unwrap_or(0) as u64;
        for order in 1..=ORDER {
            let known: Vec<_> = references.iter().map(|tokens| ngrams(tokens, order)).collect();
            for (ngram, count) in ngrams(translation, order) {
                let most = known.iter().filter_map(|known| known.get(ngram)).max();
                self.total[order - 1] += count;
                self.right[order - 1] += most.map_or(0, |most| count.min(*most));
            }
        }
    }

    fn score(&self) -> Bleu {
        let (tokens, reference_tokens) = (self.tokens, self.reference_tokens);
        let brevity = match tokens {
            0 if reference_tokens > 0 => 0.0,
            _ if tokens >= reference_tokens => 1.0,
            _ => (1.0 - reference_tokens as f64 / tokens as f64).exp(),
        };
        let precisions = self.precisions();
        let score = if precisions.contains(&0.0) {
            0.0
        } else {
            brevity * (precisions.iter().map(|p| p.ln()).sum::<f64>() / ORDER as f64).exp()
        };
        Bleu { score, precisions, brevity, tokens, reference_tokens }
    }

    /// An order without a match counts as a half of one, the next such as a quarter, and so on.
    fn precisions(&self) -> [f64; ORDER] {
        let mut precisions = [0.0; ORDER];
        if self.right == [0; ORDER] {
            return precisions;
        }
        let mut smooth = 1.0;
        for (order, precision) in precisions.iter_mut().enumerate() {
            let (right, total) = (self.right[order] as f64, self.total[order] as f64);
            if total == 0.0 {
                break;
            }
            *precision = if right == 0.0 {
                smooth *= 2.0;
                100.0 / (smooth * total)
            } else {
                100.0 * right / total
            };
        }
        precisions
    }
}

fn ngrams(tokens: &[String], order: usize) -> BTreeMap<&[String], u64> {
    let mut counts = BTreeMap::new();
    for ngram in tokens.windows(order) {
        *counts.entry(ngram).or_default() += 1;
    }
    counts
}

/// The tokenizer `13a` of sacreBLEU, which is that of the script mteval-v13a.pl.
fn tokens(line: &str) -> Vec<String> {
    let line = line.trim_end_matches(is_white);
    let mut line = line.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    for (name, sign) in [("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")] {
        line = line.replace(name, sign);
    }
    let mut signs: Vec<char> = vec![' '];
    for c in line.chars() {
        match c {
            '{'..='~' | '['..='`' | ' '..='&' | '('..='+' | ':'..='@' | '/' => {
                signs.extend([' ', c, ' ']);
            }
            _ => signs.push(c),
        }
    }
    signs.push(' ');
    let is_stop = |c: char| c == '.' || c == ',';
    // A stop or comma that is not between digits stands alone; so does a dash behind a digit.
    let signs = part(&signs, |a, b| !a.is_ascii_digit() && is_stop(b), |a, b| [a, ' ', b, ' ']);
    let signs = part(&signs, |a, b| is_stop(a) && !b.is_ascii_digit(), |a, b| [' ', a, ' ', b]);
    let signs = part(&signs, |a, b| a.is_ascii_digit() && b == '-', |a, b| [a, ' ', b, ' ']);
    let line: String = signs.into_iter().collect();
    line.split(is_white).filter(|token| !token.is_empty()).map(String::from).collect()
}

/// Replaces pairs of neighbours from left to right, as a regular expression of two signs does.
fn part(
    signs: &[char],
    is_pair: impl Fn(char, char) -> bool,
    replaced: impl Fn(char, char) -> [char; 4],
) -> Vec<char> {
    let mut out = Vec::with_capacity(signs.len());
    let mut at = 0;
    while at < signs.len() {
        match signs.get(at + 1) {
            Some(next) if is_pair(signs[at], *next) => {
                out.extend(replaced(signs[at], *next));
                at += 2;
            }
            _ => {
                out.push(signs[at]);
                at += 1;
            }
        }
    }
    out
}

/// What Python takes for white space: four separators of ASCII more than Unicode.
fn is_white(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of words with tabs between, written by `tests/bleu/reference.py`.
    const CASES: &str = include_str!("../tests/bleu/cases.txt");

    fn unescaped(text: &str) -> String {
        let mut out = String::new();
        let mut signs = text.chars();
        while let Some(c) = signs.next() {
            match (c, if c == '\\' { signs.next() } else { None }) {
                (_, Some('n')) => out.push('\n'),
                (_, Some('t')) => out.push('\t'),
                (_, Some('r')) => out.push('\r'),
                (_, Some(other)) => out.push(other),
                (c, None) => out.push(c),
            }
        }
        out
    }

    #[test]
    fn tokens_are_those_of_sacrebleu() {
        let mut count = 0;
        for line in CASES.split('\n').filter_map(|line| line.strip_prefix("tokens\t")) {
            let (text, expected) = line.split_once('\t').expect("two fields");
            let expected = unescaped(expected);
            assert_eq!(tokens(&unescaped(text)).join(" "), expected, "{text}");
            count += 1;
        }
        assert!(count > 20, "{count} cases");
    }

    #[test]
    fn scores_are_those_of_sacrebleu() {
        let mut lines = CASES.split('\n').filter(|line| !line.starts_with("tokens\t"));
        let mut count = 0;
        while let Some(line) = lines.next() {
            let Some(head) = line.strip_prefix("case\t") else { continue };
            let words: Vec<&str> = head.split('\t').collect();
            let numbers: Vec<f64> =
                words[2..].iter().map(|word| word.parse().expect("a number")).collect();
            let segments: usize = words[1].parse().expect("a number");
            let rows: Vec<Vec<String>> = lines
                .by_ref()
                .take(segments)
                .map(|line| line.split('\t').map(unescaped).collect())
                .collect();
            let column = |place: usize| -> Vec<String> {
                rows.iter().map(|row| row[place].clone()).collect()
            };
            let references: Vec<Vec<String>> = (1..rows[0].len()).map(column).collect();
            let references: Vec<&[String]> = references.iter().map(Vec::as_slice).collect();
            let bleu = bleu(&column(0), &references);
            let [p1, p2, p3, p4] = bleu.precisions;
            let lens = [bleu.tokens as f64, bleu.reference_tokens as f64];
            let ours = [bleu.score, p1, p2, p3, p4, bleu.brevity, lens[0], lens[1]];
            for (ours, theirs) in ours.iter().zip(&numbers) {
                assert!((ours - theirs).abs() < 1e-9, "{}: {ours} {theirs}", words[0]);
            }
            count += 1;
        }
        assert!(count >= 10, "{count} cases");
    }
}
