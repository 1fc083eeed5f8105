//! The rules that no compiler checks.
//!
//! Each rule is a pure function from what was read to a list of complaints; this file does the
//! reading: the dependency graph from `cargo metadata`, the list of files from git.

mod circles;
mod files;
mod imports;
mod layers;
mod prose;
mod shapes;
mod source;
mod text;
mod words;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::{metadata, root};
use source::source_of;

/// The sources of a crate: each file's path below `src/`, and its content.
type Sources = Vec<(String, String)>;

/// Runs the command: without arguments checks all rules, with `--list [PATH]` lists the sentences
/// that the rule of prose counts, those of one file or folder alone.
pub fn command(arguments: &[String]) -> Result<()> {
    match arguments {
        [] => run(),
        [flag] if flag == "--list" => list(""),
        [flag, place] if flag == "--list" => list(place),
        _ => bail!("unknown arguments '{}', expected --list [PATH]", arguments.join(" ")),
    }
}

/// Checks all rules and prints every complaint.
pub fn run() -> Result<()> {
    let packages = layers::packages(&metadata()?)?;
    let mut complaints = layers::check(&packages);
    for name in layers::stale(&packages) {
        eprintln!("{name} has a layer in xtask/src/tidy/layers.rs, and is no package");
    }
    let texts = texts()?;
    for (path, content) in &texts {
        complaints.extend(text::check(path, content));
        complaints.extend(files::check(path, content));
        if Path::new(path).extension().is_some_and(|extension| extension == "rs") {
            complaints.extend(source::check(path, content));
            complaints.extend(words::check(path, content));
            complaints.extend(shapes::check(path, content)?);
        }
    }
    let crates = crates(texts);
    complaints.extend(circles(&crates)?);
    complaints.extend(prose(&crates));
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if !complaints.is_empty() {
        bail!("tidy has {} complaints", complaints.len());
    }
    Ok(())
}

/// Prints the sentences that the rule of prose counts, below `place`.
fn list(place: &str) -> Result<()> {
    let mut count = prose::Count::default();
    for (path, content) in texts()?.iter().filter(|(path, _)| path.starts_with(place)) {
        if source_of(path).is_some() {
            count.add(path, content);
        }
    }
    for found in &count.found {
        println!("{found}");
    }
    println!("{}", count.summary());
    Ok(())
}

/// Reports the circles of files in every crate, and complains about the large ones.
fn circles(crates: &BTreeMap<String, Sources>) -> Result<Vec<String>> {
    let (mut complaints, mut count, mut files) = (Vec::new(), 0, 0);
    for (place, sources) in crates {
        let graph = circles::Graph::read(sources).with_context(|| place.clone())?;
        for circle in graph.circles() {
            (count, files) = (count + 1, files + circle.len());
            eprint!("{place}: a circle of {}", graph.describe(&circle));
            if circle.len() > circles::FILES_MAX {
                let (found, most) = (circle.len(), circles::FILES_MAX);
                complaints
                    .push(format!("{place}: a circle of {found} files, expected at most {most}"));
            }
        }
    }
    let least = circles::FILES_SHOWN;
    eprintln!("circles of {least} files and more: {count}, with {files} files");
    Ok(complaints)
}

/// Reports how sentences of documentation begin, and complains about too many.
fn prose(crates: &BTreeMap<String, Sources>) -> Option<String> {
    let mut count = prose::Count::default();
    for (path, content) in crates.values().flatten() {
        count.add(path, content);
    }
    eprintln!("{}", count.summary());
    let too_many = count.percent() > prose::PERCENT_MAX;
    too_many.then(|| format!("{}, expected at most {} %", count.summary(), prose::PERCENT_MAX))
}

/// Groups Rust sources by their crate's `src` folder.
fn crates(texts: Sources) -> BTreeMap<String, Sources> {
    let mut crates = BTreeMap::<String, Sources>::new();
    for (path, content) in texts {
        if let Some((folder, name)) = source_of(&path) {
            crates.entry(folder.to_owned()).or_default().push((name.to_owned(), content));
        }
    }
    crates
}

/// The files of text that are committed or would be, each with its content.
fn texts() -> Result<Sources> {
    let mut texts = Vec::new();
    for path in tracked()? {
        let full = root().join(&path);
        if !full.is_file() {
            continue; // deleted and not yet committed
        }
        let bytes = std::fs::read(&full).with_context(|| format!("cannot read {path}"))?;
        if let Ok(content) = String::from_utf8(bytes) {
            texts.push((path, content));
        }
    }
    Ok(texts)
}

/// The files that are committed or would be.
fn tracked() -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .context("cannot start git, which lists the files to check")?;
    if !output.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    Ok(names.split_terminator('\0').map(str::to_owned).collect())
}
