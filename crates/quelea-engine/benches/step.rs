//! Steps of networks: the bare forward and backward pass against PyTorch's, and what loading,
//! augmenting and the way to the flat gradient add to it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use quelea_core::layout::Layout;
use quelea_core::node::Loan;
use quelea_core::problems::Problem;
use quelea_data::augment::Augmentation;
use quelea_data::images::{ImageShape, InMemory, Split};
use quelea_engine::classify::Classify;
use quelea_engine::models::{self, ImageModel, ImageSpec};
use quelea_engine::ops::loss::score_with_gradient;
use quelea_engine::tape::{PassMode, Tape, TapeValue};
use quelea_engine::work::WorkOptions;

const BATCH: usize = 32;

struct Case {
    name: &'static str,
    shape: ImageShape,
    augmentation: Augmentation,
    model: fn(ImageSpec) -> ImageModel,
    /// Steps of one measurement.
    steps: u64,
}

const CASES: [Case; 3] = [
    Case {
        name: "digits-mlp",
        shape: ImageShape { channels: 1, height: 8, width: 8 },
        augmentation: Augmentation::NONE,
        model: |images| models::mlp(images, &[64]),
        steps: 500,
    },
    Case {
        name: "fashion-cnn",
        shape: ImageShape { channels: 1, height: 28, width: 28 },
        augmentation: Augmentation::NONE,
        model: models::cnn,
        steps: 20,
    },
    Case {
        name: "cifar10-resnet20",
        shape: ImageShape { channels: 3, height: 32, width: 32 },
        augmentation: Augmentation::CIFAR,
        model: |images| models::resnet20(images.classes),
        steps: 5,
    },
];

/// PyTorch, waiting for questions.
struct Torch {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Torch {
    /// Where `QUELEA_TORCH_PYTHON` names a Python that has it.
    fn start() -> Option<Torch> {
        let python = std::env::var("QUELEA_TORCH_PYTHON").ok()?;
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/torch_step.py");
        let mut process = Command::new(python)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("QUELEA_TORCH_PYTHON can be started");
        let input = process.stdin.take().expect("piped");
        let output = BufReader::new(process.stdout.take().expect("piped"));
        Some(Torch { process, input, output })
    }

    /// Milliseconds of a step.
    fn measure(&mut self, case: &Case) -> f64 {
        writeln!(self.input, "{} {}", case.name, case.steps).expect("it listens");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        line.trim().parse().unwrap_or_else(|_| panic!("PyTorch said {line:?}"))
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn model(case: &Case) -> ImageModel {
    let ImageShape { channels, height, width } = case.shape;
    (case.model)(ImageSpec { channels, height, width, classes: 10 })
}

fn data(shape: ImageShape) -> Split {
    let count = 1024;
    let pixels = (0..count * shape.len()).map(|k| ((k * 2_654_435_761) >> 11) as u8).collect();
    let classes = (0..10).map(|class| class.to_string()).collect();
    let labels = (0..count).map(|k| (k % 10) as u8).collect();
    let images = Arc::new(InMemory::new(shape, classes, labels, pixels));
    Split { train: images.clone(), test: images }
}

fn milliseconds(steps: u64, mut step: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    (0..steps).for_each(&mut step);
    start.elapsed().as_secs_f64() / steps as f64 * 1e3
}

/// Only the passes, on one batch that is there.
fn bare(case: &Case, params: &[f32], grad: &mut [f32]) -> f64 {
    let model = model(case);
    let ImageShape { channels, height, width } = case.shape;
    let numbers = (0..BATCH * case.shape.len()).map(|k| ((k * 7919) % 255) as f32 / 127.0 - 1.0);
    let images = TapeValue::constant(numbers.collect(), &[BATCH, channels, height, width]);
    let labels: Vec<u32> = (0..BATCH as u32).map(|k| k % 10).collect();
    milliseconds(case.steps, |_| {
        grad.fill(0.0);
        let mut tape = Tape::new(&model.parameters, params, PassMode::Train);
        let scores = model.network.scores(&mut tape, images.clone());
        let (_, seed) = score_with_gradient(&scores, &labels, 0.0, BATCH as f32);
        tape.backward(&scores, seed, grad);
    })
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let is_test = std::env::args().any(|word| word == "--test");
    let json = std::env::args().any(|word| word == "--json");
    let mut torch = if is_test { None } else { Torch::start() };
    let asked: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let is_asked = |case: &&Case| asked.is_empty() || asked.iter().any(|name| name == case.name);
    for case in CASES.iter().filter(is_asked) {
        let options = WorkOptions { batch: BATCH, ..WorkOptions::default() };
        let problem = Classify::new(model(case), data(case.shape), case.augmentation, &options);
        let problem = problem.expect("a good problem");
        let (params, mut source) = (problem.initial(), problem.source(0));
        let mut grad = vec![0.0; params.len()];
        let layout = Arc::new(Layout::plain(params.len(), 0));
        let mut loan = Some(Loan::detached(params.clone(), layout, 0));
        let (mut bares, mut wholes, mut peers) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = 0;
        for run in 0..if is_test { 1 } else { 16 } {
            let steps = if is_test { 1 } else { case.steps };
            let bare = bare(&Case { steps, ..*case }, &params, &mut grad);
            let whole = milliseconds(steps, |step| {
                let mut lent = loan.take().expect("put back below").renewed(next + step);
                source.gradient(&mut lent, &mut |_| {});
                loan = Some(lent);
            });
            next += steps;
            let peer = torch.as_mut().map(|torch| torch.measure(case));
            // The first one only fills caches.
            if run > 0 || is_test {
                bares.push(bare);
                wholes.push(whole);
                peers.extend(peer);
            }
        }
        report(case, json, [&mut bares, &mut wholes, &mut peers]);
    }
}

fn report(case: &Case, json: bool, [bares, wholes, peers]: [&mut Vec<f64>; 3]) {
    let (bare, whole) = (median(bares), median(wholes));
    let peer = (!peers.is_empty()).then(|| median(peers));
    let (name, overhead) = (case.name, whole / bare);
    if json {
        if let Some(peer) = peer {
            let ratio = peer / bare;
            println!(
                "{{\"name\": \"{name}, against PyTorch\", \"ratio\": {ratio:.3}, \
                 \"ms\": {bare:.3}, \"torch ms\": {peer:.3}}}"
            );
        }
        println!(
            "{{\"name\": \"{name}, whole step / bare\", \"ratio\": {overhead:.3}, \
             \"goal\": 1.05, \"ms\": {whole:.3}, \"bare ms\": {bare:.3}}}"
        );
    } else {
        let peer = peer.map(|peer| format!("; PyTorch {peer:.3} ms"));
        let peer = peer.unwrap_or_default();
        println!("{name}, batch {BATCH}: {bare:.3} ms bare, {whole:.3} ms with data{peer}");
    }
}
