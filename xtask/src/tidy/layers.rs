//! Layers: which crate may depend on which.
//!
//! Law: an edge points to a lower layer, never up and never sideways.

use anyhow::{Context, Result};
use serde_json::Value;

/// Standing of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A layer of the house; edges go to smaller numbers.
    Layer(u8),
    /// The crate for Rust users: above everything that it re-exports, below the commands.
    Facade,
    /// For tests: nobody depends on it but through dev-dependencies.
    Testing,
    /// Outside the house: may use anything, nobody may use it.
    Tool,
}

const PLACES: &[(&str, Place)] = &[
    ("thinwire-wire", Place::Layer(0)),
    ("thinwire-codec", Place::Layer(1)),
    ("thinwire-schedule", Place::Layer(1)),
    ("thinwire-model", Place::Layer(1)),
    ("thinwire-member", Place::Layer(1)),
    ("thinwire-update", Place::Layer(1)),
    ("thinwire-policy", Place::Layer(1)),
    ("thinwire-graph", Place::Layer(1)),
    ("thinwire-onnx", Place::Layer(2)),
    ("thinwire-program", Place::Layer(2)),
    ("thinwire-link", Place::Layer(2)),
    ("thinwire-device", Place::Layer(2)),
    ("thinwire-plan", Place::Layer(3)),
    ("thinwire-collective", Place::Layer(3)),
    ("thinwire-job", Place::Layer(3)),
    ("thinwire-checkpoint", Place::Layer(3)),
    ("thinwire-rows", Place::Layer(3)),
    ("thinwire-sync", Place::Layer(4)),
    ("thinwire-server", Place::Layer(4)),
    ("thinwire-loader", Place::Layer(4)),
    ("thinwire-report", Place::Layer(4)),
    ("thinwire-train", Place::Layer(5)),
    ("thinwire-cli", Place::Layer(6)),
    ("thinwire-py", Place::Layer(7)),
    ("thinwire", Place::Facade),
    ("thinwire-testkit", Place::Testing),
    ("thinwire-outside", Place::Tool),
    ("thinwire-bench", Place::Tool),
    ("xtask", Place::Tool),
];

/// The layer of `cli`, above which is `py` alone.
const COMMANDS: u8 = 6;

/// A package of the workspace and what it depends on inside of the workspace.
#[derive(Debug, PartialEq, Eq)]
pub struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, PartialEq, Eq)]
struct Dependency {
    name: String,
    dev: bool,
}

/// The packages of the workspace, from the output of `cargo metadata --no-deps`.
pub fn packages(metadata: &Value) -> Result<Vec<Package>> {
    array(&metadata["packages"])?.iter().map(package).collect()
}

/// The complaints about `packages`.
pub fn check(packages: &[Package]) -> Vec<String> {
    packages.iter().flat_map(complaints).collect()
}

/// The names of the table that are no packages.
pub fn stale(packages: &[Package]) -> Vec<&'static str> {
    let exists = |name: &str| packages.iter().any(|package| package.name == name);
    PLACES.iter().map(|(name, _)| *name).filter(|name| !exists(name)).collect()
}

fn package(package: &Value) -> Result<Package> {
    let inside = array(&package["dependencies"])?.iter().filter(|d| !d["path"].is_null());
    let dependencies = inside
        .map(|d| Ok(Dependency { name: text(&d["name"])?, dev: d["kind"] == "dev" }))
        .collect::<Result<_>>()?;
    Ok(Package { name: text(&package["name"])?, dependencies })
}

fn complaints(package: &Package) -> Vec<String> {
    let from = &package.name;
    let Some(source) = place(from) else {
        return vec![format!("{from} has no layer, add it to xtask/src/tidy/layers.rs")];
    };
    let mut complaints = Vec::new();
    for Dependency { name, dev } in &package.dependencies {
        match place(name) {
            // With more features for its own tests.
            Some(_) if *dev && name == from => {}
            Some(target) if allowed(source, target, *dev) => {}
            Some(target) => complaints.push(format!(
                "{from} ({source:?}) depends on {name} ({target:?}), which is not below it"
            )),
            None => complaints.push(format!("{from} depends on {name}, which has no layer")),
        }
    }
    complaints
}

fn allowed(source: Place, target: Place, dev: bool) -> bool {
    match (source, target) {
        (_, Place::Tool) => false,
        (Place::Tool, _) => true,
        (_, Place::Testing) => dev,
        (Place::Testing, _) => true,
        (Place::Layer(source), Place::Layer(target)) => target < source,
        (Place::Facade, Place::Layer(target)) => target < COMMANDS,
        (Place::Layer(source), Place::Facade) => source >= COMMANDS,
        (Place::Facade, Place::Facade) => false,
    }
}

fn place(name: &str) -> Option<Place> {
    PLACES.iter().find(|(known, _)| *known == name).map(|(_, place)| *place)
}

fn array(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().context("metadata: a list is missing")
}

fn text(value: &Value) -> Result<String> {
    Ok(value.as_str().context("metadata: a name is no string")?.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn complaints(from: &str, to: &str, dev: bool) -> usize {
        let dependencies = vec![Dependency { name: to.to_owned(), dev }];
        check(&[Package { name: from.to_owned(), dependencies }]).len()
    }

    #[test]
    fn edges_point_down() {
        assert_eq!(complaints("thinwire-codec", "thinwire-wire", false), 0);
        assert_eq!(complaints("thinwire-cli", "thinwire-train", false), 0);
        assert_eq!(complaints("thinwire-py", "thinwire-cli", false), 0);
        assert_eq!(complaints("thinwire-cli", "thinwire-py", false), 1);
        assert_eq!(complaints("thinwire-wire", "thinwire-codec", false), 1);
        assert_eq!(complaints("thinwire-codec", "thinwire-link", true), 1);
    }

    #[test]
    fn siblings_never_meet() {
        assert_eq!(complaints("thinwire-codec", "thinwire-schedule", false), 1);
        assert_eq!(complaints("thinwire-loader", "thinwire-sync", false), 1);
    }

    #[test]
    fn the_testkit_is_for_tests_only() {
        assert_eq!(complaints("thinwire-wire", "thinwire-testkit", true), 0);
        assert_eq!(complaints("thinwire-collective", "thinwire-testkit", false), 1);
    }

    #[test]
    fn the_facade_stands_below_the_commands() {
        assert_eq!(complaints("thinwire", "thinwire-train", false), 0);
        assert_eq!(complaints("thinwire-cli", "thinwire", false), 0);
        assert_eq!(complaints("thinwire", "thinwire-py", false), 1);
        assert_eq!(complaints("thinwire-train", "thinwire", false), 1);
    }

    #[test]
    fn edges_are_read_and_a_crate_without_a_layer_is_named() {
        let metadata = json!({"packages": [
            {"name": "thinwire-link", "dependencies": [
                {"name": "thinwire-wire", "path": "crates/wire", "kind": null},
                {"name": "snow", "kind": null},
            ]},
            {"name": "thinwire-misc", "dependencies": []},
        ]});
        let packages = packages(&metadata).unwrap();
        assert_eq!(packages[0].dependencies.len(), 1);
        let complaints = check(&packages);
        assert_eq!(complaints.len(), 1);
        assert!(complaints[0].starts_with("thinwire-misc has no layer"));
        assert!(stale(&packages).contains(&"thinwire-wire"));
        assert!(!stale(&packages).contains(&"thinwire-link"));
    }
}
