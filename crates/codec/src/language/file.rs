//! A codec's text in a file, named like any other codec.
//!
//! `./mine.codec:tau=0.02,size=64` is a file and parameters. The codec calls itself by its path, the
//! fingerprint of its text and its parameters, `./mine.codec#1f2e3d4c:tau=0.02`: ranks whose files
//! differ have codecs of different names, and a file that has changed since is refused.

use super::{Text, compile, fingerprint};
use crate::{Choice, Error, Kind};

/// Whether a codec's name is that of a file.
pub(crate) fn is_file(name: &str) -> bool {
    path(name).ends_with(".codec")
}

/// The codec in the file that `name` begins with.
///
/// # Errors
/// If the file cannot be read or has changed, a parameter is none, or the codec is refused.
pub(crate) fn load(name: &str) -> Result<Choice, Error> {
    let path = path(name);
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::new(Kind::Program, format!("cannot read codec {path}: {error}")))?;
    let (expected, parameters) = match name[path.len()..].split_once(':') {
        Some((expected, parameters)) => (expected, Some(parameters)),
        None => (&name[path.len()..], None),
    };
    let parameters = parameters.map_or(Ok(Vec::new()), |found| assignments(path, found))?;
    let text = Text { path, source: &text, parameters: &parameters };
    let Some(expected) = expected.strip_prefix('#') else { return compile(&text) };
    let found = fingerprint(text.source);
    if found != expected {
        let context =
            format!("{path} has changed: its fingerprint is {found}, expected {expected}");
        return Err(Error::new(Kind::Program, context));
    }
    // Whoever knows the fingerprint has compiled the text before.
    super::trust(&text)
}

/// What stands before the fingerprint and the parameters.
fn path(name: &str) -> &str {
    let end = name.find(".codec").map_or(name.len(), |at| at + ".codec".len());
    let rest = &name[end..];
    if rest.is_empty() || rest.starts_with([':', '#']) { &name[..end] } else { name }
}

/// `name=value,name=value`
fn assignments(path: &str, found: &str) -> Result<Vec<(String, f64)>, Error> {
    let assignment = |part: &str| {
        let (name, value) = part.split_once('=')?;
        let value: f64 = value.parse().ok()?;
        value.is_finite().then(|| (name.to_owned(), value))
    };
    let parse = |part| {
        assignment(part).ok_or_else(|| {
            let context = format!("{path} parameter '{part}', expected NAME=NUMBER");
            Error::new(Kind::Parameter, context)
        })
    };
    found.split(',').map(parse).collect()
}
