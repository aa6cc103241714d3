//! The architecture as a table: which crate may know which, and what must stay out of it.

use anyhow::{Result, bail};

use crate::{cargo, output};

/// One crate's rule.
struct EdgeRule {
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
    "gemm-f32",
    "pyo3",
    "axum",
];

const RULES: &[EdgeRule] = &[
    EdgeRule { name: "quelea-core", may_know: &[], never: PURE },
    EdgeRule { name: "quelea-record", may_know: &["quelea-core"], never: PURE },
    EdgeRule { name: "quelea-plot", may_know: &["quelea-core"], never: PURE },
    EdgeRule { name: "quelea-wire", may_know: &["quelea-core"], never: PURE },
    EdgeRule { name: "quelea-control", may_know: &["quelea-core", "quelea-record"], never: PURE },
    EdgeRule {
        name: "quelea-data",
        may_know: &["quelea-core"],
        never: &[
            "tokio",
            "gemm-f32",
            "pyo3",
            "axum",
            "clap",
            "anyhow",
            "indicatif",
            "serde",
            "rand",
        ],
    },
    EdgeRule {
        name: "quelea-sim",
        may_know: &["quelea-core", "quelea-control", "quelea-record", "quelea-wire"],
        never: &["tokio", "socket2", "gemm-f32", "pyo3", "axum", "clap", "anyhow", "serde"],
    },
    EdgeRule {
        name: "quelea-net",
        may_know: &["quelea-core", "quelea-control", "quelea-record", "quelea-wire"],
        never: &["gemm-f32", "pyo3", "axum", "clap", "anyhow", "serde"],
    },
    EdgeRule {
        name: "quelea",
        may_know: &[
            "quelea-core",
            "quelea-control",
            "quelea-record",
            "quelea-wire",
            "quelea-sim",
            "quelea-net",
        ],
        never: &["gemm-f32", "pyo3", "axum", "clap", "anyhow", "serde", "toml", "plotters", "ureq"],
    },
    EdgeRule {
        name: "quelea-engine",
        may_know: &["quelea-core", "quelea-data"],
        never: &["tokio", "socket2", "pyo3", "axum", "clap", "anyhow", "indicatif"],
    },
    EdgeRule {
        name: "quelea-run",
        may_know: &[
            "quelea-core",
            "quelea-data",
            "quelea-engine",
            "quelea-record",
            "quelea-wire",
            "quelea-control",
            "quelea-sim",
            "quelea-net",
            "quelea-plot",
        ],
        never: EDGE,
    },
    EdgeRule {
        name: "quelea-page",
        may_know: &[
            "quelea-core",
            "quelea-data",
            "quelea-record",
            "quelea-wire",
            "quelea-control",
            "quelea-sim",
            "quelea-net",
            "quelea-run",
            "quelea-plan",
            "quelea-plot",
        ],
        never: EDGE,
    },
    EdgeRule {
        name: "quelea-plan",
        may_know: &[
            "quelea-core",
            "quelea-data",
            "quelea-engine",
            "quelea-record",
            "quelea-wire",
            "quelea-control",
            "quelea-sim",
            "quelea-net",
            "quelea-run",
            "quelea-plot",
        ],
        never: EDGE,
    },
    EdgeRule {
        name: "quelea-papers",
        may_know: &[
            "quelea-core",
            "quelea-data",
            "quelea-engine",
            "quelea-record",
            "quelea-wire",
            "quelea-control",
            "quelea-sim",
            "quelea-net",
            "quelea-run",
            "quelea-plot",
        ],
        never: EDGE,
    },
    EdgeRule {
        name: "quelea-py",
        may_know: &[
            "quelea-core",
            "quelea-record",
            "quelea-wire",
            "quelea-control",
            "quelea-data",
            "quelea-sim",
            "quelea-net",
            "quelea-engine",
            "quelea-plot",
            "quelea-run",
            // The package has the command too.
            "quelea-page",
            "quelea-papers",
            "quelea-plan",
            "quelea-cli",
            // Algorithms in Python are checked as those in Rust are.
            "quelea-conformance",
        ],
        never: &[],
    },
];

pub(crate) fn check() -> Result<()> {
    let mut wrong = Vec::new();
    for rule in RULES {
        let tree = ["tree", "--edges", "normal", "--prefix", "none", "--format", "{p}", "-p"];
        let tree = output(cargo().args(tree).arg(rule.name))?;
        let below = tree.lines().skip(1).filter_map(|line| line.split(' ').next());
        for package in below {
            let stranger = package.starts_with("quelea-") && !rule.may_know.contains(&package);
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
