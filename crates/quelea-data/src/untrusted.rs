//! Readers of files that are private elsewhere in this crate, as functions of the files: for fuzzing. This is no part
//! of the interface.

use std::path::Path;

use crate::catalogue::ExpectedFile;
use crate::error::DataError;
use crate::fetch;
use crate::images::{read_batch, show};

/// A JPEG or PNG file, decoded and brought to a size.
pub fn picture(path: &Path) -> Result<(), DataError> {
    show(path)
}

/// The first images of a batch of CIFAR-10.
pub fn cifar_batch(path: &Path, images: usize) -> Result<(), DataError> {
    read_batch(path, images)
}

/// An archive, unpacked into a folder; the inner result says what is wrong with it.
pub fn archive(
    archive: &Path,
    folder: &Path,
    wanted: &[ExpectedFile],
) -> Result<Result<(), String>, DataError> {
    fetch::unpack(archive, folder, wanted)
}
