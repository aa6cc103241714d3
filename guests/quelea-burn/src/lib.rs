//! Trains a [Burn](burn) module with any algorithm of [quelea].
//!
//! A [`BurnProblem`] is a module of yours with a loss of yours. It is a gradient source of quelea like any
//! other: the same run is simulated, runs on threads, or on several machines.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::{Device, Tensor};
//! use quelea::{Cluster, Run};
//! use quelea_burn::BurnProblem;
//!
//! #[derive(Module, Debug)]
//! struct Line {
//!     layer: Linear,
//! }
//!
//! # fn main() -> Result<(), quelea::Error> {
//! let device = Device::flex().autodiff();
//! let line = Line { layer: LinearConfig::new(1, 1).init(&device) };
//! // Every worker fits y = 3x + 1 on points of its own.
//! let problem = BurnProblem::new(line, move |line: &Line, batch| {
//!     let x = Tensor::<2>::from_data([[batch.worker as f32], [1.5], [-1.0]], &device);
//!     (line.layer.forward(x.clone()) - (x * 3.0 + 1.0)).powi_scalar(2).mean()
//! })?;
//! let run = Run::of(problem.clone()).workers(2).steps(300).learning_rate(0.1);
//! let outcome = run.algorithm("d-psgd").simulate(&Cluster::default())?;
//! let trained: Line = problem.module(outcome.model());
//! let slope: f32 = trained.layer.weight.val().into_scalar();
//! assert!((slope - 3.0).abs() < 1e-2);
//! # Ok(())
//! # }
//! ```
//!
//! The optimizer is quelea's ([`Run::optimizer`](quelea::Run::optimizer)), because some algorithms run it at
//! servers or between messages. Burn has no hooks for single gradients, so that the exchange of a
//! gradient starts after its backward pass.
//!
//! What is trained are the float parameters that require a gradient, as `f32`. What is not (frozen layers,
//! running statistics of batch normalisation) stays in each worker's copy of the module, and
//! [`module`](BurnProblem::module) has the values that [`new`](BurnProblem::new) was given.

mod flat;
mod problem;

pub use problem::BurnProblem;
