//! What travels over one connection: a header, and after some headers a body.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | kind |
//! | 1 | the call, as its number in [`TensorCall::ALL`] |
//! | 2..4 | zero |
//! | 4..8 | the number of a request to a window, which its answer repeats; zero elsewhere |
//! | 8..16 | key: the number of the collective, the tag of a send, or the window |
//! | 16..24 | length: of the body, or of the memory that was announced |
//!
//! Integers are little endian; bodies are tensors as they lie in memory.

use super::TensorMemory;

/// The length of a header.
pub(super) const HEADER_BYTES: usize = 24;

/// A call, as errors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorCall {
    /// `all_reduce`.
    AllReduce,
    /// `broadcast`.
    Broadcast,
    /// `all_gather`, in all its forms.
    AllGather,
    /// `reduce_scatter`, in all its forms.
    ReduceScatter,
    /// `reduce`.
    Reduce,
    /// `gather`.
    Gather,
    /// `scatter`.
    Scatter,
    /// `all_to_all`, in all its forms.
    AllToAll,
    /// `barrier`.
    Barrier,
    /// `send`, and the `recv` that takes it.
    Send,
    /// `neighbor_allreduce`.
    NeighborAllReduce,
    /// The calls on windows.
    Window,
}

impl TensorCall {
    /// All calls, by number.
    pub const ALL: [(TensorCall, &str); 12] = [
        (TensorCall::AllReduce, "all_reduce"),
        (TensorCall::Broadcast, "broadcast"),
        (TensorCall::AllGather, "all_gather"),
        (TensorCall::ReduceScatter, "reduce_scatter"),
        (TensorCall::Reduce, "reduce"),
        (TensorCall::Gather, "gather"),
        (TensorCall::Scatter, "scatter"),
        (TensorCall::AllToAll, "all_to_all"),
        (TensorCall::Barrier, "barrier"),
        (TensorCall::Send, "send"),
        (TensorCall::NeighborAllReduce, "neighbor_allreduce"),
        (TensorCall::Window, "a call on a window"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        TensorCall::ALL[self as usize].1
    }
}

/// What a frame means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The sender has memory for so many bytes of this key.
    Ready,
    /// The body goes to the memory that was announced first of this key.
    Data,
    /// The sender has something to send with this key, for receives from any rank.
    Offer,
    /// The sender has failed; the body says why.
    Failed,
    /// The sender has taken leave: nothing follows.
    Leave,
    /// The body replaces what the window has of the sender.
    Put,
    /// The body is added to what the window has of the sender.
    Accumulate,
    /// The sender asks for the receiver's own tensor of the window.
    Get,
    /// The receiver has the body, or did what was asked.
    Answer,
}

const KINDS: [Kind; 9] = [
    Kind::Ready,
    Kind::Data,
    Kind::Offer,
    Kind::Failed,
    Kind::Leave,
    Kind::Put,
    Kind::Accumulate,
    Kind::Get,
    Kind::Answer,
];

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TensorHeader {
    pub(super) kind: Kind,
    pub(super) call: TensorCall,
    pub(super) number: u32,
    pub(super) key: u64,
    pub(super) bytes: u64,
}

impl TensorHeader {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0] = self.kind as u8;
        out[1] = self.call as u8;
        out[4..8].copy_from_slice(&self.number.to_le_bytes());
        out[8..16].copy_from_slice(&self.key.to_le_bytes());
        out[16..].copy_from_slice(&self.bytes.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<TensorHeader, String> {
        let number = |at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes of the header"))
        };
        let kind = KINDS.get(usize::from(bytes[0]));
        let call = TensorCall::ALL.get(usize::from(bytes[1]));
        let request = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes of the header"));
        match (kind, call, &bytes[2..4]) {
            (Some(kind), Some((call, _)), [0, 0]) => Ok(TensorHeader {
                kind: *kind,
                call: *call,
                number: request,
                key: number(8),
                bytes: number(16),
            }),
            _ => Err("it sent bytes that are no frame: are all ranks of the same version?".into()),
        }
    }
}

/// What follows a header.
#[derive(Debug)]
pub(super) enum Body {
    /// Nothing.
    Nothing,
    /// A tensor.
    Lent(TensorMemory),
    /// Text.
    Owned(Vec<u8>),
}

impl Body {
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Body::Nothing => &[],
            // SAFETY: the operation that lent it is not complete before it is written, and no
            // schedule writes to what it sends before it is sent.
            Body::Lent(memory) => unsafe { memory.as_slice() },
            Body::Owned(bytes) => bytes,
        }
    }
}

/// A frame on its way out.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) body: Body,
    /// What is complete when it is written.
    pub(super) ticket: Option<Ticket>,
}

/// The number of a send or a receive.
pub(super) type Ticket = u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_return_from_their_bytes_and_others_are_refused() {
        for (number, (call, _)) in TensorCall::ALL.into_iter().enumerate() {
            assert_eq!(call as usize, number);
            for kind in KINDS {
                let header =
                    TensorHeader { kind, call, number: 77, key: u64::MAX - 1, bytes: 1 << 40 };
                assert_eq!(TensorHeader::decode(&header.encode()), Ok(header));
            }
        }
        let mut bytes = [0; HEADER_BYTES];
        for (at, value) in [(0, 9), (1, 12), (2, 1)] {
            bytes[at] = value;
            assert!(TensorHeader::decode(&bytes).is_err());
            bytes[at] = 0;
        }
    }
}
