//! A model of a user's own trains as well as with candle alone, with every kind of algorithm.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{Linear, Module, Optimizer, SGD, VarBuilder, VarMap, linear, loss};
use quelea::problems::{ACCURACY, Evaluation, Problem};
use quelea::{BatchId, Cluster, Run};
use quelea_candle::CandleProblem;

const WORKERS: u64 = 4;
const BATCH: usize = 16;

struct Classifier {
    hidden: Linear,
    output: Linear,
}

impl Classifier {
    fn new(vars: VarBuilder) -> Result<Classifier> {
        let classifier = Classifier {
            hidden: linear(2, 24, vars.pp("hidden"))?,
            output: linear(24, 3, vars.pp("output"))?,
        };
        Ok(classifier)
    }

    fn forward(&self, points: &Tensor) -> Result<Tensor> {
        self.output.forward(&self.hidden.forward(points)?.tanh()?)
    }

    fn loss(&self, first: u64, count: usize) -> Result<Tensor> {
        let (points, labels) = rings(first, count)?;
        loss::cross_entropy(&self.forward(&points)?, &labels)
    }

    /// The share of right answers on points that nobody trains with.
    fn accuracy(&self) -> Result<f64> {
        let (points, labels) = rings(100_000, 600)?;
        let right = self.forward(&points)?.argmax(D::Minus1)?.eq(&labels)?;
        Ok(f64::from(right.to_dtype(DType::F32)?.mean_all()?.to_scalar::<f32>()?))
    }
}

/// `count` points from number `first` on, each on one of three rings.
fn rings(first: u64, count: usize) -> Result<(Tensor, Tensor)> {
    let (mut points, mut labels) = (Vec::new(), Vec::new());
    for k in first..first + count as u64 {
        let part = |step: f64| (k as f64 * step).fract() as f32;
        let (label, angle) = (k % 3, std::f32::consts::TAU * part(0.618_034));
        let radius = 0.5 + label as f32 + 0.4 * part(0.754_878);
        points.extend([radius * angle.cos(), radius * angle.sin()]);
        labels.push(label as u32);
    }
    let points = Tensor::from_vec(points, (count, 2), &Device::Cpu)?;
    Ok((points, Tensor::from_vec(labels, count, &Device::Cpu)?))
}

fn problem(workers: u64) -> CandleProblem<Classifier> {
    let loss = move |model: &Classifier, batch: BatchId| {
        model.loss((batch.step * workers + batch.worker as u64) * BATCH as u64, BATCH)
    };
    let problem = CandleProblem::new(&Device::Cpu, Classifier::new, loss).expect("it can be made");
    problem.evaluate_with(|model| {
        let accuracy = model.accuracy()?;
        Ok(Evaluation::of_loss(1.0 - accuracy).with(ACCURACY, Some(accuracy)))
    })
}

fn run(problem: CandleProblem<Classifier>, workers: u64, steps: u64) -> Run {
    Run::of(problem).workers(workers as usize).steps(steps).learning_rate(0.3)
}

/// candle's own loop from these parameters, on mini-batches of this size.
fn alone(initial: &[f32], steps: u64, batch: usize) -> Result<(Classifier, VarMap)> {
    let vars = VarMap::new();
    let model = Classifier::new(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?;
    let mut rest = initial;
    for name in ["hidden.bias", "hidden.weight", "output.bias", "output.weight"] {
        let var = vars.data().lock().expect("no panic")[name].clone();
        let (own, after) = rest.split_at(var.elem_count());
        var.set(&Tensor::from_slice(own, var.shape(), &Device::Cpu)?)?;
        rest = after;
    }
    let mut optimizer = SGD::new(vars.all_vars(), 0.3)?;
    for step in 0..steps {
        optimizer.backward_step(&model.loss(step * batch as u64, batch)?)?;
    }
    Ok((model, vars))
}

#[test]
fn one_worker_takes_the_steps_of_candles_own_sgd() -> Result<()> {
    let problem = problem(1);
    let outcome = run(problem.clone(), 1, 50).simulate(&Cluster::default()).expect("it ends well");
    let trained = problem.model(outcome.model())?;
    let (expected, _) = alone(&problem.initial(), 50, BATCH)?;
    for (ours, theirs) in [(&trained.hidden, &expected.hidden), (&trained.output, &expected.output)]
    {
        let difference = (ours.weight() - theirs.weight())?.abs()?.flatten_all()?.max(0)?;
        assert!(difference.to_scalar::<f32>()? < 1e-5, "{difference}");
    }
    Ok(())
}

#[test]
fn four_workers_are_as_accurate_as_candle_alone_on_four_times_the_batch() -> Result<()> {
    let problem = problem(WORKERS);
    let (model, _) = alone(&problem.initial(), 400, BATCH * WORKERS as usize)?;
    let alone = model.accuracy()?;
    assert!(alone > 0.95, "{alone}");
    for algorithm in ["allreduce", "d-psgd", "aladdin"] {
        let run = run(problem.clone(), WORKERS, 400).algorithm(algorithm);
        let outcome = run.threads().expect("it ends well");
        let accuracy = problem.evaluate(outcome.model()).accuracy().expect("measured");
        assert!(accuracy > alone - 0.02, "{algorithm}: {accuracy} instead of {alone}");
    }
    Ok(())
}

#[test]
fn threads_and_the_virtual_cluster_give_the_same_bits() {
    let run = run(problem(3), 3, 20).algorithm("d-psgd").bucket_bytes(64);
    let simulated = run.simulate(&Cluster::default()).expect("it ends well");
    assert_eq!(run.threads().expect("it ends well").model(), simulated.model());
}

#[test]
fn the_vector_has_the_variables_by_name() -> Result<()> {
    let problem = problem(1);
    let names: Vec<String> = problem.tensors().into_iter().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["hidden.bias", "hidden.weight", "output.bias", "output.weight"]);
    let counted: Vec<f32> = (0..problem.dimensions()).map(|k| k as f32).collect();
    let model = problem.model(&counted)?;
    let bias = model.hidden.bias().expect("there is one").to_vec1::<f32>()?;
    assert_eq!(bias, counted[..24]);
    Ok(())
}

#[test]
fn models_without_variables_or_of_another_type_are_refused() {
    let refusal = |problem: Result<CandleProblem<Option<Tensor>>>| {
        problem.err().expect("refused").to_string()
    };
    let loss = |_: &Option<Tensor>, _: BatchId| Tensor::zeros((), DType::F32, &Device::Cpu);
    let empty = CandleProblem::new(&Device::Cpu, |_| Ok(None), loss);
    assert!(refusal(empty).contains("the model has no variable"));
    let double = |vars: VarBuilder| vars.set_dtype(DType::F64).get(2, "wide").map(Some);
    let error = refusal(CandleProblem::new(&Device::Cpu, double, loss));
    assert!(error.contains("only f32 is trained: `wide` is F64"), "{error}");
}

#[test]
fn the_example_has_at_most_forty_lines_of_code() {
    let lines = include_str!("../examples/candle_spirals.rs").lines().map(str::trim);
    let count = lines.filter(|line| !line.is_empty() && !line.starts_with("//")).count();
    assert!(count <= 40, "{count} lines");
}
