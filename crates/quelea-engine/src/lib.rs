//! Networks: models whose parameters are one flat vector, their gradients, and the problems that
//! train them.
//!
//! ```
//! use quelea_engine::models::resnet20;
//!
//! let model = resnet20(10);
//! let tensors = model.parameters.tensors();
//! assert_eq!(tensors.iter().map(|tensor| tensor.len()).sum::<usize>(), model.parameters.len());
//! assert!((265_000..275_000).contains(&model.parameters.len()));
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`parameters`] | named tensors in one flat vector, and how they start |
//! | [`tape`] | a forward pass, recorded and played back |
//! | [`ops`] | the layers' vocabulary |
//! | [`models`] | networks, one file each |
//! | [`classify`] | the problem of classifying images |
//! | [`translate`] | the problem of translating sentences |
//! | [`language`] | the problem of predicting the next byte of a text |
//! | [`work`] | how the workers share the data |

pub mod classify;
pub mod error;
mod flat;
pub mod language;
mod learner;
mod matrix;
pub mod models;
pub mod ops;
pub mod parameters;
pub mod tape;
mod tensor;
pub mod translate;
pub mod work;
