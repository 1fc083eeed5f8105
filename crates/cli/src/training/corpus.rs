//! The text to learn from: the user's, or what this repository itself holds.

use std::path::Path;

use anyhow::Result;
use thinwire_train::Corpus;

/// The sources and docs that this program was built with.
const OWN: &str = include_str!(concat!(env!("OUT_DIR"), "/corpus.txt"));

/// The text at `path`, or our own, with its name.
///
/// # Errors
/// If there is no such text.
pub fn read(path: Option<&Path>) -> Result<(String, Corpus)> {
    Ok(match path {
        Some(path) => (path.display().to_string(), Corpus::from_path(path)?),
        None => ("thinwire's own sources and docs".to_owned(), Corpus::from_text(OWN.as_bytes())?),
    })
}
