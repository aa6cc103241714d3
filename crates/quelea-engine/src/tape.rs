//! The record of a forward pass, played back for its gradient.
//!
//! Parameters are read from the flat vector where they lie, and their gradients are added to the
//! flat gradient where they belong: nothing is copied in between.
//!
//! Every recorded operation names the parameters whose gradients it adds to. A backward pass therefore
//! knows which elements of the flat gradient no remaining operation writes, whatever the order of
//! layers and however often a parameter is used, and can report them while it runs.

use quelea_core::random::Rng;

use crate::flat::{FlatVectors, Slices};
use crate::parameters::{Param, Parameters, Statistic};
use crate::tensor::DenseTensor;

/// An intermediate result of a forward pass.
#[derive(Clone, Debug)]
pub struct TapeValue {
    pub(crate) tensor: DenseTensor,
    slot: Slot,
}

/// Where the gradient of a value is collected. What is played back keeps this instead of the
/// value, so that no activation is held longer than it is needed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slot(Option<usize>);

impl Slot {
    const NOBODY_ASKS: Slot = Slot(None);

    /// Whether anybody asks for the gradient.
    pub(crate) fn asked(self) -> bool {
        self.0.is_some()
    }
}

impl TapeValue {
    /// Something that has no gradient: the input.
    pub fn constant(values: Vec<f32>, shape: &[usize]) -> TapeValue {
        TapeValue::untracked(tensor(values, shape))
    }

    /// A result that nobody asks the gradient of.
    pub(crate) fn untracked(tensor: DenseTensor) -> TapeValue {
        TapeValue { tensor, slot: Slot::NOBODY_ASKS }
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }

    /// Where its gradient is collected.
    pub(crate) fn slot(&self) -> Slot {
        self.slot
    }

    /// Its numbers, in order.
    pub fn values(&self) -> &[f32] {
        self.tensor.values()
    }
}

/// A tensor of these numbers.
pub(crate) fn tensor(values: Vec<f32>, shape: &[usize]) -> DenseTensor {
    DenseTensor::new(values, shape)
}

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PassMode {
    /// For a gradient.
    Train,
    /// For statistics: as in training, but nothing is recorded nor dropped.
    Calibrate,
    /// For an answer: with the statistics that were calibrated.
    Evaluate,
}

/// Means and variances of all batch normalisations, in order of declaration.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Means and variances, by channel.
    pub moments: Vec<(Vec<f32>, Vec<f32>)>,
}

impl Statistics {
    /// The mean over batches.
    pub fn mean(batches: &[Statistics]) -> Statistics {
        let mean = |of: &dyn Fn(&Statistics) -> &[f32]| {
            let mut sum = vec![0.0f64; of(&batches[0]).len()];
            for batch in batches {
                sum.iter_mut().zip(of(batch)).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            sum.iter().map(|sum| (sum / batches.len() as f64) as f32).collect()
        };
        let norms = 0..batches.first().map_or(0, |batch| batch.moments.len());
        let moments = |norm: usize| {
            let means = mean(&|batch: &Statistics| &batch.moments[norm].0);
            (means, mean(&|batch: &Statistics| &batch.moments[norm].1))
        };
        Statistics { moments: norms.map(moments).collect() }
    }
}

type Step = Box<dyn FnOnce(DenseTensor, &mut Backward<'_>)>;

/// A recorded operation.
struct Entry {
    /// Given the gradient of the result, adds to those of inputs and parameters.
    step: Step,
    /// The parameters whose gradients it adds to.
    writes: Vec<Param>,
}

/// A forward pass.
pub struct Tape<'a> {
    pub(crate) parameters: &'a Parameters,
    params: &'a [f32],
    pub(crate) mode: PassMode,
    /// What batch normalisation uses instead of the batch's own moments.
    given: Option<&'a Statistics>,
    /// What batch normalisation has measured.
    measured: Statistics,
    /// What dropout draws from.
    pub(crate) rng: Rng,
    entries: Vec<Entry>,
}

impl<'a> Tape<'a> {
    /// Begins a pass of the network with these `params`.
    pub fn new(parameters: &'a Parameters, params: &'a [f32], mode: PassMode) -> Tape<'a> {
        assert_eq!(params.len(), parameters.len(), "the vector of this network");
        Tape {
            parameters,
            params,
            mode,
            given: None,
            measured: Statistics::default(),
            rng: Rng::new(0, "dropout", 0),
            entries: Vec::new(),
        }
    }

    /// Dropout draws from this stream.
    pub fn with_rng(mut self, rng: Rng) -> Tape<'a> {
        self.rng = rng;
        self
    }

    /// Batch normalisation uses these.
    pub fn with_statistics(mut self, statistics: &'a Statistics) -> Tape<'a> {
        self.given = Some(statistics);
        self
    }

    /// Keeps what a batch normalisation has measured.
    pub(crate) fn keep_moments(
        &mut self,
        statistic: Statistic,
        means: Vec<f32>,
        variances: Vec<f32>,
    ) {
        let all = &mut self.measured.moments;
        all.resize_with(all.len().max(statistic.0 + 1), Default::default);
        all[statistic.0] = (means, variances);
    }

    /// What batch normalisation has measured.
    pub fn into_statistics(self) -> Statistics {
        self.measured
    }

    /// An input whose gradient can be asked for; for tests.
    pub fn variable(&mut self, values: Vec<f32>, shape: &[usize]) -> TapeValue {
        self.record(&[], tensor(values, shape), |_, _| ())
    }

    /// The numbers of `param`.
    pub(crate) fn param(&self, param: Param) -> &'a [f32] {
        &self.params[self.parameters.range(param)]
    }

    /// The calibrated mean and variance of a batch normalisation.
    pub(crate) fn moments(&self, statistic: Statistic) -> &(Vec<f32>, Vec<f32>) {
        &self.given.expect("answers need statistics").moments[statistic.0]
    }

    /// Whether something that only depends on these has a gradient.
    pub(crate) fn tracks(&self, inputs: &[&TapeValue]) -> bool {
        self.mode == PassMode::Train && inputs.iter().any(|input| input.slot.asked())
    }

    /// The result of an operation that adds to the gradients of the parameters `writes`, and of no
    /// others.
    pub(crate) fn record(
        &mut self,
        writes: &[Param],
        output: DenseTensor,
        backward: impl FnOnce(DenseTensor, &mut Backward<'_>) + 'static,
    ) -> TapeValue {
        if self.mode != PassMode::Train {
            return TapeValue::untracked(output);
        }
        let id = self.entries.len();
        self.entries.push(Entry { step: Box::new(backward), writes: writes.to_vec() });
        TapeValue { tensor: output, slot: Slot(Some(id)) }
    }

    /// The result of an operation on `inputs` alone.
    pub(crate) fn record_if(
        &mut self,
        inputs: &[&TapeValue],
        output: DenseTensor,
        backward: impl FnOnce(DenseTensor, &mut Backward<'_>) + 'static,
    ) -> TapeValue {
        if self.tracks(inputs) {
            return self.record(&[], output, backward);
        }
        TapeValue::untracked(output)
    }

    /// What was recorded, without the parameters that it was recorded with.
    pub(crate) fn finish(self) -> Recording {
        Recording { entries: self.entries }
    }

    /// Plays the pass back from `root`, whose gradient is `seed`, and adds the gradients of the
    /// parameters to `grad`.
    pub fn backward(self, root: &TapeValue, seed: Vec<f32>, grad: &mut [f32]) {
        self.backward_to(root, seed, grad, &[]);
    }

    /// As [`Tape::backward`]; returns the gradients of `asked`, which are variables.
    pub fn backward_to(
        self,
        root: &TapeValue,
        seed: Vec<f32>,
        grad: &mut [f32],
        asked: &[&TapeValue],
    ) -> Vec<Vec<f32>> {
        let (parameters, mut vectors) = (self.parameters, Slices { params: self.params, grad });
        self.finish().play(parameters, &mut vectors, root, seed, asked)
    }
}

/// A forward pass that is over, ready to be played back.
pub(crate) struct Recording {
    entries: Vec<Entry>,
}

impl Recording {
    /// Plays the pass back from `root`, whose gradient is `seed`: adds the gradients of the
    /// parameters to that of `vectors`, and hands over what is final as soon as it is. What the
    /// gradient held before must be final: of several passes that add to one gradient, only the
    /// last may hand anything over.
    pub(crate) fn backward(
        self,
        parameters: &Parameters,
        vectors: &mut dyn FlatVectors,
        root: &TapeValue,
        seed: Vec<f32>,
    ) {
        self.play(parameters, vectors, root, seed, &[]);
    }

    fn play(
        self,
        parameters: &Parameters,
        vectors: &mut dyn FlatVectors,
        root: &TapeValue,
        seed: Vec<f32>,
        asked: &[&TapeValue],
    ) -> Vec<Vec<f32>> {
        let final_before = self.final_before(parameters);
        let mut backward = Backward {
            parameters,
            vectors,
            slots: vec![None; self.entries.len()],
            writes: Vec::new(),
        };
        backward.add(root.slot, tensor(seed, root.shape()));
        let mut found = vec![Vec::new(); asked.len()];
        let mut handed = 0;
        for (id, entry) in self.entries.into_iter().enumerate().rev() {
            if let Some(output) = backward.slots[id].take() {
                if let Some(place) = asked.iter().position(|value| value.slot == Slot(Some(id))) {
                    found[place] = output.values().to_vec();
                }
                backward.writes = entry.writes;
                (entry.step)(output, &mut backward);
            }
            if final_before[id] > handed {
                handed = final_before[id];
                backward.vectors.hand_over(handed);
            }
        }
        found
    }

    /// For each entry, the offset in the flat vector before which no earlier entry writes: once the
    /// entry was played back, the gradient is final up to there.
    fn final_before(&self, parameters: &Parameters) -> Vec<usize> {
        let mut lowest = parameters.len();
        let mut offsets = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            offsets.push(lowest);
            let starts = entry.writes.iter().map(|param| parameters.range(*param).start);
            lowest = starts.fold(lowest, usize::min);
        }
        offsets
    }
}

/// A pass that is being played back.
pub(crate) struct Backward<'a> {
    parameters: &'a Parameters,
    vectors: &'a mut dyn FlatVectors,
    slots: Vec<Option<DenseTensor>>,
    /// What the operation that is being played back has declared to write.
    writes: Vec<Param>,
}

impl Backward<'_> {
    /// The numbers of `param`, and where its gradient is collected.
    pub(crate) fn param(&mut self, param: Param) -> (&[f32], &mut [f32]) {
        // Otherwise a gradient would be reported as final too early.
        assert!(self.writes.contains(&param), "an operation declares the parameters it writes");
        self.vectors.part(self.parameters.range(param))
    }

    /// Adds to a gradient.
    pub(crate) fn add(&mut self, slot: Slot, part: DenseTensor) {
        let Some(id) = slot.0 else { return };
        let sum = match self.slots[id].take() {
            None => part,
            Some(mut before) => {
                let sum = before.values_mut().iter_mut();
                sum.zip(part.values()).for_each(|(a, b)| *a += b);
                before
            }
        };
        self.slots[id] = Some(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flat::Watched;
    use crate::ops::Linear;
    use crate::parameters::{Builder, Init};

    /// The first map is used again at the end, and lies first in the flat vector because it was
    /// declared last: nothing is final before its first use was played back.
    #[test]
    fn a_parameter_that_is_used_twice_is_final_after_its_first_use_was_played_back() {
        let mut builder = Builder::default();
        let init = Init::Constant(0.5);
        let unused = builder.param("unused", &[3], init);
        let middle = builder.scope("middle", |b| Linear::new(b, 4, 4, init));
        let tied = builder.param("tied", &[4, 4], init);
        let parameters = builder.finish();
        let params = parameters.initial(0);
        let outer = Linear::shared(tied, 4, 4);
        let mut tape = Tape::new(&parameters, &params, PassMode::Train);
        let x = TapeValue::constant(vec![1.0, 2.0, 3.0, 4.0], &[1, 4]);
        let y = [outer, middle, outer].iter().fold(x, |x, map| tape.linear(&x, map));
        let mut watched = Watched::new(&params);
        tape.finish().backward(&parameters, &mut watched, &y, vec![1.0; 4]);
        assert_eq!(parameters.range(tied).start, 0);
        assert_eq!(parameters.range(unused).end, params.len());
        let lengths: Vec<usize> = watched.seen.iter().map(Vec::len).collect();
        assert_eq!(lengths, [params.len()]);
    }

    #[test]
    #[should_panic(expected = "declares the parameters it writes")]
    fn a_write_that_was_not_declared_is_refused() {
        let mut builder = Builder::default();
        let param = builder.param("weight", &[1], Init::Constant(1.0));
        let parameters = builder.finish();
        let params = parameters.initial(0);
        let mut tape = Tape::new(&parameters, &params, PassMode::Train);
        let y = tape.record(&[], tensor(vec![1.0], &[1]), move |dy, backward| {
            backward.param(param).1[0] += dy.values()[0];
        });
        tape.backward(&y, vec![1.0], &mut [0.0]);
    }
}
