//! What a run leaves in its directory. Every file is written beside and renamed, so that each of
//! them is whole or absent; the model is written first, the summary last.

pub mod aborted;
pub mod delivery;
pub mod directory;
pub mod limited;
pub mod part_note;
pub mod plots;
pub mod read_records;
pub mod records;
pub mod recovery;
pub mod summary;
pub mod tensors;
pub mod trace;
