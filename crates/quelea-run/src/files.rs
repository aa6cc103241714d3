//! What a run leaves in its directory. Every file is written beside and renamed at the end, so
//! that a directory holds a whole run or none.

pub mod directory;
pub mod plots;
pub mod records;
pub mod summary;
pub mod tensors;
pub mod trace;
