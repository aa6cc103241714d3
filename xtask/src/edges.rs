//! The architecture as a table: which crate may know which, and what must stay out of it.

use anyhow::{Result, bail};

use crate::{cargo, output};

/// One crate's rule.
struct Rule {
    name: &'static str,
    /// Crates of the workspace that it may depend on, directly or not.
    may_know: &'static [&'static str],
    /// Other packages that must never be below it.
    never: &'static [&'static str],
}

const EDGE: &[&str] = &["clap", "anyhow", "indicatif", "pyo3"];
const PURE: &[&str] = &[
    "tokio",
    "socket2",
    "serde",
    "serde_json",
    "toml",
    "rand",
    "getrandom",
    "clap",
    "anyhow",
    "indicatif",
    "rayon",
    "burn",
    "burn-backend",
    "burn-flex",
    "gemm",
    "pyo3",
    "axum",
];

const RULES: &[Rule] = &[
    Rule { name: "murmura-core", may_know: &[], never: PURE },
    Rule { name: "murmura-record", may_know: &["murmura-core"], never: PURE },
    Rule { name: "murmura-plot", may_know: &[], never: PURE },
    Rule { name: "murmura-wire", may_know: &["murmura-core"], never: PURE },
    Rule {
        name: "murmura-data",
        may_know: &["murmura-core"],
        never: &["tokio", "burn", "pyo3", "axum", "clap", "anyhow", "indicatif", "serde", "rand"],
    },
    Rule {
        name: "murmura-sim",
        may_know: &["murmura-core", "murmura-record", "murmura-wire"],
        never: &[
            "tokio",
            "socket2",
            "burn-flex",
            "gemm",
            "pyo3",
            "axum",
            "clap",
            "anyhow",
            "serde",
        ],
    },
    Rule {
        name: "murmura-net",
        may_know: &["murmura-core", "murmura-record", "murmura-wire"],
        never: &["burn-flex", "gemm", "pyo3", "axum", "clap", "anyhow", "serde"],
    },
    Rule {
        name: "murmura-engine",
        may_know: &["murmura-core", "murmura-data"],
        never: &["tokio", "socket2", "pyo3", "axum", "clap", "anyhow", "indicatif"],
    },
    Rule {
        name: "murmura-run",
        may_know: &[
            "murmura-core",
            "murmura-data",
            "murmura-engine",
            "murmura-record",
            "murmura-wire",
            "murmura-sim",
            "murmura-net",
            "murmura-plot",
        ],
        never: EDGE,
    },
    Rule {
        name: "murmura-experiments",
        may_know: &[
            "murmura-core",
            "murmura-data",
            "murmura-engine",
            "murmura-record",
            "murmura-wire",
            "murmura-sim",
            "murmura-net",
            "murmura-run",
            "murmura-plot",
        ],
        never: EDGE,
    },
    Rule {
        name: "murmura-py",
        may_know: &[
            "murmura-core",
            "murmura-record",
            "murmura-wire",
            "murmura-data",
            "murmura-sim",
            "murmura-net",
            "murmura-engine",
            "murmura-plot",
            "murmura-run",
        ],
        never: &["clap", "anyhow", "indicatif", "axum"],
    },
];

pub(crate) fn check() -> Result<()> {
    let mut wrong = Vec::new();
    for rule in RULES {
        let tree = ["tree", "--edges", "normal", "--prefix", "none", "--format", "{p}", "-p"];
        let tree = output(cargo().args(tree).arg(rule.name))?;
        let below = tree.lines().skip(1).filter_map(|line| line.split(' ').next());
        for package in below {
            let stranger = package.starts_with("murmura-") && !rule.may_know.contains(&package);
            if stranger || rule.never.contains(&package) {
                wrong.push(format!("{} must not depend on {package}", rule.name));
            }
        }
    }
    wrong.sort();
    wrong.dedup();
    if !wrong.is_empty() {
        bail!("dependency edges:\n  {}", wrong.join("\n  "));
    }
    println!("edges: {} crates know only what they may", RULES.len());
    Ok(())
}
