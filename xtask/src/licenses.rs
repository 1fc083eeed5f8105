//! The licence texts of everything that the Python package links, as one text for its wheels.
//!
//! Texts are those of the packages' own sources, as cargo has unpacked them. Packages with the same text share it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::cargo;

/// The package that wheels are built from.
const ROOT: &str = "thinwire-py";

/// Beginnings of the names of files that state a licence.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// Folders below a package in which texts of bundled sources lie, such as those of C.
const DEPTH_MAX: usize = 4;

/// A linked package of another source than this repository.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Linked {
    name: String,
    license: String,
    folder: PathBuf,
}

/// Prints the texts of all packages that a wheel for this machine links.
pub fn run(arguments: &[String]) -> Result<()> {
    if let Some(unknown) = arguments.first() {
        bail!("unknown argument '{unknown}', expected none");
    }
    let arguments = ["metadata", "--format-version=1", "--locked", "--filter-platform", &host()?];
    let output = cargo(&arguments).output().context("cannot start cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata = serde_json::from_slice(&output.stdout).context("cargo metadata: no JSON")?;
    let linked = linked(&metadata)?;
    let texts = linked.iter().map(|package| texts(&package.folder)).collect::<Result<Vec<_>>>()?;
    print!("{}", page(&linked, &texts));
    Ok(())
}

/// Returns the target that cargo compiles for by default.
fn host() -> Result<String> {
    let output = cargo(&["-vV"]).output().context("cannot start cargo -vV")?;
    let said = String::from_utf8(output.stdout).context("cargo -vV is no text")?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("cargo -vV names no host")?.to_owned())
}

/// Returns the packages that `ROOT` links: neither build scripts and macros, nor what only tests need.
fn linked(metadata: &Value) -> Result<BTreeSet<Linked>> {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let packages = list(&metadata["packages"]);
    let nodes = list(&metadata["resolve"]["nodes"]);
    let root = packages.iter().find(|package| package["name"] == ROOT);
    let mut waiting = vec![root.with_context(|| format!("no package {ROOT}"))?["id"].clone()];
    let (mut seen, mut linked) = (BTreeSet::new(), BTreeSet::new());
    while let Some(id) = waiting.pop() {
        let package = packages.iter().find(|package| package["id"] == id);
        let package = package.with_context(|| format!("no package {id}"))?;
        let is_macro =
            list(&package["targets"]).iter().any(|target| target["kind"][0] == "proc-macro");
        if is_macro || !seen.insert(id.to_string()) {
            continue;
        }
        if !package["source"].is_null() {
            linked.insert(Linked::read(package)?);
        }
        let node = nodes.iter().find(|node| node["id"] == id).unwrap_or(&Value::Null);
        for dependency in list(&node["deps"]) {
            if list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()) {
                waiting.push(dependency["pkg"].clone());
            }
        }
    }
    Ok(linked)
}

impl Linked {
    fn read(package: &Value) -> Result<Linked> {
        let text =
            |name: &str| package[name].as_str().with_context(|| format!("{name} is no text"));
        let manifest = Path::new(text("manifest_path")?);
        Ok(Linked {
            name: format!("{} {}", text("name")?, text("version")?),
            license: package["license"].as_str().unwrap_or("see its text").to_owned(),
            folder: manifest.parent().context("a manifest without a folder")?.to_owned(),
        })
    }
}

/// Returns the texts of all licence files in a package.
fn texts(folder: &Path) -> Result<BTreeSet<String>> {
    let mut texts = BTreeSet::new();
    let mut waiting = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = waiting.pop() {
        for entry in
            fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?
        {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
            if path.is_dir() && depth < DEPTH_MAX {
                waiting.push((path, depth + 1));
            } else if path.is_file() && NAMES.iter().any(|start| name.starts_with(start)) {
                // A source file such as license.rs is no licence.
                let is_source =
                    [".RS", ".PY", ".TOML", ".HTML"].iter().any(|end| name.ends_with(end));
                if let (false, Ok(text)) = (is_source, fs::read_to_string(&path)) {
                    texts.insert(text.replace("\r\n", "\n").trim_end().to_owned());
                }
            }
        }
    }
    Ok(texts)
}

/// Writes the list of packages, then each text below the packages that have it.
fn page(linked: &BTreeSet<Linked>, texts: &[BTreeSet<String>]) -> String {
    let mut page = "Thinwire's binaries contain the packages below, and the standard library of Rust, \
                    which is licensed\nunder Apache-2.0 OR MIT. A package without a text of its own in \
                    its sources is licensed by the\nexpression beside it.\n\n"
        .to_owned();
    let mut holders = BTreeMap::<&str, Vec<&str>>::new();
    for (package, texts) in linked.iter().zip(texts) {
        page += &format!("{}: {}\n", package.name, package.license);
        texts.iter().for_each(|text| holders.entry(text).or_default().push(&package.name));
    }
    for (text, names) in holders {
        page += &format!("\n{}\n{}\n\n{text}\n", "=".repeat(80), names.join(", "));
    }
    page
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, source: Value, kind: &str) -> Value {
        json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT", "source": source,
               "manifest_path": format!("/{name}/Cargo.toml"), "targets": [{"kind": [kind]}]})
    }

    #[test]
    fn a_package_counts_if_it_is_linked() {
        let edge = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let edges = ["a", "macro", "built", "tested"];
        let kinds = [Value::Null, Value::Null, json!("build"), json!("dev")];
        let edges: Vec<Value> =
            edges.iter().zip(kinds).map(|(name, kind)| edge(name, kind)).collect();
        let outside = |name: &str| package(name, json!("registry"), "lib");
        let metadata = json!({
            "packages": [package(ROOT, Value::Null, "cdylib"), outside("a"), outside("b"),
                         package("macro", json!("registry"), "proc-macro"), outside("built"),
                         outside("tested")],
            "resolve": {"nodes": [{"id": ROOT, "deps": edges},
                                  {"id": "a", "deps": [edge("b", Value::Null)]}]},
        });
        let names: Vec<_> = linked(&metadata).unwrap().into_iter().map(|each| each.name).collect();
        assert_eq!(names, ["a 1.0.0", "b 1.0.0"]);
    }

    #[test]
    fn packages_share_a_text_and_one_without_is_listed() {
        let linked = |name: &str| Linked {
            name: name.to_owned(),
            license: "MIT".to_owned(),
            folder: PathBuf::new(),
        };
        let text = || BTreeSet::from(["Permission is granted".to_owned()]);
        let packages = ["a 1", "b 1", "c 1"].map(linked).into();
        let page = page(&packages, &[text(), BTreeSet::new(), text()]);
        assert!(page.contains("\na 1: MIT\nb 1: MIT\nc 1: MIT\n"));
        assert_eq!(page.matches("Permission is granted").count(), 1);
        assert!(page.ends_with("\na 1, c 1\n\nPermission is granted\n"));
    }
}
