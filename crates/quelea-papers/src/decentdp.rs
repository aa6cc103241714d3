//! The experiments of Decent-DP (Wang), and what they share.

pub mod generalization;
pub mod speedup;
pub mod theorem;

/// Whose numbers they are.
const PAPER: &str = "Wang: Efficient Decentralized Training of DNNs (poster), Decent-DP";

/// How models are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecentDpForm {
    /// Gradients of all, exactly.
    AllReduce,
    /// Models of all, one step late.
    Complete,
    /// Models of two neighbouring ranks, left and right in turn: `ring` of the public code.
    Ring,
    /// Alternating exponential ring.
    Aer,
}

impl DecentDpForm {
    fn name(self) -> &'static str {
        match self {
            DecentDpForm::AllReduce => "AllReduce",
            DecentDpForm::Complete => "Complete",
            DecentDpForm::Ring => "Ring",
            DecentDpForm::Aer => "AER",
        }
    }

    /// The algorithm and the topology that run it. AllReduce has no topology; the one that is
    /// given is not used.
    fn run(self) -> (&'static str, &'static str) {
        match self {
            DecentDpForm::AllReduce => ("allreduce", "complete"),
            DecentDpForm::Complete => ("d-psgd", "complete"),
            DecentDpForm::Ring => ("d-psgd", "one-peer-ring"),
            DecentDpForm::Aer => ("d-psgd", "aer"),
        }
    }
}
