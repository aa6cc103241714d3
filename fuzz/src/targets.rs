//! The targets, by the crate whose readers they call.

pub mod core;
pub mod data;
pub mod net;
pub mod page;
pub mod run;
pub mod wire;
