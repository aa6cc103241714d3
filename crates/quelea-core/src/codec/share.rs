//! How many elements the sparse codecs keep.

use crate::options::{OptionKind, OptionSpec};

/// The parameter of the sparse codecs.
pub const KEY: OptionSpec = OptionSpec {
    name: "share",
    kind: OptionKind::Real { default: 0.01, min: f64::MIN_POSITIVE, max: 1.0 },
    help: "share of the elements that is sent, rounded up, at least one",
};

/// `k = max(1, ⌈share·len⌉)`, and nothing of nothing.
pub fn kept(share: f64, len: usize) -> usize {
    // 0.01·700 is a little above 7 in binary, and 7 is what was meant.
    let wanted = (share * len as f64 * (1.0 - 1e-12)).ceil() as usize;
    wanted.max(1).min(len)
}

/// `k/len`; an empty vector loses nothing.
pub fn contraction(share: f64, len: usize) -> f64 {
    kept(share, len).max(1) as f64 / len.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_rounded_up_but_not_by_a_rounding_error() {
        assert_eq!([0, 1, 99, 100, 101, 700].map(|len| kept(0.01, len)), [0, 1, 1, 1, 2, 7]);
        assert_eq!([0, 1, 7].map(|len| kept(1.0, len)), [0, 1, 7]);
    }
}
