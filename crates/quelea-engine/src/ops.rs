//! The layers' vocabulary: each operation with its forward and its backward pass.

mod activation;
mod attention;
mod batch_norm;
mod conv;
mod embedding;
mod layer_norm;
mod linear;
pub mod loss;
mod lstm;
mod pool;
mod shape;

pub use attention::AttentionMask;
pub use batch_norm::{BatchNorm, Then};
pub use conv::Conv;
pub use embedding::Embedding;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use lstm::Lstm;

#[cfg(test)]
mod tests;
