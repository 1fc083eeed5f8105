//! The site: the pages of `docs` and the reference of the package, built by Sphinx.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::interpreter::Interpreter;
use super::package::Package;
use crate::process::{root, succeed};

/// Builds the site into `target`, with the packages of Sphinx in `sphinx`; a warning is an error.
///
/// It runs without the test environment, because the frameworks there take longer to import than all pages to build.
pub fn build(python: &Interpreter, package: &Package, sphinx: &Path) -> Result<()> {
    let path = std::env::join_paths([sphinx, &package.site]).context("joining PYTHONPATH")?;
    let mut python = Command::new(&python.program);
    python.current_dir(root()).env("PYTHONDONTWRITEBYTECODE", "1");
    python.args(["-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "docs"]);
    succeed(python.arg(root().join("target/html")).env("PYTHONPATH", path))
}
