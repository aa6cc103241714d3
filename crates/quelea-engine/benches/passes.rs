//! Forward and backward passes of every model and of single convolutions, without data.
//!
//! `--dump FOLDER` writes one gradient of each as raw numbers instead, so that two versions of the
//! engine can be compared.

use std::path::Path;

use quelea_engine::models::{self, ImageModel, ImageSpec, Language, LanguageSize};
use quelea_engine::models::{SentenceBatch, SequenceModel, Transformer, TransformerSize};
use quelea_engine::ops::Conv;
use quelea_engine::ops::loss::score_with_gradient;
use quelea_engine::parameters::{Builder, Parameters};
use quelea_engine::tape::{PassMode, Tape, TapeValue};

/// Plays one pass back and adds its gradient.
type Pass = Box<dyn Fn(Tape<'_>, &mut [f32])>;

/// A network with an input: what one step computes.
struct Case {
    name: String,
    parameters: Parameters,
    pass: Pass,
    /// Steps of one measurement.
    steps: u32,
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|k| ((k * 7919) % 255) as f32 / 127.0 - 1.0).collect()
}

fn image_case(name: &str, model: ImageModel, shape: [usize; 4], steps: u32) -> Case {
    let ImageModel { network, parameters } = model;
    let images = TapeValue::constant(numbers(shape.iter().product()), &shape);
    let labels: Vec<u32> = (0..shape[0] as u32).map(|k| k % 10).collect();
    let pass = move |mut tape: Tape<'_>, grad: &mut [f32]| {
        let scores = network.scores(&mut tape, images.clone());
        let (_, seed) = score_with_gradient(&scores, &labels, 0.0, labels.len() as f32);
        tape.backward(&scores, seed, grad);
    };
    Case { name: name.into(), parameters, pass: Box::new(pass), steps }
}

fn tokens(count: usize, vocabulary: u32) -> Vec<u32> {
    (0..count as u32).map(|k| (k * 7919 + k / 7) % vocabulary).collect()
}

fn language_case() -> Case {
    let size = LanguageSize {
        vocabulary: 256,
        context: 128,
        width: 128,
        layers: 4,
        heads: 4,
        dropout: 0.1,
    };
    let (network, parameters) = Language::new(size);
    let (given, goal) = (tokens(8 * 128, 256), tokens(8 * 128 + 1, 256)[1..].to_vec());
    let pass = move |mut tape: Tape<'_>, grad: &mut [f32]| {
        let scores = network.scores(&mut tape, &given, 128);
        let (_, seed) = score_with_gradient(&scores, &goal, 0.0, goal.len() as f32);
        tape.backward(&scores, seed, grad);
    };
    Case { name: "language".into(), parameters, pass: Box::new(pass), steps: 5 }
}

fn transformer_case() -> Case {
    let size = TransformerSize {
        vocabulary: 1000,
        width: 128,
        layers: 2,
        heads: 4,
        inner: 512,
        dropout: 0.1,
        shared: true,
    };
    let (network, parameters) = Transformer::new(size);
    let (length, batch) = (24, 16);
    let words = tokens(length * batch, 1000);
    let sentences: Vec<&[u32]> =
        words.chunks(length).enumerate().map(|(k, all)| &all[..length - k % 5]).collect();
    let source = SentenceBatch::pad(&sentences, 0);
    let target = SentenceBatch { tokens: tokens(20 * batch, 1000), lengths: vec![20; batch] };
    let goal = tokens(20 * batch, 999);
    let pass = move |mut tape: Tape<'_>, grad: &mut [f32]| {
        let memory = network.encode(&mut tape, &source);
        let scores = network.decode(&mut tape, &memory, &source, &target);
        let (_, seed) = score_with_gradient(&scores, &goal, 0.1, goal.len() as f32);
        tape.backward(&scores, seed, grad);
    };
    Case { name: "transformer".into(), parameters, pass: Box::new(pass), steps: 10 }
}

/// One convolution from `shape` to so many outputs, with the gradient of its images.
fn conv_case(shape: [usize; 4], outputs: usize, size: usize, stride: usize, steps: u32) -> Case {
    let mut builder = Builder::default();
    let conv = Conv::new(&mut builder, shape[1], outputs, size).stride(stride);
    let parameters = builder.finish();
    let places = shape[2].div_ceil(stride) * shape[3].div_ceil(stride);
    let [x, seed] =
        [shape[1..].iter().product(), outputs * places].map(|each| numbers(shape[0] * each));
    let pass = move |mut tape: Tape<'_>, grad: &mut [f32]| {
        let x = tape.variable(x.clone(), &shape);
        let y = tape.conv(&x, &conv);
        tape.backward(&y, seed.clone(), grad);
    };
    let [images, channels, height, width] = shape;
    let name =
        format!("conv {size}x{size}/{stride} {channels}-{outputs} {images}x{height}x{width}");
    Case { name, parameters, pass: Box::new(pass), steps }
}

fn cases() -> Vec<Case> {
    let images = |channels, side| ImageSpec { channels, height: side, width: side, classes: 10 };
    vec![
        image_case("digits-mlp", models::mlp(images(1, 8), &[64]), [32, 1, 8, 8], 500),
        image_case("fashion-cnn", models::cnn(images(1, 28)), [32, 1, 28, 28], 10),
        image_case("cifar10-resnet20", models::resnet20(10), [32, 3, 32, 32], 2),
        image_case("cifar10-resnet18", models::resnet18(10), [4, 3, 32, 32], 1),
        image_case(
            "imagenet-resnet50",
            models::resnet50(models::ResNetStem::ImageNet, 10),
            [2, 3, 64, 64],
            1,
        ),
        image_case("cifar10-vgg16", models::vgg16(models::VggHead::Cifar, 10), [4, 3, 32, 32], 1),
        transformer_case(),
        language_case(),
        conv_case([32, 16, 32, 32], 16, 3, 1, 10),
        conv_case([32, 32, 16, 16], 32, 3, 1, 10),
        conv_case([32, 64, 8, 8], 64, 3, 1, 10),
        conv_case([16, 64, 32, 32], 64, 3, 1, 2),
        conv_case([16, 128, 16, 16], 128, 3, 1, 2),
        conv_case([16, 256, 8, 8], 256, 3, 1, 2),
        conv_case([16, 512, 4, 4], 512, 3, 1, 2),
        conv_case([2, 64, 56, 56], 64, 3, 1, 2),
        conv_case([2, 128, 28, 28], 128, 3, 1, 2),
        conv_case([2, 256, 14, 14], 256, 3, 1, 2),
        conv_case([2, 512, 7, 7], 512, 3, 1, 2),
        conv_case([32, 16, 32, 32], 32, 3, 2, 10),
        conv_case([32, 32, 16, 16], 64, 3, 2, 10),
        conv_case([16, 64, 32, 32], 128, 3, 2, 2),
        conv_case([16, 128, 16, 16], 256, 3, 2, 2),
        conv_case([16, 256, 8, 8], 512, 3, 2, 2),
        conv_case([16, 64, 32, 32], 128, 1, 2, 5),
        conv_case([16, 256, 8, 8], 512, 1, 2, 5),
        conv_case([2, 3, 224, 224], 64, 7, 2, 2),
        conv_case([2, 128, 56, 56], 128, 3, 2, 2),
        conv_case([2, 256, 28, 28], 256, 3, 2, 2),
        conv_case([2, 512, 14, 14], 512, 3, 2, 2),
        conv_case([2, 256, 56, 56], 512, 1, 2, 2),
        conv_case([2, 1024, 14, 14], 2048, 1, 2, 2),
    ]
}

/// Processor time of all threads so far: on a shared machine it says more than the time of day.
fn cpu_seconds() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux");
    let nanoseconds = threads.map(|thread| {
        let path = thread.expect("can be listed").path().join("schedstat");
        let text = std::fs::read_to_string(path).expect("threads stay");
        text.split(' ').next().and_then(|word| word.parse::<f64>().ok()).expect("a number")
    });
    nanoseconds.sum::<f64>() / 1e9
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let after = |flag: &str| words.iter().skip_while(|word| *word != flag).nth(1);
    let (dump, rounds) = (after("--dump"), after("--rounds").map_or(9, |n| n.parse().expect("n")));
    let only = after("--only");
    let is_test = words.iter().any(|word| word == "--test");
    for case in cases() {
        if only.is_some_and(|only| !case.name.contains(only.as_str())) {
            continue;
        }
        let params = case.parameters.initial(1);
        let mut grad = vec![0.0; params.len()];
        let mut step = || {
            grad.fill(0.0);
            (case.pass)(Tape::new(&case.parameters, &params, PassMode::Train), &mut grad);
        };
        step();
        if is_test {
            continue;
        }
        if let Some(folder) = dump {
            let bytes: Vec<u8> = grad.iter().flat_map(|x| x.to_le_bytes()).collect();
            let file = case.name.replace(['/', ' '], "_");
            std::fs::write(Path::new(folder).join(file), bytes).expect("the folder is there");
            continue;
        }
        let mut times: Vec<f64> = (0..rounds)
            .map(|_| {
                let start = cpu_seconds();
                (0..case.steps).for_each(|_| step());
                (cpu_seconds() - start) * 1e3 / f64::from(case.steps)
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("{}: {:.3} ms (least {:.3})", case.name, times[times.len() / 2], times[0]);
    }
}
