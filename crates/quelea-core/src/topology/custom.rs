//! A topology from a text file.
//!
//! ```text
//! # Everything after `#` is a comment; blank lines do not count.
//! 0 1          # an edge in both directions; all edges of the round get Metropolis weights
//! 1 2
//! ---          # the next round; after the last one the first holds again
//! 0 2 1/3      # an edge in both directions with its weight; what is left is a worker's own
//! 1 2 0.25
//! ---
//! 0 -> 1 1/2   # worker 0 sends to worker 1, which gives it the weight 1/2
//! 1 -> 2 1/2
//! 2 -> 0 1/2
//! ---
//! 0 -> 1       # edges in one direction without weights: senders divide evenly. That is column
//! 1 -> 2       # stochastic only, so it is for methods that push: sgp, gradient-tracking in push form
//! 2 -> 0
//! 0 -> 2
//! ---
//! matrix       # row i: the weights that worker i puts on workers 0, 1, …
//! 1/2 1/2 0
//! 1/2 0   1/2
//! 0   1/2 1/2
//! ```

use std::collections::BTreeMap;

use super::weights::{graph, metropolis, shares, with_self};
use super::{Round, Schedule, TopologyError, TopologyRequest};
use crate::options::{OptionKind, OptionSpec};

pub(super) const KEYS: &[OptionSpec] = &[OptionSpec {
    name: "file",
    kind: OptionKind::Text,
    help: "text file: edges `i j [weight]` or `i -> j [weight]`, or `matrix` and its rows; \
           `---` between rounds; weights like 0.25 or 1/3",
}];

pub(super) fn custom(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let text = request.text.ok_or(TopologyError::NoFile)?;
    let rounds = sections(text)?.into_iter().map(|lines| round(&lines, request.hosts.len()));
    Ok(Schedule::periodic(rounds.collect::<Result<_, _>>()?))
}

/// One line that counts.
#[derive(Clone, Copy)]
struct Line<'a> {
    number: usize,
    text: &'a str,
}

impl Line<'_> {
    fn refuse<T>(self, problem: impl Into<String>) -> Result<T, TopologyError> {
        Err(TopologyError::File { line: self.number, problem: problem.into() })
    }

    fn worker(self, word: &str, workers: usize) -> Result<usize, TopologyError> {
        match word.parse() {
            Ok(worker) if worker < workers => Ok(worker),
            Ok(worker) => self.refuse(format!(
                "there is no worker {worker}: the run has {workers}, 0 to {}",
                workers - 1
            )),
            Err(_) => self.refuse(format!("`{word}` is not a worker; {FORMS}")),
        }
    }

    /// A decimal number or a fraction, which alone can say a third to the last digit.
    fn weight(self, word: &str) -> Result<f64, TopologyError> {
        let number = |word: &str| word.trim().parse::<f64>().ok();
        let weight = match word.split_once('/') {
            Some((above, below)) => number(above).zip(number(below)).map(|(a, b)| a / b),
            None => number(word),
        };
        match weight {
            Some(weight) if (0.0..=1.0).contains(&weight) => Ok(weight),
            _ => self.refuse(format!("`{word}` is not a weight: a number or fraction from 0 to 1")),
        }
    }
}

/// The lines of each round.
fn sections(text: &str) -> Result<Vec<Vec<Line<'_>>>, TopologyError> {
    let mut sections = vec![Vec::new()];
    let mut last = 1;
    for (index, raw) in text.lines().enumerate() {
        let text = raw.split('#').next().unwrap_or_default().trim();
        let line = Line { number: index + 1, text };
        last = line.number;
        match text {
            "" => {}
            "---" if sections.last().is_some_and(Vec::is_empty) => {
                return line.refuse("there is no round before this `---`");
            }
            "---" => sections.push(Vec::new()),
            _ => sections.last_mut().expect("there is always one").push(line),
        }
    }
    if sections.last().is_some_and(Vec::is_empty) {
        let problem = match sections.len() {
            1 => format!("the file says nothing; {FORMS}"),
            _ => "there is no round after the last `---`".to_string(),
        };
        return Line { number: last, text: "" }.refuse(problem);
    }
    Ok(sections)
}

fn round(lines: &[Line], workers: usize) -> Result<Round, TopologyError> {
    match lines[0].text {
        "matrix" => matrix(lines, workers),
        _ => edges(lines, workers),
    }
}

fn matrix(lines: &[Line], workers: usize) -> Result<Round, TopologyError> {
    let (heading, lines) = lines.split_first().expect("a round has a line");
    if lines.len() != workers {
        let rows = lines.len();
        return heading.refuse(format!("this matrix has {rows} rows for {workers} workers"));
    }
    let row = |line: &Line| {
        let words: Vec<&str> = line.text.split_whitespace().collect();
        if words.len() != workers {
            let found = words.len();
            return line.refuse(format!("this row has {found} weights for {workers} workers"));
        }
        let weights: Vec<f64> =
            words.iter().map(|word| line.weight(word)).collect::<Result<_, _>>()?;
        Ok(weights.into_iter().enumerate().filter(|(_, weight)| *weight != 0.0).collect())
    };
    Ok(Round::new(lines.iter().map(row).collect::<Result<_, _>>()?))
}

fn edges(lines: &[Line], workers: usize) -> Result<Round, TopologyError> {
    // The weight of each message `(to, from)`, and the line that gave it.
    let mut given: BTreeMap<(usize, usize), (Option<f64>, usize)> = BTreeMap::new();
    let mut is_weighted = None;
    for line in lines {
        let (from, to, weight, is_mutual) = edge(*line, workers)?;
        if *is_weighted.get_or_insert(weight.is_some()) != weight.is_some() {
            return line.refuse("a round gives weights to all of its edges or to none");
        }
        let messages = [(to, from), (from, to)];
        for message in &messages[..if is_mutual { 2 } else { 1 }] {
            if let Some((_, before)) = given.insert(*message, (weight, line.number)) {
                return line.refuse(format!("line {before} has given this edge already"));
            }
        }
    }
    if is_weighted == Some(false) {
        let is_mutual = given.keys().all(|(to, from)| given.contains_key(&(*from, *to)));
        return Ok(if is_mutual {
            metropolis(&graph(workers, given.into_keys()))
        } else {
            shares(workers, given.into_keys().map(|(to, from)| (from, to)))
        });
    }
    let mut rows = vec![Vec::new(); workers];
    for ((to, from), (weight, _)) in given {
        rows[to].push((from, weight.expect("all edges have a weight")));
    }
    Ok(Round::new(rows.into_iter().enumerate().map(|(i, row)| with_self(i, row)).collect()))
}

/// `(from, to, weight, both ways)`.
fn edge(line: Line, workers: usize) -> Result<(usize, usize, Option<f64>, bool), TopologyError> {
    let words: Vec<&str> = line.text.split_whitespace().collect();
    let (from, to, weight, is_mutual) = match words[..] {
        [i, "->", j, weight] => (i, j, Some(line.weight(weight)?), false),
        [i, "->", j] => (i, j, None, false),
        [i, j] => (i, j, None, true),
        [i, j, weight] => (i, j, Some(line.weight(weight)?), true),
        _ => return line.refuse(FORMS),
    };
    let (from, to) = (line.worker(from, workers)?, line.worker(to, workers)?);
    if from == to {
        return line.refuse("a worker's own weight is what its edges leave; give edges only");
    }
    Ok((from, to, weight, is_mutual))
}

const FORMS: &str = "a line is `i j`, `i j weight`, `i -> j [weight]`, `matrix` or `---`";
