//! What a class of an algorithm says of itself, as an entry of the registry.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyString, PyTuple};
use quelea_core::algorithms::{Entry, Gathers, Traffic, When};
use quelea_core::contract::JoinRule;
use quelea_core::kit::exchange;
use quelea_core::meta::Meta;
use quelea_core::options::{OptionKind, OptionSpec};
use quelea_core::properties::{
    Budget, DeployedFrom, OptimizerRequirement, OptimizerSite, OptimizerState, Properties,
    TopologyRequirement,
};

/// The option whose only value names the class.
pub(super) const CLASS_OPTION: &str = "python";

/// A class, read and checked.
pub(crate) struct Declaration {
    pub(super) name: String,
    /// Module and name of the class.
    pub(super) class_name: String,
    summary: String,
    paper: String,
    file: String,
    options: Vec<OptionSpec>,
    /// Attributes that make up the state between two steps.
    pub(super) state: Vec<String>,
    /// Methods that the class defines itself.
    pub(super) defined: Vec<String>,
    /// "torch" or "numpy".
    pub(super) tensors: &'static str,
    pub(super) keeps_older_views: bool,
    pub(super) can_be_replaced: bool,
    pub(super) join_rule: JoinRule,
    pub(super) properties: Properties,
    pub(super) traffic: Traffic,
}

impl Declaration {
    /// Whether the class defines this method itself.
    pub(super) fn defines(&self, method: &str) -> bool {
        self.defined.iter().any(|name| name == method)
    }

    /// The entry; `key` names the class in its option.
    pub(super) fn entry(&self, key: &str) -> PyResult<&'static Entry> {
        let class = OptionSpec {
            name: CLASS_OPTION,
            kind: OptionKind::Choice(vec![leaked(key)].leak()),
            help: "the class in Python that implements it",
        };
        let options: Vec<_> = [class].into_iter().chain(self.options.iter().copied()).collect();
        let entry = Entry {
            meta: Meta {
                name: leaked(&self.name),
                summary: leaked(&self.summary),
                paper: leaked(&self.paper),
                section: "",
                file: leaked(&self.file),
                options: options.leak(),
            },
            sends: "what its Python code sends",
            lost_peer: "what its on_view does; without one, the run ends",
            resized: "every worker begins with the mean of the models and of the optimizers",
            check: |_| Ok(()),
            codecs: super::codecs,
            properties: super::properties,
            traffic: super::traffic,
            worker: super::worker,
            server: None,
        };
        Ok(Box::leak(Box::new(entry)))
    }
}

fn leaked(text: &str) -> &'static str {
    Box::leak(text.to_string().into_boxed_str())
}

impl<'py> FromPyObject<'_, 'py> for Declaration {
    type Error = PyErr;

    /// Reads the attributes of the package's `Declaration`.
    fn extract(declared: Borrowed<'_, 'py, PyAny>) -> PyResult<Declaration> {
        let text = |name: &str| declared.getattr(name)?.extract::<String>();
        let flag = |name: &str| declared.getattr(name)?.extract::<bool>();
        let options: Vec<(String, Bound<'_, PyAny>)> = declared.getattr("options")?.extract()?;
        let options = options.into_iter().map(|(name, default)| option(&name, &default));
        let is_numpy = text("tensors")? == "numpy";
        let properties = properties(&declared)?;
        Ok(Declaration {
            name: text("name")?,
            class_name: text("class_name")?,
            summary: text("summary")?,
            paper: text("paper")?,
            file: text("file")?,
            options: options.collect::<PyResult<_>>()?,
            state: declared.getattr("state")?.extract()?,
            defined: declared.getattr("defined")?.extract()?,
            tensors: if is_numpy { "numpy" } else { "torch" },
            keeps_older_views: flag("keeps_older_views")?,
            can_be_replaced: flag("can_be_replaced")?,
            join_rule: if flag("can_be_joined")? {
                JoinRule::Common
            } else {
                JoinRule::No("its class says can_be_joined = False")
            },
            traffic: traffic(&declared, &properties)?,
            properties,
        })
    }
}

/// An option, from its default.
fn option(name: &str, default: &Bound<'_, PyAny>) -> PyResult<OptionSpec> {
    let wrong = || {
        PyValueError::new_err(format!(
            "the option `{name}` = {default}: a default is a whole number from 0 on, a float, True or \
             False, \"\" for any text, a list of words of which the first is the default, or [] for a \
             list of numbers"
        ))
    };
    let kind = if default.is_instance_of::<PyBool>() {
        OptionKind::Flag(default.extract()?)
    } else if default.is_instance_of::<PyInt>() {
        let default = default.extract().map_err(|_| wrong())?;
        OptionKind::Whole { default, min: 0, max: u64::MAX }
    } else if default.is_instance_of::<PyFloat>() {
        OptionKind::Real { default: default.extract()?, min: f64::MIN, max: f64::MAX }
    } else if default.is_instance_of::<PyString>() && default.is_empty()? {
        OptionKind::Text
    } else if default.is_instance_of::<PyList>() || default.is_instance_of::<PyTuple>() {
        let words: Vec<String> = default.extract().map_err(|_| wrong())?;
        if words.is_empty() {
            OptionKind::Reals
        } else {
            OptionKind::Choice(words.iter().map(|word| leaked(word)).collect::<Vec<_>>().leak())
        }
    } else {
        return Err(wrong());
    };
    Ok(OptionSpec { name: leaked(name), kind, help: "as its class in Python says" })
}

fn properties(declared: &Bound<'_, PyAny>) -> PyResult<Properties> {
    let flag = |name: &str| declared.getattr(name)?.extract::<bool>();
    let synchronous = flag("synchronous")?;
    Ok(Properties {
        synchronous,
        snapshot: flag("snapshot")?,
        servers: false,
        deploy: DeployedFrom::Workers,
        budget: if synchronous { Budget::Rounds } else { Budget::TotalGradients },
        topology: topology(declared)?,
        optimizer: OptimizerSite::Workers,
        reads_gradient: flag("reads_gradient")?,
        clips_itself: flag("clips_itself")?,
        keeps_mean: flag("keeps_mean")?,
        optimizer_rule: OptimizerRequirement::Any,
        waits_for_peers: flag("waits_for_peers")?,
        own_start: flag("own_start")?,
        reloadable: flag("reloadable")?,
        needs_loss: flag("needs_loss")?,
        optimizer_state: OptimizerState::Kept,
    })
}

fn topology(declared: &Bound<'_, PyAny>) -> PyResult<TopologyRequirement> {
    let Some(name) = declared.getattr("topology")?.extract::<Option<String>>()? else {
        return Ok(TopologyRequirement::Nothing);
    };
    match name.as_str() {
        "mixing" => Ok(TopologyRequirement::Mixing),
        "static-symmetric" => Ok(TopologyRequirement::StaticSymmetric),
        "edges" => Ok(TopologyRequirement::Edges),
        "pairs" => Ok(TopologyRequirement::Pairs),
        _ => Err(PyValueError::new_err(format!(
            "topology = {name:?}: must be None, \"mixing\", \"static-symmetric\", \"edges\" or \"pairs\""
        ))),
    }
}

/// What a step costs by the class's own word, or by what such algorithms usually exchange.
fn traffic(declared: &Bound<'_, PyAny>, properties: &Properties) -> PyResult<Traffic> {
    let vectors = declared.getattr("vectors")?.extract()?;
    let when = declared.getattr("awaits")?.extract::<String>()?;
    let when = match when.as_str() {
        "after-gradient" => When::AfterGradient,
        "during-gradient" => When::DuringGradient,
        "never" => When::Never,
        _ => {
            return Err(PyValueError::new_err(format!(
                "awaits = {when:?}: must be \"after-gradient\", \"during-gradient\" or \"never\""
            )));
        }
    };
    Ok(match properties.topology {
        TopologyRequirement::Nothing => Traffic::Average { period: 1 },
        _ => exchange::traffic(vectors, when, Gathers::Vectors),
    })
}
