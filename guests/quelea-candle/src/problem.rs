//! A model with its loss, as quelea trains it.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, bail};
use candle_nn::{VarBuilder, VarMap};
use quelea::problems::{Computed, Evaluation, GradientSource, Problem};
use quelea::{BatchId, Loan, layout};

use crate::vars::Vars;

/// Makes a model of its variables.
type MakeFn<M> = dyn Fn(VarBuilder) -> Result<M> + Send + Sync;
/// The loss of a model on a mini-batch.
type LossFn<M> = dyn Fn(&M, BatchId) -> Result<Tensor> + Send + Sync;
/// How good a model is.
type EvaluateFn<M> = dyn Fn(&M) -> Result<Evaluation> + Send + Sync;

/// A model of candle with its loss. Cheap to clone.
pub struct CandleProblem<M> {
    device: Device,
    tensors: Arc<[layout::Tensor]>,
    initial: Arc<[f32]>,
    make: Arc<MakeFn<M>>,
    loss: Arc<LossFn<M>>,
    evaluate: Option<Arc<EvaluateFn<M>>>,
}

impl<M: Send + 'static> CandleProblem<M> {
    /// Trains what `make` makes of its variables, from the values that it initializes them with. `loss`
    /// computes the mean loss of a mini-batch, which it chooses by worker and step alone, so that runs can
    /// be repeated; workers call it at the same time, each with a model of its own. Where it fails, the
    /// run ends.
    ///
    /// An error if the model cannot be made, has no variable, or one that is not `f32`.
    pub fn new(
        device: &Device,
        make: impl Fn(VarBuilder) -> Result<M> + Send + Sync + 'static,
        loss: impl Fn(&M, BatchId) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<CandleProblem<M>> {
        let Replica { vars, .. } = Replica::new(&make, device)?;
        let (tensors, values) = (vars.tensors(), vars.values()?);
        if values.is_empty() {
            bail!("the model has no variable");
        }
        Ok(CandleProblem {
            device: device.clone(),
            tensors: tensors.into(),
            initial: values.into(),
            make: Arc::new(make),
            loss: Arc::new(loss),
            evaluate: None,
        })
    }

    /// How good a model is, on data that it was not trained with. Without this it is the loss on the
    /// first mini-batch of worker 0.
    #[must_use]
    pub fn evaluate_with(
        mut self,
        evaluate: impl Fn(&M) -> Result<Evaluation> + Send + Sync + 'static,
    ) -> CandleProblem<M> {
        self.evaluate = Some(Arc::new(evaluate));
        self
    }

    /// A model with these parameters, such as those of
    /// [`RunOutcome::model`](quelea::RunOutcome::model).
    pub fn model(&self, params: &[f32]) -> Result<M> {
        let Replica { vars, model } = Replica::new(&*self.make, &self.device)?;
        vars.load(params)?;
        Ok(model)
    }

    fn evaluated(&self, params: &[f32]) -> Result<Evaluation> {
        let model = self.model(params)?;
        match &self.evaluate {
            Some(evaluate) => evaluate(&model),
            None => {
                let loss = (self.loss)(&model, BatchId { worker: 0, step: 0 })?;
                Ok(Evaluation::of_loss(f64::from(scalar(&loss)?)))
            }
        }
    }
}

// Not derived: a problem is cloned by reference.
impl<M> Clone for CandleProblem<M> {
    fn clone(&self) -> CandleProblem<M> {
        CandleProblem {
            device: self.device.clone(),
            tensors: Arc::clone(&self.tensors),
            initial: Arc::clone(&self.initial),
            make: Arc::clone(&self.make),
            loss: Arc::clone(&self.loss),
            evaluate: self.evaluate.clone(),
        }
    }
}

/// Why a panic is right: [`Problem`] has no other way to end a run that cannot be computed.
const MADE_BEFORE: &str = "the model could be made when the problem was";

impl<M: Send + 'static> Problem for CandleProblem<M> {
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
        let replica = Replica::new(&*self.make, &self.device).expect(MADE_BEFORE);
        Box::new(CandleSource { worker: rank, replica, loss: Arc::clone(&self.loss) })
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        self.evaluated(params).unwrap_or_else(|error| panic!("candle cannot evaluate: {error}"))
    }
}

/// A model with variables of its own.
struct Replica<M> {
    vars: Vars,
    model: M,
}

impl<M> Replica<M> {
    fn new(make: &MakeFn<M>, device: &Device) -> Result<Replica<M>> {
        let map = VarMap::new();
        let model = make(VarBuilder::from_varmap(&map, DType::F32, device))?;
        Ok(Replica { vars: Vars::of(&map)?, model })
    }
}

/// One worker's model.
struct CandleSource<M> {
    worker: usize,
    replica: Replica<M>,
    loss: Arc<LossFn<M>>,
}

/// What a model does is not known; a driver should give it a thread.
const OPERATIONS: u64 = 1_000_000;

impl<M> CandleSource<M> {
    fn computed(&mut self, loan: &mut Loan) -> Result<Computed> {
        let batch = BatchId { worker: self.worker, step: loan.step() };
        let (params, grad) = loan.vectors();
        let Replica { vars, model } = &self.replica;
        vars.load(params)?;
        let loss = (self.loss)(model, batch)?;
        vars.store(&loss.backward()?, grad)?;
        Ok(Computed { loss: scalar(&loss)?, samples: 1 })
    }
}

impl<M: Send> GradientSource for CandleSource<M> {
    fn gradient(&mut self, loan: &mut Loan, _ready: &mut dyn FnMut(usize)) -> Computed {
        let (worker, step) = (self.worker, loan.step());
        self.computed(loan)
            .unwrap_or_else(|error| panic!("candle: worker {worker}, step {step}: {error}"))
    }

    fn operations(&self) -> u64 {
        OPERATIONS
    }
}

fn scalar(loss: &Tensor) -> Result<f32> {
    loss.to_dtype(DType::F32)?.to_scalar()
}
