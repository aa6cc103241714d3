//! The entries of the core's registry, as the configuration sees them.

use quelea_core::options::{OptionError, OptionKind, OptionSpec, Options, Value};
use quelea_core::{algorithms, codec, optim, topology};

use super::chosen::Listed;

impl Listed for algorithms::Entry {
    const PATH: &'static str = "algorithm";
    const DEFAULT: &'static str = "aladdin"; // names: default

    fn check(&self, given: Vec<(String, Value)>) -> Result<Options, OptionError> {
        let options = Options::check(self.meta.options, given)?;
        // No key by itself: the table as a whole.
        (self.check)(&options).map_err(|problem| OptionError {
            key: String::new(),
            given: String::new(),
            problem: problem.to_string(),
        })?;
        Ok(options)
    }
}

/// A key of every topology.
pub const WITHIN_HOST: OptionSpec = OptionSpec {
    name: "within_host",
    kind: OptionKind::Choice(&["gossip", "average"]),
    help: "what the workers of one host do: gossip as all others, or average their gradients \
           exactly and let one of them gossip for the host; the topology is then one of hosts",
};

impl Listed for topology::Entry {
    const PATH: &'static str = "topology";
    const DEFAULT: &'static str = "ring";

    fn keys(&self) -> Vec<OptionSpec> {
        self.meta.options.iter().copied().chain([WITHIN_HOST, topology::GROUPS]).collect()
    }
}

impl Listed for optim::Entry {
    const PATH: &'static str = "optimizer";
    const DEFAULT: &'static str = "sgd";
    const INSIDE: &'static [&'static str] = &["schedule"];

    fn keys(&self) -> Vec<OptionSpec> {
        self.all_keys()
    }
    fn check(&self, given: Vec<(String, Value)>) -> Result<Options, OptionError> {
        self.params(given)
    }
}

impl Listed for optim::ScheduleEntry {
    const PATH: &'static str = "optimizer.schedule";
    const DEFAULT: &'static str = "constant";

    fn keys(&self) -> Vec<OptionSpec> {
        self.all_keys()
    }
    fn check(&self, given: Vec<(String, Value)>) -> Result<Options, OptionError> {
        self.params(given)
    }
}

impl Listed for codec::Entry {
    const PATH: &'static str = "codec";
    const DEFAULT: &'static str = "f32";
}
