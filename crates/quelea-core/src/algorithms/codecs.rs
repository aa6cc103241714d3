//! Which codecs an algorithm supports, and why it does not support the others.

use crate::codec::{self, CodecShape, Entry};
use crate::options::Options;

/// Which codecs an algorithm supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codecs {
    /// It averages gradients or displacements exactly: any.
    All,
    /// It pushes gradients or displacements to a server, which can wait for what is left out:
    /// any that encodes a vector by itself.
    Feedback,
    /// It sends differences to copies that both ends keep: any contraction.
    Contraction,
    /// Signs are all that counts of what it sends: those that round, and the one of signs.
    Signs,
    /// Only those that round, and why.
    Rounding(&'static str),
    /// None, and why.
    Exact(&'static str),
}

impl Codecs {
    /// It sends models.
    pub const OF_MODELS: Codecs =
        Codecs::Rounding("it sends whole models, of which nothing may be left out");

    /// It has an outer momentum.
    pub const OF_MOMENTUM: Codecs =
        Codecs::Rounding("its outer momentum would amplify what others leave out and send late");

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Codecs::All => "all",
            Codecs::Feedback => "all but power-sgd",
            Codecs::Contraction => {
                "all contractions: bf16, f16, random-k, sign, top-k; qsgd, tern-grad and unbiased-k \
                 with `contract`"
            }
            Codecs::Signs => "bf16, f16, sign",
            Codecs::Rounding(_) => "bf16, f16",
            Codecs::Exact(_) => "f32 alone",
        }
    }

    /// Why `codec` does not do for vectors of up to `longest` elements, if it does not.
    pub fn refusal(self, codec: &Entry, options: &Options, longest: usize) -> Option<String> {
        let name = codec.meta.name;
        match (self, codec.shape) {
            (_, CodecShape::Plain) | (Codecs::All, _) => None,
            (Codecs::Exact(why), _) => Some(format!("cannot go with `{name}`: {why}; `f32` does")),
            (Codecs::Rounding(_) | Codecs::Signs, CodecShape::Rounding) => None,
            (Codecs::Signs, _) if name == codec::SIGN => None,
            (Codecs::Signs, _) => Some(format!(
                "cannot go with `{name}`: a vote needs the sign of every element; `sign`, `bf16` and \
                 `f16` do"
            )),
            (Codecs::Rounding(why), _) => Some(format!(
                "cannot go with `{name}`: {why}; `bf16` and `f16` do, and `choco` gossips with any \
                 codec"
            )),
            (_, CodecShape::LowRank) => Some(format!(
                "cannot go with `{name}`, whose factors have to be averaged over all workers: \
                 `allreduce` and `local-sgd` do that"
            )),
            (Codecs::Feedback, _) => None,
            (Codecs::Contraction, _) => (codec.properties(options, longest).contraction <= 0.0)
                .then(|| {
                    format!(
                        "needs a contraction, and `{name}` is none for {longest} elements: set \
                         `codec.contract` = true"
                    )
                }),
        }
    }
}
