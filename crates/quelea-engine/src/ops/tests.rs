//! Gradients of every operation against numerical differentiation.

use quelea_core::random::Rng;

use super::loss::{NO_TARGET, score, score_with_gradient};
use super::*;
use crate::parameters::{Builder, Init, Parameters};
use crate::tape::{PassMode, Tape, TapeValue};

const SOME: Init = Init::Normal { deviation: 0.5 };

fn random(len: usize, stream: u64) -> Vec<f32> {
    let mut rng = Rng::new(5, "numbers", stream);
    (0..len).map(|_| rng.normal() as f32).collect()
}

/// A function of inputs and parameters, made a number by weighing its results.
struct Check<F> {
    parameters: Parameters,
    params: Vec<f32>,
    inputs: Vec<(Vec<f32>, Vec<usize>)>,
    function: F,
}

impl<F: Fn(&mut Tape<'_>, &[TapeValue]) -> TapeValue> Check<F> {
    fn new(builder: Builder, shapes: &[&[usize]], function: F) -> Check<F> {
        let parameters = builder.finish();
        // Not the start of a network: zeros and ones would hide errors.
        let params = random(parameters.len(), 1).iter().map(|x| 0.5 * x + 0.1).collect();
        let inputs = shapes.iter().enumerate().map(|(index, shape)| {
            let values = random(shape.iter().product(), 2 + index as u64).into_iter();
            // No two are so near to each other, nor to 0, that a step could exchange them.
            let apart = values.zip(1..).map(|(x, k)| (4.0 * x).round() / 4.0 + 0.003 * k as f32);
            (apart.collect(), shape.to_vec())
        });
        Check { parameters, params, inputs: inputs.collect(), function }
    }

    fn value(&self, params: &[f32], inputs: &[(Vec<f32>, Vec<usize>)]) -> f64 {
        let mut tape = Tape::new(&self.parameters, params, PassMode::Train);
        let inputs: Vec<TapeValue> =
            inputs.iter().map(|(values, shape)| tape.variable(values.clone(), shape)).collect();
        let output = (self.function)(&mut tape, &inputs);
        let weights = random(output.values().len(), 99);
        output.values().iter().zip(weights).map(|(y, w)| f64::from(*y) * f64::from(w)).sum()
    }

    /// Compares every partial derivative.
    fn run(self) {
        let mut grad = vec![0.0; self.params.len()];
        let mut tape = Tape::new(&self.parameters, &self.params, PassMode::Train);
        let inputs: Vec<TapeValue> = (self.inputs.iter())
            .map(|(values, shape)| tape.variable(values.clone(), shape))
            .collect();
        let output = (self.function)(&mut tape, &inputs);
        let seed = random(output.values().len(), 99);
        let asked: Vec<&TapeValue> = inputs.iter().collect();
        let input_grads = tape.backward_to(&output, seed, &mut grad, &asked);

        let step = 1e-3;
        for index in 0..self.params.len() {
            let at = |delta: f32| {
                let mut params = self.params.clone();
                params[index] += delta;
                self.value(&params, &self.inputs)
            };
            close(grad[index], (at(step) - at(-step)) / (2.0 * f64::from(step)), "parameter");
        }
        for (which, grads) in input_grads.iter().enumerate() {
            for (index, grad) in grads.iter().enumerate() {
                let at = |delta: f32| {
                    let mut inputs = self.inputs.clone();
                    inputs[which].0[index] += delta;
                    self.value(&self.params, &inputs)
                };
                close(*grad, (at(step) - at(-step)) / (2.0 * f64::from(step)), "input");
            }
        }
    }
}

fn close(exact: f32, numeric: f64, what: &str) {
    let error = (f64::from(exact) - numeric).abs();
    assert!(error < 3e-3 * (1.0 + numeric.abs()), "{what}: {exact} is not {numeric}");
}

#[test]
fn gradient_of_linear() {
    let mut builder = Builder::default();
    let map = Linear::new(&mut builder, 4, 3, SOME);
    Check::new(builder, &[&[2, 3, 4]], move |tape, x| tape.linear(&x[0], &map)).run();
}

fn check_conv(shape: [usize; 4], (outputs, size, stride): (usize, usize, usize)) {
    let mut builder = Builder::default();
    let conv = Conv::new(&mut builder, shape[1], outputs, size).stride(stride).biased(&mut builder);
    Check::new(builder, &[&shape], move |tape, x| tape.conv(&x[0], &conv)).run();
}

#[test]
fn gradient_of_convolution() {
    check_conv([3, 2, 5, 4], (3, 3, 1));
}

#[test]
fn gradient_of_convolution_with_stride() {
    check_conv([2, 2, 5, 6], (2, 3, 2));
    check_conv([2, 2, 8, 7], (2, 7, 2));
}

#[test]
fn gradient_of_convolution_of_single_pixels() {
    check_conv([3, 3, 3, 3], (2, 1, 1));
    check_conv([3, 2, 5, 5], (2, 1, 2));
    // So large that the patches are the image itself.
    check_conv([1, 1, 14, 14], (2, 1, 1));
}

#[test]
fn gradient_of_batch_norm() {
    for then in [Then::Nothing, Then::Relu] {
        let mut builder = Builder::default();
        let norm = BatchNorm::new(&mut builder, 2);
        let function =
            move |tape: &mut Tape<'_>, x: &[TapeValue]| tape.batch_norm(&x[0], &norm, then);
        Check::new(builder, &[&[3, 2, 2, 3]], function).run();
    }
}

#[test]
fn gradient_of_layer_norm() {
    let mut builder = Builder::default();
    let norm = LayerNorm::new(&mut builder, 5);
    Check::new(builder, &[&[2, 3, 5]], move |tape, x| tape.layer_norm(&x[0], &norm)).run();
}

#[test]
fn gradient_of_embedding() {
    let mut builder = Builder::default();
    let embedding = Embedding::new(&mut builder, 4, 3, SOME);
    let function =
        move |tape: &mut Tape<'_>, _: &[TapeValue]| tape.embed(&[3, 1, 3], &embedding, 1.5);
    Check::new(builder, &[], function).run();
}

#[test]
fn gradient_of_attention() {
    for (causal, lengths) in [(false, vec![]), (true, vec![]), (false, vec![2, 3])] {
        let mask = AttentionMask { causal, lengths };
        let function = move |tape: &mut Tape<'_>, x: &[TapeValue]| {
            tape.attention([&x[0], &x[1], &x[2]], &mask)
        };
        let shapes: [&[usize]; 3] = [&[2, 2, 3, 4], &[2, 2, 3, 4], &[2, 2, 3, 4]];
        Check::new(Builder::default(), &shapes, function).run();
    }
}

#[test]
fn gradients_of_functions_without_parameters() {
    fn check(shape: &[usize], function: impl Fn(&mut Tape<'_>, &[TapeValue]) -> TapeValue) {
        Check::new(Builder::default(), &[shape, shape], function).run();
    }
    check(&[3, 4], |tape, x| tape.relu(x[0].clone()));
    check(&[3, 4], |tape, x| tape.gelu(&x[0]));
    check(&[3, 4], |tape, x| tape.add(&x[0], &x[1]));
    // One that is used twice collects both gradients.
    check(&[3, 4], |tape, x| tape.add(&x[0], &x[0]));
    check(&[3, 4], |tape, x| tape.add_constant(&x[0], &[1.0, 2.0, 3.0, 4.0]));
    check(&[3, 4], |tape, x| tape.reshape(&x[0], &[2, 6]));
    check(&[2, 3, 4], |tape, x| tape.permute(&x[0], &[2, 0, 1]));
    check(&[3, 4], |tape, x| tape.dropout(&x[0], 0.5));
    check(&[2, 2, 4, 6], |tape, x| tape.max_pool(&x[0], 2, 2, 0));
    check(&[1, 2, 5, 5], |tape, x| tape.max_pool(&x[0], 3, 2, 1));
    check(&[2, 3, 2, 3], |tape, x| tape.mean_pool(&x[0]));
    check(&[2, 2, 4, 3], |tape, x| tape.subsample_and_pad(&x[0], 4));
}

#[test]
fn gradient_of_cross_entropy() {
    let scores = random(20, 3);
    let targets = [1, NO_TARGET, 4, 0];
    for smoothing in [0.0, 0.1] {
        let value = |scores: &[f32]| {
            let scores = TapeValue::constant(scores.to_vec(), &[4, 5]);
            score(&scores, &targets, smoothing).loss / 3.0
        };
        let given = TapeValue::constant(scores.clone(), &[4, 5]);
        let (scored, grad) = score_with_gradient(&given, &targets, smoothing, 3.0);
        assert_eq!((scored.counted, scored.loss / 3.0), (3, value(&scores)));
        for (index, grad) in grad.iter().enumerate() {
            let at = |delta: f32| {
                let mut scores = scores.clone();
                scores[index] += delta;
                value(&scores)
            };
            close(*grad, (at(4e-3) - at(-4e-3)) / 8e-3, "score");
        }
    }
}

#[test]
fn of_equal_scores_only_the_first_is_right() {
    let even = TapeValue::constant(vec![0.0; 8], &[4, 2]);
    assert_eq!(score(&even, &[0, 1, 0, 1], 0.0).right, 2);
    let lost = TapeValue::constant(vec![f32::NAN; 2], &[1, 2]);
    assert_eq!(score(&lost, &[0], 0.0).right, 0);
}

#[test]
fn dropout_keeps_the_mean_and_drops_its_share() {
    let parameters = Builder::default().finish();
    let mut tape = Tape::new(&parameters, &[], PassMode::Train);
    let ones = tape.variable(vec![1.0; 100_000], &[100_000]);
    let dropped = tape.dropout(&ones, 0.2);
    let zeros = dropped.values().iter().filter(|x| **x == 0.0).count();
    assert!((zeros as f64 / 1e5 - 0.2).abs() < 0.005, "{zeros}");
    assert!(dropped.values().iter().all(|x| *x == 0.0 || *x == 1.25));
    let mut tape = Tape::new(&parameters, &[], PassMode::Evaluate);
    let ones = TapeValue::constant(vec![1.0; 10], &[10]);
    assert_eq!(tape.dropout(&ones, 0.2).values(), [1.0; 10]);
}

/// The parts of a batch, whose gradients are added up, and threads, give what one image after the
/// other gives.
#[test]
fn large_convolution_is_the_sum_of_its_images() {
    let mut builder = Builder::default();
    let conv = Conv::new(&mut builder, 8, 16, 3);
    let parameters = builder.finish();
    let params = random(parameters.len(), 1);
    let (images, image) = (11, 8 * 12 * 12);
    let x = random(images * image, 2);
    let seed = random(images * 16 * 12 * 12, 3);
    let run = |x: &[f32], seed: &[f32]| {
        let mut grad = vec![0.0; params.len()];
        let mut tape = Tape::new(&parameters, &params, PassMode::Train);
        let x = tape.variable(x.to_vec(), &[x.len() / image, 8, 12, 12]);
        let y = tape.conv(&x, &conv);
        let dx = tape.backward_to(&y, seed.to_vec(), &mut grad, &[&x]);
        (y.values().to_vec(), dx.concat(), grad)
    };
    let (y, dx, grad) = run(&x, &seed);
    let single = x.chunks(image).zip(seed.chunks(16 * 144)).map(|(x, seed)| run(x, seed));
    let single: Vec<_> = single.collect();
    let near = |a: &[f32], b: &[f32]| {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() < 1e-3, "{a} {b}"));
    };
    near(&y, &single.iter().flat_map(|one| one.0.clone()).collect::<Vec<_>>());
    near(&dx, &single.iter().flat_map(|one| one.1.clone()).collect::<Vec<_>>());
    let sum = |index: usize| single.iter().map(|one| one.2[index]).sum::<f32>();
    near(&grad, &(0..grad.len()).map(sum).collect::<Vec<_>>());
}
