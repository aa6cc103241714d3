//! CIFAR-10 in its original binary batches, plain or packed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{ImageShape, InMemory, Split};
use crate::error::DataError;
use crate::files::{self, Content};

const SHAPE: ImageShape = ImageShape { channels: 3, height: 32, width: 32 };
/// Images of a batch file.
const PER_FILE: usize = 10_000;
const CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// Reads `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin` of a folder, or of its
/// subfolder `cifar-10-batches-bin`, into which the original archive unpacks. Files are read in
/// parallel.
pub fn cifar10(folder: &Path) -> Result<Split, DataError> {
    let unpacked = folder.join("cifar-10-batches-bin");
    let folder = if unpacked.is_dir() { &unpacked } else { folder };
    let names = (1..=5).map(|number| format!("data_batch_{number}.bin"));
    let train = names.map(|name| files::require(folder, &name)).collect::<Result<Vec<_>, _>>()?;
    let test = [files::require(folder, "test_batch.bin")?];
    let (train, test) = (read(&train)?, read(&test)?);
    let test = test.normalised_like(&train);
    Ok(Split { train: Arc::new(train), test: Arc::new(test) })
}

/// All images of these files, in order; as many files at a time as there are cores.
fn read(paths: &[PathBuf]) -> Result<InMemory, DataError> {
    let mut labels = vec![0; paths.len() * PER_FILE];
    let mut pixels = vec![0; paths.len() * PER_FILE * SHAPE.len()];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let parts = labels.chunks_mut(PER_FILE).zip(pixels.chunks_mut(PER_FILE * SHAPE.len()));
    let mut jobs: Vec<_> = paths.iter().zip(parts).collect();
    while !jobs.is_empty() {
        let now = jobs.drain(..cores.min(jobs.len()));
        std::thread::scope(|scope| {
            let threads: Vec<_> = now
                .map(|(path, (labels, pixels))| scope.spawn(|| read_file(path, labels, pixels)))
                .collect();
            let done = threads.into_iter().map(|thread| thread.join().expect("no panic"));
            done.collect::<Result<(), DataError>>()
        })?;
    }
    Ok(InMemory::new(SHAPE, CLASSES.map(String::from).to_vec(), labels, pixels))
}

/// Reads so many images of a file, for [`crate::untrusted`].
pub(crate) fn read_batch(path: &Path, images: usize) -> Result<(), DataError> {
    let (mut labels, mut pixels) = (vec![0; images], vec![0; images * SHAPE.len()]);
    read_file(path, &mut labels, &mut pixels)?;
    InMemory::new(SHAPE, CLASSES.map(String::from).to_vec(), labels, pixels);
    Ok(())
}

/// Records of one byte of label and 3,072 bytes of red, green and blue.
fn read_file(path: &Path, labels: &mut [u8], pixels: &mut [u8]) -> Result<(), DataError> {
    let mut content = Content::open(path)?;
    let mut record = vec![0; 1 + SHAPE.len()];
    for (place, (label, image)) in
        labels.iter_mut().zip(pixels.chunks_exact_mut(SHAPE.len())).enumerate()
    {
        content.fill(&mut record)?;
        if usize::from(record[0]) >= CLASSES.len() {
            let problem = format!(
                "image {place} has label {}; CIFAR-10 has labels of 0 to 9 (is it CIFAR-100?)",
                record[0]
            );
            return Err(DataError::damaged(path, problem));
        }
        *label = record[0];
        image.copy_from_slice(&record[1..]);
    }
    content.end()
}
