//! The rules that no compiler checks.
//!
//! Each rule is a pure function from what was read to a list of complaints; this file does the
//! reading: the dependency graph from `cargo metadata`, the list of files from git.

mod files;
mod layers;
mod source;
mod text;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::section::{metadata, root};

/// Checks all rules and prints every complaint.
pub fn run() -> Result<()> {
    let mut complaints = layers::check(&layers::packages(&metadata()?)?);
    for path in tracked()? {
        let full = root().join(&path);
        if !full.is_file() {
            continue; // deleted and not yet committed
        }
        let bytes = std::fs::read(&full).with_context(|| format!("cannot read {path}"))?;
        let Ok(content) = String::from_utf8(bytes) else { continue };
        complaints.extend(text::check(&path, &content));
        complaints.extend(files::check(&path, &content));
        if Path::new(&path).extension().is_some_and(|extension| extension == "rs") {
            complaints.extend(source::check(&path, &content));
        }
    }
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if !complaints.is_empty() {
        bail!("tidy has {} complaints", complaints.len());
    }
    Ok(())
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
