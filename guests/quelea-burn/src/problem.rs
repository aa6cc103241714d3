//! A module with its loss, as quelea trains it.

use std::sync::{Arc, Mutex, PoisonError};

use burn::module::Module;
use burn::tensor::Tensor;
use quelea::problems::{Computed, Evaluation, GradientSource, Problem};
use quelea::{BatchId, Error, Loan, layout};

use crate::flat::{Flattened, load, store};

/// The loss of a module on a mini-batch.
type LossFn<M> = dyn Fn(&M, BatchId) -> Tensor<1> + Send + Sync;
/// How good a module is.
type EvaluateFn<M> = dyn Fn(&M) -> Evaluation + Send + Sync;

/// A module of Burn with its loss. Cheap to clone.
pub struct BurnProblem<M: Module> {
    /// With autodiff; every worker has a copy.
    module: Arc<Mutex<M>>,
    tensors: Arc<[layout::Tensor]>,
    initial: Arc<[f32]>,
    loss: Arc<LossFn<M>>,
    evaluate: Option<Arc<EvaluateFn<M>>>,
}

impl<M: Module + 'static> BurnProblem<M> {
    /// Trains `module` from its present parameters. `loss` computes the mean loss of a mini-batch, which
    /// it chooses by worker and step alone, so that runs can be repeated; workers call it at the same
    /// time.
    ///
    /// An error if nothing of it is trained, or something that is not `f32`.
    pub fn new(
        module: M,
        loss: impl Fn(&M, BatchId) -> Tensor<1> + Send + Sync + 'static,
    ) -> Result<BurnProblem<M>, Error> {
        let module = module.materialize().train();
        let Flattened { tensors, values, unsupported } = Flattened::of(&module);
        if !unsupported.is_empty() {
            let names = unsupported.join("`, `");
            return Err(Error::Conflict(format!("only f32 is trained: `{names}` is not")));
        }
        if values.is_empty() {
            return Err(Error::Conflict("no parameter of the module requires a gradient".into()));
        }
        Ok(BurnProblem {
            module: Arc::new(Mutex::new(module)),
            tensors: tensors.into(),
            initial: values.into(),
            loss: Arc::new(loss),
            evaluate: None,
        })
    }

    /// How good a module is, on data that it was not trained with. Without this it is the loss on the
    /// first mini-batch of worker 0.
    #[must_use]
    pub fn evaluate_with(
        mut self,
        evaluate: impl Fn(&M) -> Evaluation + Send + Sync + 'static,
    ) -> BurnProblem<M> {
        self.evaluate = Some(Arc::new(evaluate));
        self
    }

    /// The module with these parameters, such as those of
    /// [`RunOutcome::model`](quelea::RunOutcome::model), without autodiff.
    pub fn module(&self, params: &[f32]) -> M {
        load(self.copy(), params).valid()
    }

    fn copy(&self) -> M {
        self.module.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

// Not derived: a problem is cloned by reference.
impl<M: Module> Clone for BurnProblem<M> {
    fn clone(&self) -> BurnProblem<M> {
        BurnProblem {
            module: Arc::clone(&self.module),
            tensors: Arc::clone(&self.tensors),
            initial: Arc::clone(&self.initial),
            loss: Arc::clone(&self.loss),
            evaluate: self.evaluate.clone(),
        }
    }
}

impl<M: Module + 'static> Problem for BurnProblem<M> {
    fn dimensions(&self) -> usize {
        self.initial.len()
    }

    fn tensors(&self) -> Vec<layout::Tensor> {
        self.tensors.to_vec()
    }

    fn initial(&self) -> Vec<f32> {
        self.initial.to_vec()
    }

    fn source(&self, rank: usize) -> Box<dyn GradientSource> {
        let loss = Arc::clone(&self.loss);
        Box::new(BurnSource { worker: rank, module: Some(self.copy()), loss })
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        let module = self.module(params);
        match &self.evaluate {
            Some(evaluate) => evaluate(&module),
            None => {
                let first = BatchId { worker: 0, step: 0 };
                Evaluation::of_loss((self.loss)(&module, first).into_scalar::<f64>())
            }
        }
    }
}

/// One worker's copy of the module.
struct BurnSource<M> {
    worker: usize,
    /// Absent only while its parameters are replaced.
    module: Option<M>,
    loss: Arc<LossFn<M>>,
}

/// What a module does is not known; a driver should give it a thread.
const OPERATIONS: u64 = 1_000_000;

impl<M: Module> GradientSource for BurnSource<M> {
    fn gradient(&mut self, loan: &mut Loan, _ready: &mut dyn FnMut(usize)) -> Computed {
        let batch = BatchId { worker: self.worker, step: loan.step() };
        let (params, grad) = loan.vectors();
        let module = load(self.module.take().expect("it was put back after the last step"), params);
        let loss = (self.loss)(&module, batch);
        let gradients = loss.backward();
        // The graph holds the parameters: without it the next step can write to their memory.
        let loss = loss.into_scalar();
        store(&module, gradients, grad);
        self.module = Some(module);
        Computed { loss, samples: 1 }
    }

    fn operations(&self) -> u64 {
        OPERATIONS
    }
}
