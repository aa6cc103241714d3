//! Which way a part of an average goes: what the codec's shape allows.

use crate::codec::CodecShape;
use crate::collectives::low_rank::Cut;
use crate::contract::Context;
use crate::layout::{Layout, Tensor};

/// Which way a part goes.
pub(super) enum Way {
    Plain { rounds: bool },
    Shared,
    Own,
    LowRank(Cut),
}

impl Way {
    /// The way of bucket `b`.
    pub(super) fn of_bucket(cx: &Context<'_>, b: usize) -> Way {
        match cx.outbox.coder.shape() {
            CodecShape::Plain => Way::Plain { rounds: false },
            CodecShape::Rounding => Way::Plain { rounds: true },
            CodecShape::Shared => Way::Shared,
            CodecShape::Own => Way::Own,
            CodecShape::LowRank => {
                let cut = Cut::new(tensors(cx.layout, b), cx.outbox.coder.factors());
                if cut.has_matrices() { Way::LowRank(cut) } else { Way::Plain { rounds: false } }
            }
        }
    }
}

/// The tensors that fill bucket `b`.
fn tensors(layout: &Layout, b: usize) -> impl Iterator<Item = &Tensor> {
    let (range, mut end) = (layout.range(b), 0);
    layout.tensors.iter().filter(move |tensor| {
        let start = end;
        end += tensor.len();
        range.start <= start && end <= range.end
    })
}
