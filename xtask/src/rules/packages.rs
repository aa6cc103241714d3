//! Every crate that can be published has what a registry asks for.

use anyhow::Result;
use serde_json::Value;

use crate::{cargo, output};

/// What a package must say of itself.
const FIELDS: [&str; 7] =
    ["description", "license", "repository", "readme", "keywords", "categories", "rust_version"];

/// What is missing, by package.
pub(super) fn check() -> Result<Vec<String>> {
    let said =
        output(cargo().args(["metadata", "--no-deps", "--offline", "--format-version", "1"]))?;
    let said: Value = serde_json::from_str(&said)?;
    let packages = said["packages"].as_array().cloned().unwrap_or_default();
    Ok(packages.iter().filter(|package| is_published(package)).flat_map(problems).collect())
}

/// A package that may go nowhere has an empty list of registries.
fn is_published(package: &Value) -> bool {
    package["publish"].as_array().is_none_or(|registries| !registries.is_empty())
}

fn problems(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    let missing = FIELDS.iter().filter(|field| is_empty(&package[**field]));
    let mut found: Vec<String> =
        missing.map(|field| format!("{name}: has no {}", field.replace('_', "-"))).collect();
    if package["keywords"].as_array().is_some_and(|words| words.len() > 5) {
        found.push(format!("{name}: has more than 5 keywords"));
    }
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    // Only what tests need may be known by its path alone: it is left out of the package.
    let unversioned =
        dependencies.filter(|on| !on["path"].is_null() && on["req"] == "*" && on["kind"] != "dev");
    found.extend(
        unversioned
            .map(|on| format!("{name}: its dependency {} has a path and no version", on["name"])),
    );
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_package_without_a_field_or_with_a_dependency_of_no_version_is_named() {
        let mut package = json!({
            "name": "mine", "description": "one", "license": "MIT", "repository": "there",
            "readme": "README.md", "keywords": ["a"], "categories": ["science"],
            "rust_version": "1.95", "publish": null,
            "dependencies": [{ "name": "other", "path": "/other", "req": "^0.1.0", "kind": null }],
        });
        assert!(is_published(&package));
        assert_eq!(problems(&package), [""; 0]);
        package["readme"] = Value::Null;
        package["keywords"] = json!([]);
        package["dependencies"][0]["req"] = json!("*");
        assert_eq!(
            problems(&package),
            [
                "mine: has no readme",
                "mine: has no keywords",
                "mine: its dependency \"other\" has a path and no version",
            ]
        );
        package["dependencies"][0]["kind"] = json!("dev");
        assert_eq!(problems(&package).len(), 2);
        package["publish"] = json!([]);
        assert!(!is_published(&package));
    }
}
