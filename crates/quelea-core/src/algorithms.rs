//! The table of algorithms. One file each; the rest of quelea knows an
//! algorithm by its entry alone.

mod ad_psgd;
mod aladdin;
mod allreduce;
mod asp;
mod bmuf;
mod bridge;
mod choco;
mod codecs;
mod d_amsgrad;
mod d_psgd;
mod decentlam;
mod diloco;
mod eamsgd;
mod easgd;
mod exact_diffusion;
mod extra;

mod gossip_aga;
mod gossip_pga;
mod gradient_tracking;
pub(crate) mod hierarchy;
mod local_sgd;
mod qg_dmsgd;
mod robust_gossip;
mod sgp;
mod slowmo;
mod ssp;
mod sync_ps;
mod traffic;

use crate::contract::Algorithm;
use crate::meta::Meta;
use crate::names;
use crate::options::Options;
use crate::properties::Properties;

pub use codecs::Codecs;
pub use traffic::{Gathers, Service, Starters, Traffic, When};

/// Makes one side of an algorithm.
pub type Build = fn(&Options) -> Box<dyn Algorithm>;

/// One entry of the table.
pub struct Entry {
    /// Name, summary, paper and options.
    pub meta: Meta,
    /// What a worker sends in one step, and to whom.
    pub sends: &'static str,
    /// What becomes of a run that loses a worker.
    pub lost_peer: &'static str,
    /// The initial state of a run that resumes with another number of workers or servers.
    /// Everywhere: the deployed model, and the optimizers' state where it runs.
    pub resized: &'static str,
    /// Why these parameters cannot go together, if they cannot.
    pub check: fn(&Options) -> Result<(), &'static str>,
    /// Which codecs it supports.
    pub codecs: fn(&Options) -> Codecs,
    /// What drivers need to know.
    pub properties: fn(&Options) -> Properties,
    /// What a worker exchanges and when it waits, to predict the cost of a step.
    pub traffic: fn(&Options) -> Traffic,
    /// The worker's side.
    pub worker: Build,
    /// The server's side, where there is one.
    pub server: Option<Build>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({})", self.meta.name)
    }
}

impl PartialEq for Entry {
    /// Names are unique in a registry.
    fn eq(&self, other: &Entry) -> bool {
        self.meta.name == other.meta.name
    }
}

/// All built-in algorithms, by name. A [`Registry`](crate::registry::Registry) may have more.
pub const ALGORITHMS: &[Entry] = &[
    ad_psgd::ENTRY,
    aladdin::ENTRY,
    allreduce::ENTRY,
    asp::ENTRY,
    bmuf::ENTRY,
    bridge::ENTRY,
    choco::ENTRY,
    robust_gossip::CLIPPED_GOSSIP,
    robust_gossip::CS_PLUS_RG,
    d_amsgrad::ENTRY,
    d_psgd::ENTRY,
    exact_diffusion::D2,
    decentlam::ENTRY,
    diloco::ENTRY,
    eamsgd::ENTRY,
    easgd::ENTRY,
    exact_diffusion::ENTRY,
    extra::ENTRY,
    gossip_aga::ENTRY,
    gossip_pga::ENTRY,
    gradient_tracking::ENTRY,
    local_sgd::ENTRY,
    robust_gossip::NNA,
    qg_dmsgd::ENTRY,
    sgp::ENTRY,
    slowmo::ENTRY,
    ssp::ENTRY,
    sync_ps::ENTRY,
];

/// The built-in entry of this name, or the nearest name if there is one.
pub fn find(name: &str) -> Result<&'static Entry, Option<&'static str>> {
    names::find(ALGORITHMS, |entry| entry.meta.name, name)
}
