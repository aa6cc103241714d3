//! Networks: models whose parameters are one flat vector, their gradients, and the problems that
//! train them.
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
