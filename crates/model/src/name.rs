//! Names from files, and patterns of names.

use std::collections::HashSet;

use crate::{Error, Kind};

/// Largest number of letters of a name that an error repeats.
const LETTERS_MAX: usize = 60;

/// Refuses a name that could control the terminal on which it is shown.
///
/// # Errors
/// If it contains control characters.
pub fn check_name(name: &str) -> Result<(), Error> {
    if !name.contains(char::is_control) {
        return Ok(());
    }
    let shown: String = name.chars().take(LETTERS_MAX).flat_map(char::escape_debug).collect();
    let message = format!("the name '{shown}' has control characters, expected none");
    Err(Error::new(Kind::Name, message))
}

/// Refuses equal names; `what` is the plural noun for the named things, for the error.
///
/// # Errors
/// If a name occurs twice.
pub fn check_distinct<'a>(
    kind: Kind,
    what: &str,
    mut names: impl Iterator<Item = &'a str>,
) -> Result<(), Error> {
    let mut seen = HashSet::new();
    match names.find(|name| !seen.insert(*name)) {
        None => Ok(()),
        Some(name) => {
            let message = format!("two {what} are called '{name}', expected a name for each");
            Err(Error::new(kind, message))
        }
    }
}

/// Returns whether a name matches a pattern in which `*` stands for any letters.
pub fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let (parts, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut name) = name.strip_prefix(first).and_then(|name| name.strip_suffix(last)) else {
        return false;
    };
    // Each part where it is first found leaves the most for those after it.
    parts.split('*').all(|part| match name.find(part) {
        Some(at) => {
            name = &name[at + part.len()..];
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_letters() {
        for (pattern, name, expected) in [
            ("block.*.mlp.up", "block.12.mlp.up", true),
            ("block.*.mlp.up", "block.12.mlp.down", false),
            ("*", "loss", true),
            ("*.up", "block.0.mlp.up", true),
            ("block.1*", "block.2.mlp", false),
            ("loss", "loss", true),
            ("lo*oss", "loss", false),
            ("a*b*b*c", "a.b.c", false),
            ("a*b*b*c", "abbc", true),
            ("**a**", "a", true),
            (&format!("{}z", "*a".repeat(40)), &"a".repeat(200), false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
