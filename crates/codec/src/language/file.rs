//! A codec's text in a file, named like any other codec.
//!
//! `./mine.codec:tau=0.02,size=64` is a file and parameters. The codec calls itself by its path, the
//! fingerprint of its text and its parameters, `./mine.codec#1f2e3d4c:tau=0.02`: ranks whose files
//! differ have codecs of different names, and a file that has changed since is refused.

use std::io::Read;

use super::{SOURCE_BYTES_MAX, Text, compile, fingerprint};
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
    let text = read(path)
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

/// The text in a file that has an end, and not a far one.
fn read(path: &str) -> Result<String, String> {
    // Before it is opened: a pipe opens only when somebody writes.
    let found = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !found.is_file() {
        let kind = if found.is_dir() { "a folder" } else { "a pipe or device" };
        return Err(format!("it is {kind}, expected a regular file"));
    }
    if found.len() > SOURCE_BYTES_MAX as u64 {
        return Err(format!("it has {} bytes, at most {SOURCE_BYTES_MAX}", found.len()));
    }
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    // It may grow meanwhile; a byte more is seen to be too long.
    let mut limited = file.take(SOURCE_BYTES_MAX as u64 + 1);
    limited.read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok(text)
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
