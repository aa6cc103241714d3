//! `power-sgd`: matrices as two thin factors. Averages run the protocol
//! (`collectives/low_rank.rs`); a vector that is no part of an average travels as it is.

use super::{CodecShape, Entry, plain};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec};

pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "power-sgd",
        summary: "averages of matrices by two thin factors, each averaged exactly; vectors as they are",
        paper: "Vogels et al. 2019, PowerSGD (Algorithm 1), arXiv:1905.13727",
        section: "Algorithm 1 (rank-r compression) and Algorithm 2 (with error feedback)",
        file: file!(),
        options: &[RANK],
    },
    wire: "4·r·(rows + columns) per matrix, in two averages, r = min(rank, rows, columns); 4·d per vector",
    shape: CodecShape::LowRank,
    per_element: false,
    build: plain::ENTRY.build,
};

/// How thin the factors are.
pub const RANK: OptionSpec = OptionSpec {
    name: "rank",
    kind: OptionKind::Whole { default: 2, min: 1, max: 1 << 16 },
    help: "columns of the factors; 2 for vision, 4 for language in the paper",
};
