//! Texts of codecs in files, named like any other codec.
//!
//! `./mine.codec:tau=0.02,size=64` is a file and parameters; `./mine.codec#1f2e3d4c` is a file whose
//! text must have this fingerprint.

use std::io::Read;

use super::{SOURCE_BYTES_MAX, Text, compile, fingerprint};
use crate::shown::{Number, short};
use crate::{Choice, Error, Kind};

/// Returns whether the name of a codec is that of a file.
pub(crate) fn is_file(name: &str) -> bool {
    path(name).ends_with(".codec")
}

/// Loads the codec in the file that `name` begins with.
///
/// # Errors
/// If the file cannot be read or has changed, a parameter is invalid, or the codec is refused.
pub(crate) fn load(name: &str) -> Result<Choice, Error> {
    let path = path(name);
    let text = read(path)
        .map_err(|error| Error::new(Kind::File, format!("cannot read codec {path}: {error}")))?;
    let (expected, parameters) = match name[path.len()..].split_once(':') {
        Some((expected, parameters)) => (expected, Some(parameters)),
        None => (&name[path.len()..], None),
    };
    let parameters = parameters.map_or(Ok(Vec::new()), |found| assignments(path, found))?;
    let text = Text { path, source: &text, parameters: &parameters };
    let found = fingerprint(text.source);
    match expected.strip_prefix('#') {
        Some(expected) if found != expected => {
            let context =
                format!("{path} has changed: its fingerprint is {found}, expected {expected}");
            Err(Error::new(Kind::File, context))
        }
        _ => compile(&text),
    }
}

/// Reads the text in a regular file of bounded size.
fn read(path: &str) -> Result<String, String> {
    // Checked before opening: opening a pipe blocks until another process writes.
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
    // The file may grow meanwhile: one byte more than allowed is read and then refused as too long.
    let mut limited = file.take(SOURCE_BYTES_MAX as u64 + 1);
    limited.read_to_string(&mut text).map_err(|error| error.to_string())?;
    // Some editors begin a text with a mark of its byte order.
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Returns the path before fingerprint and parameters. `.codec` and `#` may also occur within names
/// of files and folders.
fn path(name: &str) -> &str {
    let mut ends = name.match_indices(".codec").map(|(at, found)| at + found.len());
    let is_end = |end: &usize| {
        let rest = &name[*end..];
        rest.is_empty() || rest.starts_with(':') || rest.strip_prefix('#').is_some_and(is_print)
    };
    ends.find(is_end).map_or(name, |end| &name[..end])
}

/// Returns whether a text is a fingerprint, with parameters or not.
fn is_print(text: &str) -> bool {
    let print = text.split(':').next().unwrap_or_default();
    print.len() == 8 && print.bytes().all(|letter| letter.is_ascii_hexdigit())
}

/// Parses `name=value,name=value`.
fn assignments(path: &str, found: &str) -> Result<Vec<(String, f64)>, Error> {
    let values = found.split(',').map(|part| parsed(path, part));
    let values = values.collect::<Result<Vec<_>, Error>>()?;
    for (at, (name, value)) in values.iter().enumerate() {
        if let Some((_, before)) = values[..at].iter().find(|(other, _)| other == name) {
            let context = format!(
                "{path} parameter {name} is given twice, as {} and {}",
                Number(*before),
                Number(*value)
            );
            return Err(Error::new(Kind::Parameter, context));
        }
    }
    Ok(values)
}

fn parsed(path: &str, part: &str) -> Result<(String, f64), Error> {
    let assignment = |part: &str| {
        let (name, value) = part.split_once('=')?;
        let value: f64 = value.parse().ok()?;
        value.is_finite().then(|| (name.to_owned(), value))
    };
    assignment(part).ok_or_else(|| {
        let context = format!("{path} parameter '{}', expected NAME=NUMBER", short(part));
        Error::new(Kind::Parameter, context)
    })
}
