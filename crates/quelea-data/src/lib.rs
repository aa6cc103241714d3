//! Data sets, and batches of them ahead of the step that needs them.
//!
//! ```
//! use quelea_data::order::SampleOrder;
//!
//! // The samples 10, 11, 12 and 13 of worker 0: every epoch has all of them, in an order of its own.
//! let order = SampleOrder::new([10, 11, 12, 13].into(), 1, 0);
//! let mut batch = Vec::new();
//! order.read(4, 4, &mut batch);
//! batch.sort();
//! assert_eq!(batch, [10, 11, 12, 13]);
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`images`] | labelled images: digits (embedded), IDX, CIFAR-10, folders of JPEG and PNG |
//! | [`augment`] | pad-crop, flip and normalise |
//! | [`order`] | which sample comes when: a function of (seed, epoch, rank) |
//! | [`loader`] | batches made ahead on a few shared threads |
//! | [`text`] | sentence pairs, byte-pair vocabularies, windows of plain text |
//! | [`bleu`] | corpus BLEU as sacreBLEU computes it |
//! | [`catalogue`] | the table of data sets: addresses, checksums, terms |
//! | [`fetch`], [`check`] | downloading and verifying what the table names |
//!
//! A data set is read once and shared by all workers of a process. Nothing read from outside is
//! believed: lengths are checked before memory is taken, and every error names the file.

pub mod augment;
pub mod bleu;
pub mod catalogue;
pub mod check;
pub mod error;
pub mod fetch;
pub mod files;
pub mod images;
pub mod loader;
pub mod order;
mod sha256;
pub mod text;
#[doc(hidden)]
pub mod untrusted;
