//! The vector kernels against memcpy over the same number of bytes, interleaved, medians.
//!
//! `cargo bench -p quelea-core --bench vector -- [--json] [--elements N] [--rounds N]`
//!
//! Bytes are those read and written. A ratio of 1 is the speed of memcpy on one core, 0.8 means
//! that the kernel takes 1.25 times as long for the bytes it moves.

use std::hint::black_box;
use std::time::Instant;

use quelea_core::optim::{self, At, Optimizer};
use quelea_core::options::Value;
use quelea_core::vector;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let elements = number(&arguments, "--elements").unwrap_or(25_000_000);
    let rounds = number(&arguments, "--rounds").unwrap_or(11);
    let json = arguments.iter().any(|argument| argument == "--json");
    if !json {
        println!("{elements} elements, median of {rounds} rounds");
        println!("kernel            threads      bytes    seconds     memcpy  ratio");
    }
    for result in measure(elements, rounds) {
        println!("{}", if json { result.json() } else { result.line() });
    }
}

fn number(arguments: &[String], name: &str) -> Option<usize> {
    let place = arguments.iter().position(|argument| argument == name)?;
    let value = arguments.get(place + 1)?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} = {value}: must be a whole number")))
}

/// A kernel, how many vectors it reads and writes in all, and how it is called.
struct Kernel {
    name: &'static str,
    vectors: usize,
    run: Box<dyn FnMut(&mut Vectors)>,
}

struct Vectors {
    y: Vec<f32>,
    x: Vec<Vec<f32>>,
}

fn kernels(elements: usize) -> Vec<Kernel> {
    let kernel = |name, vectors, run| Kernel { name, vectors, run };
    let mut plain = optimizer("sgd", elements, &[]);
    let mut momentum = optimizer("sgd", elements, &[("momentum", 0.9)]);
    let mut adam = optimizer("adam", elements, &[]);
    let mut accumulating = optimizer("accum-adam", elements, &[]);
    vec![
        kernel("axpy", 3, Box::new(|v| vector::axpy(0.5, &v.x[0], &mut v.y))),
        kernel("lerp", 3, Box::new(|v| vector::lerp(0.5, &v.x[0], &mut v.y))),
        kernel("mix-3", 4, Box::new(|v| mix(v, 2))),
        kernel("mix-5", 6, Box::new(|v| mix(v, 4))),
        kernel("add", 3, Box::new(|v| vector::add(&v.x[0], &mut v.y))),
        kernel("add-difference", 4, Box::new(add_difference)),
        kernel("scale", 2, Box::new(|v| vector::scale(0.999, &mut v.y))),
        kernel("scaled", 2, Box::new(|v| vector::scaled(0.5, &v.x[0], &mut v.y))),
        kernel("sum-into", 3, Box::new(|v| vector::sum_into(&v.x[0], &v.x[1], &mut v.y))),
        kernel(
            "dot",
            2,
            Box::new(|v| {
                black_box(vector::dot(&v.x[0], &v.y));
            }),
        ),
        kernel(
            "norm",
            1,
            Box::new(|v| {
                black_box(vector::norm(&v.y));
            }),
        ),
        kernel("sgd", 3, Box::new(move |v| apply(&mut *plain, v))),
        kernel("sgd-momentum", 5, Box::new(move |v| apply(&mut *momentum, v))),
        kernel("adam", 7, Box::new(move |v| apply(&mut *adam, v))),
        // Three steps of four only read the moments.
        kernel("accum-adam", 7, Box::new(move |v| apply(&mut *accumulating, v))),
    ]
}

fn mix(v: &mut Vectors, terms: usize) {
    let weight = 1.0 / (terms + 1) as f32;
    let terms: Vec<(f32, &[f32])> = v.x[..terms].iter().map(|x| (weight, &x[..])).collect();
    vector::mix(weight, terms.len() / 2, &mut v.y, &terms);
}

fn add_difference(v: &mut Vectors) {
    vector::add_difference(0.5, &v.x[0], &v.x[1], &mut v.y);
}

fn optimizer(name: &str, elements: usize, given: &[(&str, f64)]) -> Box<dyn Optimizer> {
    let entry = optim::find(name).expect("in the table");
    let given = given.iter().map(|(key, value)| (key.to_string(), Value::Number(*value)));
    (entry.build)(&entry.params(given).expect("good parameters"), elements)
}

fn apply(optimizer: &mut dyn Optimizer, v: &mut Vectors) {
    let at = At { step: 0, learning_rate: 0.1 };
    optimizer.apply(at, 0..v.y.len(), &mut v.y, &mut v.x[0]);
}

struct Measured {
    name: &'static str,
    threads: usize,
    bytes: usize,
    seconds: f64,
    memcpy_seconds: f64,
}

/// Within a round every kernel follows a memcpy, so that both see the same state of the machine.
fn measure(elements: usize, rounds: usize) -> Vec<Measured> {
    let mut vectors = Vectors { y: vec![1.0; elements], x: vec![vec![0.5; elements]; 4] };
    let mut copy = vec![0.0; elements];
    let mut kernels = kernels(elements);
    let all = vector::threads();
    let variants: Vec<(usize, usize)> = (0..kernels.len())
        .flat_map(|kernel| (1..=all).step_by((all - 1).max(1)).map(move |n| (kernel, n)))
        .collect();
    let mut times = vec![Vec::new(); variants.len()];
    for round in 0..=rounds {
        for ((kernel, threads), times) in variants.iter().zip(&mut times) {
            let memcpy = seconds(|| copy.copy_from_slice(black_box(&vectors.x[0])));
            vector::set_threads(*threads);
            let run = &mut kernels[*kernel].run;
            let kernel = seconds(|| run(black_box(&mut vectors)));
            // The first round touches all memory.
            if round > 0 {
                times.push((kernel, memcpy));
            }
        }
    }
    vector::set_threads(0);
    let results = variants.into_iter().zip(times).map(|((kernel, threads), times)| {
        let (kernel, (own, memcpy)): (_, (Vec<f64>, Vec<f64>)) =
            (&kernels[kernel], times.into_iter().unzip());
        let memcpy_seconds = median(memcpy) * kernel.vectors as f64 / 2.0;
        let bytes = kernel.vectors * elements * size_of::<f32>();
        Measured { name: kernel.name, threads, bytes, seconds: median(own), memcpy_seconds }
    });
    results.collect()
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

impl Measured {
    fn ratio(&self) -> f64 {
        self.memcpy_seconds / self.seconds
    }

    fn line(&self) -> String {
        format!(
            "{:<17} {:>7} {:>10} {:>10.6} {:>10.6} {:>6.2}",
            self.name,
            self.threads,
            self.bytes,
            self.seconds,
            self.memcpy_seconds,
            self.ratio()
        )
    }

    fn json(&self) -> String {
        format!(
            r#"{{"name":"{}","goal":0.8,"threads":{},"bytes":{},"seconds":{:e},"memcpy_seconds":{:e},"ratio":{:.4}}}"#,
            self.name,
            self.threads,
            self.bytes,
            self.seconds,
            self.memcpy_seconds,
            self.ratio()
        )
    }
}
