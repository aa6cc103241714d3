//! The experiments of Decent-DP (Wang), and what they share.

pub mod generalization;
mod groups;
pub mod speedup;

/// Whose numbers they are.
const PAPER: &str = "Wang: Efficient Decentralized Training of DNNs (poster), Decent-DP";

/// How models are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecentDpForm {
    /// Gradients of all, exactly.
    AllReduce,
    /// Models of all, one step late.
    Complete,
    /// Models of two neighbouring hosts.
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
}
