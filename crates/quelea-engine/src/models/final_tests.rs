//! What a backward pass reports as final is final, for every model.

use super::resnet::resnet;
use super::resnet_bottleneck::{ResNetStem, bottlenecks};
use super::vgg::vgg;
use super::*;
use crate::flat::Watched;
use crate::ops::loss::score_with_gradient;
use crate::tape::PassMode;

/// Plays the model's pass back plainly and with reports, whose number it returns: each report's
/// elements must be those of the end, bit for bit, and each must add some.
fn reports(parameters: &Parameters, scores: impl Fn(&mut Tape<'_>) -> TapeValue) -> usize {
    let params = parameters.initial(3);
    let pass = || {
        let mut tape = Tape::new(parameters, &params, PassMode::Train);
        let scores = scores(&mut tape);
        let rows = scores.shape()[0];
        let targets: Vec<u32> = (0..rows as u32).map(|row| row % 5).collect();
        let (_, seed) = score_with_gradient(&scores, &targets, 0.0, rows as f32);
        (tape, scores, seed)
    };
    let mut plain = vec![0.0; params.len()];
    let (tape, root, seed) = pass();
    tape.backward(&root, seed, &mut plain);

    let mut watched = Watched::new(&params);
    let (tape, root, seed) = pass();
    tape.finish().backward(parameters, &mut watched, &root, seed);
    let Watched { grad, seen, .. } = watched;

    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    assert_eq!(bits(&grad), bits(&plain), "reports change nothing");
    assert!(plain.iter().any(|x| *x != 0.0));
    assert!(seen.is_sorted_by(|before, after| before.len() < after.len()), "ever more");
    assert_eq!(seen.last().map(Vec::len), Some(params.len()), "all at the end");
    for part in &seen {
        assert_eq!(bits(part), bits(&grad[..part.len()]), "the first {}", part.len());
    }
    seen.len()
}

fn image_reports(model: &ImageModel, shape: [usize; 4]) -> usize {
    let count = shape.iter().product();
    let numbers: Vec<f32> = (0..count).map(|k| ((k * 7919) % 255) as f32 / 127.0 - 1.0).collect();
    let images = TapeValue::constant(numbers, &shape);
    reports(&model.parameters, |tape| model.network.scores(tape, images.clone()))
}

/// One report for each layer with parameters: nothing waits for a layer further back.
#[test]
fn image_models_report_layer_by_layer() {
    let grey = ImageSpec { channels: 1, height: 8, width: 8, classes: 10 };
    assert_eq!(image_reports(&mlp(grey, &[16, 16]), [4, 1, 8, 8]), 3);
    assert_eq!(image_reports(&cnn(grey), [3, 1, 8, 8]), 4);
    // 19 convolutions, each with its normalisation, and the output.
    assert_eq!(image_reports(&resnet20(10), [2, 3, 16, 16]), 39);
    assert_eq!(image_reports(&vgg(&[&[8], &[16]], VggHead::Cifar, 10), [2, 3, 4, 4]), 5);
}

/// As above; 20 convolutions in both, projections included.
#[test]
fn residual_models_with_projections_report_layer_by_layer() {
    let basic = resnet(&[8, 16, 32, 64], 2, true, 10);
    assert_eq!(image_reports(&basic, [2, 3, 16, 16]), 41);
    let bottleneck = bottlenecks(ResNetStem::ImageNet, 8, &[1, 2, 1, 1], 10);
    assert_eq!(image_reports(&bottleneck, [2, 3, 64, 64]), 41);
}

#[test]
fn transformers_report_many_times_with_shared_and_separate_embeddings() {
    for shared in [true, false] {
        let size = TransformerSize {
            vocabulary: 11,
            width: 16,
            layers: 2,
            heads: 2,
            inner: 32,
            dropout: 0.1,
            shared,
        };
        let (network, parameters) = Transformer::new(size);
        let source = SentenceBatch::pad(&[&[3, 5, 2, 7, 1], &[4, 9, 10], &[6, 2]], 0);
        let target = SentenceBatch::pad(&[&[1, 4, 4, 8], &[1, 5], &[1, 7, 3]], 0);
        let count = reports(&parameters, |tape| {
            let memory = network.encode(tape, &source);
            network.decode(tape, &memory, &source, &target)
        });
        assert!(count > 20, "{count}");
    }
}

/// The output's map is the first layer's embedding: it is final only when that was played back.
#[test]
fn language_model_reports_its_shared_embedding_last() {
    let size =
        LanguageSize { vocabulary: 13, context: 6, width: 16, layers: 2, heads: 2, dropout: 0.1 };
    let (network, parameters) = Language::new(size);
    let tokens = [3, 5, 2, 7, 1, 4, 9, 10, 12, 0];
    let count = reports(&parameters, |tape| network.scores(tape, &tokens, 5));
    assert!(count > 10, "{count}");
}
