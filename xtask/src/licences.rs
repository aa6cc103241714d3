//! The licences of all dependencies: which there are, and that each may be used under one that `deny.toml` allows.
//! `cargo deny check` holds the same list; this needs no further program and no network.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{cargo, output};

/// A package that this project is built from, itself not counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Dependency {
    name: String,
    version: String,
    /// An SPDX expression; empty where the package names none.
    licence: String,
}

/// What is wrong, one line each.
pub(crate) fn check() -> Result<Vec<String>> {
    let allowed = allowed(include_str!("../../deny.toml"))?;
    let wrong = |dependency: &Dependency| {
        let Dependency { name, version, licence } = dependency;
        match is_allowed(licence, &allowed) {
            Ok(true) => None,
            Ok(false) => Some(format!("{name} {version}: `{licence}` is not allowed by deny.toml")),
            Err(why) => Some(format!("{name} {version}: `{licence}`: {why}")),
        }
    };
    Ok(dependencies()?.iter().filter_map(wrong).collect())
}

/// `docs/licences.md`.
pub(crate) fn page() -> Result<String> {
    let mut page = String::from(
        "# Licences\n\nOf all packages that quelea is built, tested and documented with, on any system. Made from \
         `Cargo.lock` by `cargo xtask docs`; do not edit. `cargo xtask rules licences` compares each with the list \
         in `deny.toml`. quelea itself is under MIT OR Apache-2.0.\n\n",
    );
    let mut by_licence: BTreeMap<String, Vec<Dependency>> = BTreeMap::new();
    for dependency in dependencies()? {
        by_licence.entry(canonical(&dependency.licence)).or_default().push(dependency);
    }
    page.push_str("| licence | packages |\n|---|---|\n");
    for (licence, dependencies) in by_licence {
        let names = dependencies.iter().map(|one| format!("{} {}", one.name, one.version));
        let _ = writeln!(page, "| {licence} | {} |", names.collect::<Vec<_>>().join(", "));
    }
    Ok(page)
}

/// Everything in `Cargo.lock` but the workspace itself, whatever system it is for.
fn dependencies() -> Result<BTreeSet<Dependency>> {
    let metadata =
        output(cargo().args(["metadata", "--all-features", "--format-version", "1", "--locked"]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata is not JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let outside = packages.iter().filter(|package| !package["source"].is_null());
    Ok(outside
        .map(|package| Dependency {
            name: text(&package["name"]),
            version: text(&package["version"]),
            licence: text(&package["license"]),
        })
        .collect())
}

/// The list `allow` under `[licenses]`.
fn allowed(deny: &str) -> Result<BTreeSet<String>> {
    let (_, section) = deny.split_once("[licenses]").context("deny.toml has no [licenses]")?;
    let (_, list) = section.split_once("allow = [").context("deny.toml has no list `allow`")?;
    let (list, _) = list.split_once(']').context("the list `allow` has no end")?;
    Ok(list.split('"').skip(1).step_by(2).map(String::from).collect())
}

/// Old packages separate alternatives with a stroke.
fn canonical(expression: &str) -> String {
    expression.replace('/', " OR ")
}

/// Whether an SPDX expression can be met with the licences that are allowed.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> Result<bool> {
    let spaced = canonical(expression).replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = SpdxReader { words: &words, allowed };
    let is_met = reader.alternatives()?;
    match reader.words {
        [] => Ok(is_met),
        [word, ..] => bail!("`{word}` was not expected"),
    }
}

/// Reads an expression from left to right: OR binds least, then AND, then WITH.
struct SpdxReader<'a> {
    words: &'a [&'a str],
    allowed: &'a BTreeSet<String>,
}

impl SpdxReader<'_> {
    fn take(&mut self, wanted: &str) -> bool {
        let is_next = self.words.first() == Some(&wanted);
        if is_next {
            self.words = &self.words[1..];
        }
        is_next
    }

    fn alternatives(&mut self) -> Result<bool> {
        let mut is_met = self.all()?;
        while self.take("OR") {
            is_met |= self.all()?;
        }
        Ok(is_met)
    }

    fn all(&mut self) -> Result<bool> {
        let mut is_met = self.one()?;
        while self.take("AND") {
            is_met &= self.one()?;
        }
        Ok(is_met)
    }

    fn one(&mut self) -> Result<bool> {
        if self.take("(") {
            let is_met = self.alternatives()?;
            if !self.take(")") {
                bail!("a parenthesis is not closed");
            }
            return Ok(is_met);
        }
        let Some((name, rest)) = self.words.split_first() else { bail!("a licence is missing") };
        if ["OR", "AND", "WITH", ")"].contains(name) {
            bail!("`{name}` where a licence should stand");
        }
        self.words = rest;
        let mut name = name.to_string();
        if self.take("WITH") {
            let Some((exception, rest)) = self.words.split_first() else {
                bail!("WITH what?");
            };
            self.words = rest;
            name = format!("{name} WITH {exception}");
        }
        Ok(self.allowed.contains(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_allowed_if_it_can_be_met() {
        let allowed = ["MIT", "Apache-2.0", "ISC", "Apache-2.0 WITH LLVM-exception"];
        let allowed = allowed.map(String::from).into();
        let is = |expression: &str| is_allowed(expression, &allowed).expect("an expression");
        for good in [
            "MIT",
            "GPL-3.0 OR MIT",
            "GPL-3.0/MIT",
            "MIT AND ISC",
            "(GPL-3.0 OR MIT) AND ISC",
            "Apache-2.0 WITH LLVM-exception",
            "GPL-2.0 AND X OR MIT",
        ] {
            assert!(is(good), "{good}");
        }
        for bad in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "ISC WITH LLVM-exception",
            "(MIT OR ISC) AND (GPL-3.0 OR X)",
            "MIT AND X OR GPL-3.0",
        ] {
            assert!(!is(bad), "{bad}");
        }
        for wrong in ["", "MIT OR", "(MIT", "MIT ISC", "AND", "MIT WITH", "MIT)"] {
            assert!(is_allowed(wrong, &allowed).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_dependency_is_under_a_licence_that_deny_toml_allows() {
        let wrong = check().expect("cargo metadata");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn the_page_of_licences_is_what_the_lock_file_says() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/licences.md");
        let written = std::fs::read_to_string(file).unwrap_or_default();
        let made = page().expect("cargo metadata");
        assert!(written == made, "docs/licences.md is out of date: run `cargo xtask docs`");
    }
}
