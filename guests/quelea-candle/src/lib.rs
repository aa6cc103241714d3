//! Trains a [candle](candle_core) model with any algorithm of [quelea].
//!
//! A [`CandleProblem`] is a model of yours, made from a [`VarBuilder`](candle_nn::VarBuilder), with a loss
//! of yours. It is a gradient source of quelea like any other: the same run is simulated, runs on threads,
//! or on several machines.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use candle_nn::{Linear, Module, linear, loss};
//! use quelea::{Cluster, Run};
//! use quelea_candle::CandleProblem;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Every worker fits y = 3x + 1 on points of its own.
//! let problem = CandleProblem::new(
//!     &Device::Cpu,
//!     |vars| linear(1, 1, vars),
//!     |line: &Linear, batch| {
//!         let x = Tensor::new(&[[batch.worker as f32], [1.5], [-1.0]], &Device::Cpu)?;
//!         loss::mse(&line.forward(&x)?, &x.affine(3.0, 1.0)?)
//!     },
//! )?;
//! let run = Run::of(problem.clone()).workers(2).steps(300).learning_rate(0.1);
//! let outcome = run.algorithm("d-psgd").simulate(&Cluster::default())?;
//! let line: Linear = problem.model(outcome.model())?;
//! let slope = line.weight().flatten_all()?.to_vec1::<f32>()?[0];
//! assert!((slope - 3.0).abs() < 1e-2);
//! # Ok(())
//! # }
//! ```
//!
//! The optimizer is quelea's ([`Run::optimizer`](quelea::Run::optimizer)), because some algorithms run it at
//! servers or between messages. candle has no hooks for single gradients, so that the exchange of a
//! gradient starts after its backward pass.
//!
//! All variables of the model are trained, in the order of their names, as `f32`.

mod problem;
mod vars;

pub use problem::CandleProblem;
