//! Text: sentence pairs for translation, and plain text for language models.

mod pairs;
mod plain;
mod vocabulary;

use std::path::Path;

pub use pairs::{Corpus, PairBatch, PairBatches, SentencePairs};
pub use plain::{PlainText, WindowBatch, WindowBatches, plain};
pub use vocabulary::{BEGIN, END, PAD, Vocabulary};

use crate::error::DataError;
use crate::files::Content;

/// Longer files are refused: they would not fit the memory of the machine they were meant for.
const BYTES_MAX: usize = 2 << 30;

/// The lines of a file, plain or packed, without their ends.
pub fn lines(path: &Path) -> Result<Vec<String>, DataError> {
    let bytes = Content::open(path)?.rest(BYTES_MAX)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        DataError::damaged(path, format!("line {line} is not UTF-8 text"))
    })?;
    // Unlike `str::lines`, only `\n` ends a line.
    let text = text.strip_suffix('\n').unwrap_or(&text);
    if text.is_empty() {
        return Err(DataError::damaged(path, "is empty"));
    }
    Ok(text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line).to_string()).collect())
}
