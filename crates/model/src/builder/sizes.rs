//! Sizes within a model's name, such as `gpt:layers=4,width=128`.

use crate::{Error, Kind};

/// Largest size; a larger one is refused as a mistake.
const SIZE_MAX: usize = 1 << 24;

/// The largest number of layers in a name.
const LAYERS_MAX: usize = 1 << 12;

/// Refuses a number of layers that no model has.
///
/// # Errors
/// If there are more than 4096.
pub(super) fn check_layers(layers: usize) -> Result<(), Error> {
    if layers > LAYERS_MAX {
        let message = format!("{layers} layers, expected at most {LAYERS_MAX}");
        return Err(Error::new(Kind::Sizes, message));
    }
    Ok(())
}

/// Refuses a sequence of more tokens than a model has positions.
pub(super) fn check_sequence(sequence: usize, positions: usize) -> Result<(), Error> {
    if sequence > positions {
        let message =
            format!("a sequence has {sequence} tokens, but the model has {positions} positions");
        let hint = format!("give --sequence {positions} or less");
        return Err(Error::new(Kind::Sizes, message).with_hint(hint));
    }
    Ok(())
}

/// Returns the sizes that a model's name contains after `family:`; `None` if the name has another form.
///
/// # Errors
/// If a size is missing, unknown or repeated, or a value is not a number from 1 to 2^24.
pub(super) fn sizes<const N: usize>(
    family: &str,
    name: &str,
    names: [&str; N],
) -> Option<Result<[usize; N], Error>> {
    let text = name.strip_prefix(family)?.strip_prefix(':')?;
    let example = names.map(|name| format!("{name}={}", small(name))).join(",");
    let hint = format!("for instance {family}:{example}");
    Some(values(text, names).map_err(|error| error.with_hint(hint)))
}

/// Returns a value for an example that makes a small model, whatever the other sizes are.
fn small(name: &str) -> usize {
    match name {
        "width" | "positions" => 128,
        "feed_forward" | "vocabulary" => 256,
        "experts" => 8,
        "layers" | "heads" => 4,
        _ => 2,
    }
}

/// Returns the value of every name, each of which must occur once in the text.
fn values<const N: usize>(text: &str, names: [&str; N]) -> Result<[usize; N], Error> {
    let expected = || names.map(|name| format!("{name}=N")).join(",");
    let mistake = |what: String| Error::new(Kind::Name, format!("{what}, expected {}", expected()));
    if text.trim().is_empty() {
        return Err(mistake("there are no sizes".to_owned()));
    }
    let mut found = [None; N];
    for part in text.split(',') {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let place = names.iter().position(|known| *known == name.trim());
        let place = place.ok_or_else(|| mistake(format!("'{name}' is no size of this model")))?;
        let value = value.trim().parse().ok().filter(|value| (1..=SIZE_MAX).contains(value));
        let none = || mistake(format!("'{part}' says no number from 1 to {SIZE_MAX}"));
        let value = value.ok_or_else(none)?;
        if let Some(first) = found[place].replace(value) {
            return Err(mistake(format!("{name} is both {first} and {value}")));
        }
    }
    match found.iter().position(Option::is_none) {
        Some(place) => Err(mistake(format!("'{text}' does not say {}", names[place]))),
        None => Ok(found.map(|value| value.unwrap_or(1))),
    }
}

#[cfg(test)]
mod tests {
    use thinwire_wire::Hint;

    use super::*;

    #[test]
    fn every_size_stands_there_once() {
        assert_eq!(sizes("a", "a:b=2, a=1", ["a", "b"]).unwrap().unwrap(), [1, 2]);
        assert!(sizes("a", "b:b=2, a=1", ["a", "b"]).is_none());
        for (text, expected) in [
            ("a=1", "'a=1' does not say b, expected a=N,b=N"),
            ("a=1,b=0", "'b=0' says no number from 1 to 16777216, expected a=N,b=N"),
            ("a=1,c=2", "'c' is no size of this model, expected a=N,b=N"),
            ("a=1,a=2", "a is both 1 and 2, expected a=N,b=N"),
            ("", "there are no sizes, expected a=N,b=N"),
        ] {
            assert_eq!(values(text, ["a", "b"]).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn what_a_hint_says_is_a_model() {
        for family in ["gpt:", "llama:", "moe:", "bert:", "bytes:"] {
            let error = crate::named(family, 1, 4).unwrap_err();
            let expected = format!("{family} there are no sizes, expected layers=N,width=N,");
            assert!(error.to_string().starts_with(&expected), "{error}");
            let example = error.hint().and_then(|hint| hint.strip_prefix("for instance "));
            assert!(crate::named(example.unwrap(), 1, 4).is_ok(), "{error:?}");
        }
    }
}
