//! A module of a user's own trains as well as with Burn alone, with every kind of algorithm.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, Tanh};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use quelea::problems::{ACCURACY, Evaluation, Problem};
use quelea::{BatchId, Cluster, Run};
use quelea_burn::BurnProblem;

const WORKERS: u64 = 4;
const BATCH: usize = 16;

#[derive(Module, Debug)]
struct Classifier {
    hidden: Linear,
    tanh: Tanh,
    output: Linear,
}

impl Classifier {
    fn new() -> Classifier {
        let device = device();
        device.seed(3);
        let (hidden, output) = (LinearConfig::new(2, 24), LinearConfig::new(24, 3));
        let (hidden, output) = (hidden.init(&device), output.init(&device));
        Classifier { hidden, tanh: Tanh::new(), output }.materialize()
    }

    fn forward(&self, points: Tensor<2>) -> Tensor<2> {
        self.output.forward(self.tanh.forward(self.hidden.forward(points)))
    }

    fn loss(&self, points: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
        let logits = self.forward(points);
        let loss = CrossEntropyLossConfig::new().init(&logits.device());
        loss.forward(logits, labels)
    }

    /// The share of right answers on points that nobody trains with.
    fn accuracy(&self) -> f64 {
        let (points, labels) = rings(100_000, 600, &device().without_autodiff());
        let found = self.forward(points).argmax(1).squeeze_dim::<1>(1);
        found.equal(labels).int().sum().into_scalar::<f64>() / 600.0
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

/// `count` points from number `first` on, each on one of three rings.
fn rings(first: u64, count: usize, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    let (mut points, mut labels) = (Vec::new(), Vec::new());
    for k in first..first + count as u64 {
        let part = |step: f64| (k as f64 * step).fract() as f32;
        let (label, angle) = (k % 3, std::f32::consts::TAU * part(0.618_034));
        let radius = 0.5 + label as f32 + 0.4 * part(0.754_878);
        points.extend([radius * angle.cos(), radius * angle.sin()]);
        labels.push(label as i64);
    }
    let points = Tensor::from_data(TensorData::new(points, [count, 2]), device);
    (points, Tensor::from_data(TensorData::new(labels, [count]), device))
}

fn problem(workers: u64) -> BurnProblem<Classifier> {
    let loss = move |model: &Classifier, batch: BatchId| {
        let first = (batch.step * workers + batch.worker as u64) * BATCH as u64;
        let (points, labels) = rings(first, BATCH, &device());
        model.loss(points, labels)
    };
    let problem = BurnProblem::new(Classifier::new(), loss).expect("parameters of f32");
    problem.evaluate_with(|model| {
        let accuracy = model.accuracy();
        Evaluation::of_loss(1.0 - accuracy).with(ACCURACY, Some(accuracy))
    })
}

fn run(workers: u64, steps: u64) -> Run {
    Run::of(problem(workers)).workers(workers as usize).steps(steps).learning_rate(0.3)
}

/// Burn's own loop, on mini-batches of this size.
fn alone(steps: u64, batch: usize) -> Classifier {
    let mut model = Classifier::new().train();
    let mut optimizer = SgdConfig::new().init();
    for step in 0..steps {
        let (points, labels) = rings(step * batch as u64, batch, &device());
        let gradients = model.loss(points, labels).backward();
        let gradients = GradientsParams::from_grads(gradients, &model);
        model = optimizer.step(0.3, model, gradients);
    }
    model
}

#[test]
fn one_worker_takes_the_steps_of_burns_own_sgd() {
    let outcome = run(1, 50).simulate(&Cluster::default()).expect("it ends well");
    let trained = problem(1).module(outcome.model());
    let expected = alone(50, BATCH);
    for (ours, theirs) in [(&trained.hidden, &expected.hidden), (&trained.output, &expected.output)]
    {
        let difference = ours.weight.val() - theirs.weight.val().without_autodiff();
        let largest: f32 = difference.abs().max().into_scalar();
        assert!(largest < 1e-5, "{largest}");
    }
}

#[test]
fn four_workers_are_as_accurate_as_burn_alone_on_four_times_the_batch() {
    let alone = alone(400, BATCH * WORKERS as usize).valid().accuracy();
    assert!(alone > 0.95, "{alone}");
    for algorithm in ["allreduce", "d-psgd", "aladdin"] {
        let outcome = run(WORKERS, 400).algorithm(algorithm).threads().expect("it ends well");
        let accuracy = problem(WORKERS).evaluate(outcome.model()).accuracy().expect("measured");
        assert!(accuracy > alone - 0.02, "{algorithm}: {accuracy} instead of {alone}");
    }
}

#[test]
fn threads_and_the_virtual_cluster_give_the_same_bits() {
    let run = run(3, 20).algorithm("d-psgd").bucket_bytes(64);
    let simulated = run.simulate(&Cluster::default()).expect("it ends well");
    assert_eq!(run.threads().expect("it ends well").model(), simulated.model());
}

#[test]
fn the_vector_begins_with_the_last_layer_and_fits_back_into_the_module() {
    let problem = problem(1);
    let names: Vec<String> = problem.tensors().into_iter().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["output.bias", "output.weight", "hidden.bias", "hidden.weight"]);
    let counted: Vec<f32> = (0..problem.dimensions()).map(|k| k as f32).collect();
    let module = problem.module(&counted);
    let bias = module.output.bias.as_ref().expect("there is one").val().into_data();
    assert_eq!(bias.as_slice::<f32>().expect("floats"), [0.0, 1.0, 2.0]);
    let again = BurnProblem::new(module, |model: &Classifier, _| {
        model.forward(Tensor::zeros([1, 2], &device())).sum()
    });
    assert_eq!(again.expect("parameters").initial(), counted);
}

#[test]
fn a_frozen_layer_stays_as_it_is() {
    let mut model = Classifier::new();
    model.hidden = model.hidden.freeze();
    let before = model.hidden.weight.val().into_data();
    let problem = BurnProblem::new(model, |model: &Classifier, _| {
        let (points, labels) = rings(0, BATCH, &device());
        model.loss(points, labels)
    });
    let problem = problem.expect("the other layer is trained");
    assert_eq!(problem.dimensions(), 24 * 3 + 3);
    let run = Run::of(problem.clone()).workers(2).steps(5);
    let outcome = run.simulate(&Cluster::default()).expect("it ends well");
    assert_eq!(problem.module(outcome.model()).hidden.weight.val().into_data(), before);
}

#[test]
fn a_module_without_trained_parameters_is_refused() {
    let frozen = Classifier::new().freeze();
    let error = BurnProblem::new(frozen, |_: &Classifier, _| Tensor::zeros([1], &device()));
    let error = error.err().expect("nothing is trained").to_string();
    assert_eq!(error, "no parameter of the module requires a gradient");
}

#[test]
fn the_example_has_at_most_forty_lines_of_code() {
    let lines = include_str!("../examples/burn_spirals.rs").lines().map(str::trim);
    let count = lines.filter(|line| !line.is_empty() && !line.starts_with("//")).count();
    assert!(count <= 40, "{count} lines");
}
