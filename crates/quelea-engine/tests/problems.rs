//! Problems as drivers see them: gradients, evaluations, and training that helps.

use std::sync::Arc;

use quelea_core::problems::{Problem, gradient_at};
use quelea_data::augment::Augmentation;
use quelea_data::images::{ImageShape, InMemory, Split, digits};
use quelea_data::text::{Corpus, PlainText, SentencePairs, Vocabulary};
use quelea_engine::classify::Classify;
use quelea_engine::language::NextByte;
use quelea_engine::models::{self, ImageSpec, LanguageSize, TransformerSize};
use quelea_engine::translate::{Translate, TranslateOptions, Translations};
use quelea_engine::work::WorkOptions;

const DIGITS: ImageSpec = ImageSpec { channels: 1, height: 8, width: 8, classes: 10 };

fn mlp(options: &WorkOptions) -> Classify {
    let model = models::mlp(DIGITS, &[32]);
    Classify::new(model, digits(), Augmentation::NONE, options).expect("good options")
}

fn colours() -> Split {
    let shape = ImageShape { channels: 3, height: 8, width: 8 };
    let images = |count: usize, first: usize| {
        let pixel = |k: usize| (((first + k) * 2_654_435_761) >> 7) as u8;
        let pixels = (0..count * shape.len()).map(pixel).collect();
        let classes = vec!["a".to_string(), "b".to_string()];
        let labels = (0..count).map(|k| (k % 2) as u8).collect();
        Arc::new(InMemory::new(shape, classes, labels, pixels))
    };
    Split { train: images(200, 0), test: images(50, 999_999) }
}

fn resnet(options: &WorkOptions) -> Classify {
    let model = models::resnet20(2);
    Classify::new(model, colours(), Augmentation::NONE, options).expect("good options")
}

fn language(options: &WorkOptions) -> NextByte {
    let text: Vec<u8> = "the cat sat on the mat and the dog sat on the log. ".repeat(40).into();
    let (train, validation) = text.split_at(text.len() / 10 * 9);
    let text = PlainText { train: train.into(), validation: validation.into() };
    let size =
        LanguageSize { vocabulary: 256, context: 16, width: 16, layers: 1, heads: 2, dropout: 0.1 };
    NextByte::new(size, text, options).expect("good options")
}

fn translate(options: &WorkOptions) -> Translate {
    let words = ["red", "green", "blue", "big", "small", "house", "dog"];
    let word = |k: usize, place: usize| words[(k * (2 * place + 3) / 5 + place) % 7];
    let sentence = |k| (0..5).map(|place| word(k, place)).collect::<Vec<_>>().join(" ");
    let sources: Vec<String> = (0..300).map(sentence).collect();
    let targets: Vec<String> = sources.iter().map(|source| source.to_uppercase()).collect();
    let vocabulary = Vocabulary::train(sources.iter().chain(&targets).map(String::as_str), 300);
    let pairs = SentencePairs { sources, targets };
    let test =
        SentencePairs { sources: pairs.sources[..20].into(), targets: pairs.targets[..20].into() };
    let size = TransformerSize {
        vocabulary: vocabulary.size(),
        width: 32,
        layers: 1,
        heads: 2,
        inner: 64,
        dropout: 0.0,
        shared: true,
    };
    let data = Translations { train: Corpus::new(&pairs, &vocabulary, 16), test, vocabulary };
    let how = TranslateOptions { smoothing: 0.1, length_max: 16, bleu: 8 };
    Translate::new(size, data, how, options).expect("good options")
}

fn gradient(problem: &dyn Problem, rank: usize, step: u64, params: &[f32]) -> (f32, Vec<f32>) {
    let (computed, grad) = gradient_at(&mut *problem.source(rank), step, params);
    (computed.loss, grad)
}

/// Plain gradient descent with all workers' gradients averaged.
fn train(problem: &dyn Problem, workers: usize, steps: u64, rate: f32) -> Vec<f32> {
    let mut params = problem.initial();
    let mut sources: Vec<_> = (0..workers).map(|rank| problem.source(rank)).collect();
    for step in 0..steps {
        let at = params.clone();
        for source in &mut sources {
            let (_, grad) = gradient_at(&mut **source, step, &at);
            let part = rate / workers as f32;
            params.iter_mut().zip(&grad).for_each(|(x, g)| *x -= part * g);
        }
    }
    params
}

/// A gradient is a function of rank, step and parameters alone, whatever the source did before.
fn check_purity(problem: &dyn Problem) {
    let params = problem.initial();
    assert_eq!(params.len(), problem.dimensions());
    assert_eq!(problem.tensors().iter().map(|tensor| tensor.len()).sum::<usize>(), params.len());
    let mut source = problem.source(1);
    for step in [0, 1, 2, 7, 1] {
        let (computed, grad) = gradient_at(&mut *source, step, &params);
        let loss = computed.loss;
        assert_eq!((loss, grad.clone()), gradient(problem, 1, step, &params), "step {step}");
        assert!(grad.iter().all(|x| x.is_finite()) && loss.is_finite());
    }
    assert_ne!(gradient(problem, 0, 0, &params).1, gradient(problem, 1, 0, &params).1);
    assert_ne!(gradient(problem, 0, 0, &params).1, gradient(problem, 0, 1, &params).1);
    assert_eq!(problem.evaluate(&params), problem.evaluate(&params));
}

#[test]
fn gradients_and_evaluations_are_functions_of_their_arguments() {
    let options = WorkOptions { workers: 2, batch: 8, ..WorkOptions::default() };
    check_purity(&mlp(&options));
    check_purity(&resnet(&options));
    check_purity(&language(&options));
    check_purity(&translate(&options));
}

#[test]
fn digits_are_learnt() {
    let problem = mlp(&WorkOptions { workers: 4, batch: 16, seed: 1, ..WorkOptions::default() });
    let before = problem.evaluate(&problem.initial());
    let after = problem.evaluate(&train(&problem, 4, 150, 0.2));
    let (before, after) = (before.accuracy().expect("some"), after.accuracy().expect("some"));
    assert!(before < 0.3 && after > 0.9, "{before} {after}");
}

#[test]
fn text_is_learnt() {
    let problem = language(&WorkOptions { workers: 2, batch: 4, ..WorkOptions::default() });
    let before = problem.evaluate(&problem.initial()).loss;
    let after = problem.evaluate(&train(&problem, 2, 200, 0.5)).loss;
    // Nothing is known: ln 256. The text is mostly one of a dozen letters.
    assert!((before - 5.55).abs() < 0.1 && after < 2.5, "{before} {after}");
}

#[test]
fn translation_is_learnt() {
    let problem = translate(&WorkOptions { workers: 1, batch: 16, ..WorkOptions::default() });
    let before = problem.evaluate(&problem.initial());
    let after = problem.evaluate(&train(&problem, 1, 300, 0.3));
    assert!(after.loss < 0.6 * before.loss, "{before:?} {after:?}");
    let (before, after) =
        (before.metric("bleu").expect("some"), after.metric("bleu").expect("some"));
    assert!(before < 5.0 && after > 20.0, "{before} {after}");
}

#[test]
fn accumulated_mini_batches_are_one_large_one() {
    let small = WorkOptions { batch: 8, accumulate: 4, ..WorkOptions::default() };
    let large = WorkOptions { batch: 32, ..WorkOptions::default() };
    let (small, large) = (mlp(&small), mlp(&large));
    let params = small.initial();
    assert_eq!(params, large.initial());
    assert_eq!((small.samples(), large.samples()), (vec![32], vec![32]));
    assert_eq!(small.steps_per_epoch(), large.steps_per_epoch());
    for step in [0, 3] {
        let (loss, grad) = gradient(&small, 0, step, &params);
        let (expected, sum) = gradient(&large, 0, step, &params);
        assert!((loss - expected).abs() < 1e-5);
        assert!(grad.iter().zip(&sum).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}

#[test]
fn statistics_are_named_and_measured_from_the_parameters() {
    let problem = resnet(&WorkOptions { batch: 8, ..WorkOptions::default() });
    let params = problem.initial();
    let buffers = problem.buffers(&params);
    assert_eq!(buffers.len(), 2 * 19);
    assert_eq!(buffers[0].0.name, "bn1.running_mean");
    assert_eq!(buffers[1].0.name, "bn1.running_var");
    assert!(buffers.iter().all(|(tensor, values)| tensor.len() == values.len()));
    assert!(buffers[1].1.iter().all(|variance| *variance > 0.0));
    assert_eq!(buffers, problem.buffers(&params));
    let larger: Vec<f32> = params.iter().map(|x| 2.0 * x).collect();
    assert_ne!(buffers, problem.buffers(&larger));
    assert!(
        mlp(&WorkOptions::default()).buffers(&mlp(&WorkOptions::default()).initial()).is_empty()
    );
}
