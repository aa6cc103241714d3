//! The codecs on one core, in GB/s of `f32` values, interleaved with memcpy, medians.
//!
//! `cargo bench -p quelea-core --bench codec -- [--json] [--elements N] [--rounds N]`
//!
//! A ratio of 1 reaches the goal; memcpy has none and shows what the machine was worth.

use std::hint::black_box;
use std::time::Instant;

use quelea_core::codec::{CODECS, Codec, CodecShape, VectorId};
use quelea_core::options::Options;
use quelea_core::random::Rng;
use quelea_core::vector;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // A bucket of 25 MiB.
    let elements = number(&arguments, "--elements").unwrap_or(6_553_600);
    let rounds = number(&arguments, "--rounds").unwrap_or(11);
    let json = arguments.iter().any(|argument| argument == "--json");
    if !json {
        println!("{elements} elements, one thread, median of {rounds} rounds");
        println!("codec               goal    GB/s  ratio");
    }
    vector::set_threads(1);
    for result in measure(elements, rounds) {
        println!("{}", if json { result.json() } else { result.line() });
    }
}

fn number(arguments: &[String], name: &str) -> Option<usize> {
    let place = arguments.iter().position(|argument| argument == name)?;
    let value = arguments.get(place + 1)?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} = {value}: must be a whole number")))
}

/// GB/s that a codec should reach.
fn goal(name: &str) -> f64 {
    if name == "top-k" { 0.3 } else { 1.0 }
}

/// One codec and the seconds that it took.
struct Runs {
    name: &'static str,
    codec: Box<dyn Codec>,
    encode: Vec<f64>,
    decode: Vec<f64>,
}

fn measure(elements: usize, rounds: usize) -> Vec<Measured> {
    let mut rng = Rng::new(1, "bench", 0);
    let values: Vec<f32> = (0..elements).map(|_| rng.normal() as f32 * 0.01).collect();
    let mut out = vec![0.0f32; elements];
    let mut memcpy = Vec::new();
    let mut codecs: Vec<Runs> =
        CODECS.iter().filter(|entry| entry.shape != CodecShape::LowRank).map(Runs::new).collect();
    // The first round touches all memory.
    for round in 0..=rounds {
        for runs in &mut codecs {
            let copied = seconds(|| out.copy_from_slice(black_box(&values)));
            let (encoded, decoded) = runs.time(round as u64, &values, &mut out);
            if round > 0 {
                memcpy.push(copied);
                runs.encode.push(encoded);
                runs.decode.push(decoded);
            }
        }
    }
    let measured = |name: String, goal, times| {
        let speed = (elements * size_of::<f32>()) as f64 / median(times) / 1e9;
        Measured { name, goal, speed }
    };
    let mut results = vec![measured("memcpy".to_string(), None, memcpy)];
    for runs in codecs {
        let goal = Some(goal(runs.name));
        results.push(measured(format!("{} encode", runs.name), goal, runs.encode));
        results.push(measured(format!("{} decode", runs.name), goal, runs.decode));
    }
    results
}

impl Runs {
    fn new(entry: &quelea_core::codec::Entry) -> Runs {
        let codec = (entry.build)(&Options::defaults(entry.meta.options), 1);
        Runs { name: entry.meta.name, codec, encode: Vec::new(), decode: Vec::new() }
    }

    fn time(&mut self, step: u64, values: &[f32], out: &mut [f32]) -> (f64, f64) {
        let mut bytes = vec![1; self.codec.bytes(values.len())];
        let at = VectorId { step, ..VectorId::default() };
        let encoded = seconds(|| {
            self.codec.encode(at, black_box(values), &mut bytes);
        });
        // Another length in between, so that nothing drawn for the encoder is at hand.
        self.codec.encode(at, &[0.0], &mut [0; 64]);
        let decoded = seconds(|| {
            self.codec.decode(at, black_box(&bytes), out).expect("just encoded");
        });
        (encoded, decoded)
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

struct Measured {
    name: String,
    goal: Option<f64>,
    /// GB/s.
    speed: f64,
}

impl Measured {
    fn line(&self) -> String {
        let (name, speed) = (&self.name, self.speed);
        match self.goal {
            Some(goal) => format!("{name:<18} {goal:>5.1} {speed:>7.2} {:>6.2}", speed / goal),
            None => format!("{name:<18} {:>5} {speed:>7.2}", "-"),
        }
    }

    fn json(&self) -> String {
        let (name, speed) = (&self.name, self.speed);
        match self.goal {
            Some(goal) => format!(
                r#"{{"name": "{name}", "goal": {goal:.1}, "GB/s": {speed:.4}, "ratio": {:.4}}}"#,
                speed / goal
            ),
            None => {
                format!(r#"{{"name": "{name}", "goal": null, "GB/s": {speed:.4}, "ratio": null}}"#)
            }
        }
    }
}
