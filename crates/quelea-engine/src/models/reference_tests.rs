//! Every model against PyTorch with the same weights; `reference/dump.py` wrote what is expected.

use serde_json::Value as Json;

use super::resnet::resnet;
use super::resnet_bottleneck::{ResNetStem, bottlenecks};
use super::vgg::vgg;
use super::*;
use crate::ops::loss::{NO_TARGET, score_with_gradient};
use crate::tape::PassMode;

/// Largest relative difference.
const TOLERANCE: f64 = 1e-4;

/// Numbers in [-1, 1): a function of the name and the place alone.
fn noise(name: &str, count: usize) -> impl Iterator<Item = f64> {
    let fold = |seed: u64, byte: u8| (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, fold);
    (0..count as u64).map(move |place| {
        let mut z = seed.wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 40) as f64 / (1 << 23) as f64 - 1.0
    })
}

fn weights(parameters: &Parameters) -> Vec<f32> {
    let mut params = Vec::new();
    for tensor in parameters.tensors() {
        let fan_in: usize = tensor.shape[1..].iter().product();
        let number = |x: f64| match (tensor.shape.len(), tensor.name.ends_with("weight")) {
            (1, true) => 1.0 + 0.2 * x,
            (1, false) => 0.1 * x,
            _ => x * (6.0 / fan_in as f64).sqrt(),
        };
        params.extend(noise(&tensor.name, tensor.len()).map(|x| number(x) as f32));
    }
    params
}

fn reference(name: &str) -> Json {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/reference");
    let text = std::fs::read_to_string(format!("{folder}/{name}.json")).expect("is committed");
    serde_json::from_str(&text).expect("is JSON")
}

fn numbers(json: &Json) -> Vec<f64> {
    json.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

/// Compares numbers of one tensor; errors are relative to their typical size.
fn compare(what: &str, ours: &[f32], theirs: &[f64]) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let size = (theirs.iter().map(|x| x * x).sum::<f64>() / theirs.len() as f64).sqrt();
    for (ours, theirs) in ours.iter().zip(theirs) {
        let error = (f64::from(*ours) - theirs).abs();
        assert!(error < TOLERANCE * (theirs.abs() + size), "{what}: {ours} is not {theirs}");
    }
}

struct Outcome {
    loss: f64,
    scores: Vec<f32>,
    grad: Vec<f32>,
}

fn check(name: &str, parameters: &Parameters, outcome: &Outcome) {
    let theirs = reference(name);
    compare("loss", &[outcome.loss as f32], &[theirs["loss"].as_f64().expect("a number")]);
    compare("scores", &outcome.scores, &numbers(&theirs["scores"]));
    let grads = theirs["grads"].as_object().expect("by name");
    assert_eq!(grads.len(), parameters.tensors().len());
    let norm = |tensor: &Json| tensor["norm"].as_f64().expect("a number");
    let largest = grads.values().map(norm).fold(0.0, f64::max);
    let mut start = 0;
    for tensor in parameters.tensors() {
        let ours = &outcome.grad[start..start + tensor.len()];
        start += tensor.len();
        let theirs = &grads[&tensor.name];
        let size = ours.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let error = (size - norm(theirs)).abs();
        // The gradient of a bias before a normalisation is 0: what is left is rounding.
        let floor = 1e-6 * largest;
        assert!(error < TOLERANCE * norm(theirs) + floor, "|{}|: {size} {theirs}", tensor.name);
        let typical = norm(theirs) / (tensor.len() as f64).sqrt();
        let places = numbers(&theirs["at"]);
        for (place, expected) in places.iter().zip(numbers(&theirs["values"])) {
            let given = f64::from(ours[*place as usize]);
            let allowed = TOLERANCE * (expected.abs() + typical) + floor;
            let name = &tensor.name;
            assert!((given - expected).abs() < allowed, "{name}: {given} is not {expected}");
        }
    }
}

fn images(shape: [usize; 4]) -> TapeValue {
    let numbers = noise("images", shape.iter().product());
    TapeValue::constant(numbers.map(|x| x as f32).collect(), &shape)
}

fn check_images(name: &str, model: &ImageModel, shape: [usize; 4]) {
    let (parameters, count) = (&model.parameters, shape[0]);
    let params = weights(parameters);
    let labels: Vec<u32> = (0..count as u32).map(|k| k % 10).collect();
    let mut grad = vec![0.0; params.len()];
    let mut tape = Tape::new(parameters, &params, PassMode::Train);
    let scores = model.network.scores(&mut tape, images(shape));
    let (scored, seed) = score_with_gradient(&scores, &labels, 0.0, count as f32);
    tape.backward(&scores, seed, &mut grad);
    let loss = scored.loss / count as f64;
    check(name, parameters, &Outcome { loss, scores: scores.values().to_vec(), grad });
    check_evaluation(name, model, &params, shape);
}

fn check_evaluation(name: &str, model: &ImageModel, params: &[f32], shape: [usize; 4]) {
    let theirs = reference(name);
    if model.parameters.statistics().is_empty() {
        return assert!(theirs.get("evaluated").is_none());
    }
    let mut tape = Tape::new(&model.parameters, params, PassMode::Calibrate);
    model.network.scores(&mut tape, images(shape));
    let statistics = tape.into_statistics();
    let first = format!("{}.running_var", model.parameters.statistics()[0].0);
    assert_eq!(theirs["variance"]["name"], first);
    compare("variance", &statistics.moments[0].1, &numbers(&theirs["variance"]["values"]));
    let tape = Tape::new(&model.parameters, params, PassMode::Evaluate);
    let mut tape = tape.with_statistics(&statistics);
    let scores = model.network.scores(&mut tape, images(shape));
    compare("evaluated", scores.values(), &numbers(&theirs["evaluated"]));
}

fn sized(channels: usize, side: usize) -> ImageSpec {
    ImageSpec { channels, height: side, width: side, classes: 10 }
}

#[test]
fn mlp_is_that_of_pytorch() {
    check_images("mlp", &mlp(sized(1, 8), &[16]), [5, 1, 8, 8]);
}

#[test]
fn cnn_is_that_of_pytorch() {
    check_images("cnn", &cnn(sized(1, 28)), [3, 1, 28, 28]);
}

#[test]
fn resnet20_is_that_of_pytorch() {
    check_images("resnet20", &resnet20(10), [4, 3, 16, 16]);
}

#[test]
fn resnet18_is_that_of_pytorch() {
    check_images("resnet18", &resnet(&[8, 16, 32, 64], 2, true, 10), [4, 3, 16, 16]);
}

#[test]
fn resnet50_is_that_of_pytorch() {
    check_images(
        "resnet50",
        &bottlenecks(ResNetStem::ImageNet, 8, &[1, 2, 1, 1], 10),
        [4, 3, 64, 64],
    );
}

#[test]
fn vgg16_is_that_of_pytorch() {
    let model = vgg(&[&[8], &[16, 16], &[16]], VggHead::Cifar, 10);
    check_images("vgg16", &model, [4, 3, 8, 8]);
}

fn check_transformer(name: &str, shared: bool) {
    let size = TransformerSize {
        vocabulary: 11,
        width: 16,
        layers: 2,
        heads: 2,
        inner: 32,
        dropout: 0.0,
        shared,
    };
    let (network, parameters) = Transformer::new(size);
    let params = weights(&parameters);
    let source = SentenceBatch::pad(&[&[3, 5, 2, 7, 1], &[4, 9, 10], &[6, 2]], 0);
    let target = SentenceBatch::pad(&[&[1, 4, 4, 8], &[1, 5], &[1, 7, 3]], 0);
    let goal = SentenceBatch::pad(&[&[4, 4, 8, 2], &[5, 2], &[7, 3, 2]], NO_TARGET);
    let mut grad = vec![0.0; params.len()];
    let mut tape = Tape::new(&parameters, &params, PassMode::Train);
    let memory = network.encode(&mut tape, &source);
    let scores = network.decode(&mut tape, &memory, &source, &target);
    let (scored, seed) = score_with_gradient(&scores, &goal.tokens, 0.1, 9.0);
    assert_eq!(scored.counted, 9);
    tape.backward(&scores, seed, &mut grad);
    let loss = scored.loss / 9.0;
    check(name, &parameters, &Outcome { loss, scores: scores.values().to_vec(), grad });
}

#[test]
fn transformer_is_that_of_pytorch() {
    check_transformer("transformer", true);
}

#[test]
fn transformer_with_separate_embeddings_is_that_of_pytorch() {
    check_transformer("transformer-apart", false);
}

#[test]
fn language_model_is_that_of_pytorch() {
    let size =
        LanguageSize { vocabulary: 13, context: 6, width: 16, layers: 2, heads: 2, dropout: 0.0 };
    let (network, parameters) = Language::new(size);
    let params = weights(&parameters);
    let tokens = [3, 5, 2, 7, 1, 4, 9, 10, 12, 0];
    let goal = [5, 2, 7, 1, 6, 9, 10, 12, 0, 3];
    let mut grad = vec![0.0; params.len()];
    let mut tape = Tape::new(&parameters, &params, PassMode::Train);
    let scores = network.scores(&mut tape, &tokens, 5);
    let (scored, seed) = score_with_gradient(&scores, &goal, 0.0, 10.0);
    tape.backward(&scores, seed, &mut grad);
    let loss = scored.loss / 10.0;
    check("language", &parameters, &Outcome { loss, scores: scores.values().to_vec(), grad });
}
