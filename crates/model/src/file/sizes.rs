//! Sizes that grow with the batch.
//!
//! A number that is 3 for a batch of one and 6 for a batch of two is written `{"batch": 3}`, and a factor
//! such as one over the number of tokens `{"one_over": {"batch": 128}}`. Everything else is the same for
//! every batch.

use serde_json::{Map, Value, json};

use crate::{Error, Kind};

/// The largest whole number in a file: products of two such numbers, and of one with a sum of eight, do not
/// overflow.
pub(super) const NUMBER_MAX: u64 = 1 << 30;

/// The batches for which a model is built to find what grows.
pub(super) const SEEN: [usize; 2] = [1, 2];

/// Returns one value for those of both batches of [`SEEN`].
///
/// # Errors
/// If they differ other than in proportion to the batch.
pub(super) fn merge(once: Value, twice: Value) -> Result<Value, Error> {
    match (once, twice) {
        (once, twice) if once == twice => Ok(once),
        (Value::Array(once), Value::Array(twice)) if once.len() == twice.len() => {
            let pairs = once.into_iter().zip(twice);
            Ok(Value::Array(pairs.map(|(a, b)| merge(a, b)).collect::<Result<_, _>>()?))
        }
        (Value::Object(once), Value::Object(mut twice)) if once.len() == twice.len() => {
            let pair = |(key, a): (String, Value)| {
                let b = twice.remove(&key).unwrap_or_default();
                Ok((key, merge(a, b)?))
            };
            Ok(Value::Object(once.into_iter().map(pair).collect::<Result<Map<_, _>, Error>>()?))
        }
        (once, twice) => grown(&once, &twice).ok_or_else(|| {
            let message = format!(
                "{once} for a batch of 1 and {twice} for 2, expected the same number, \
                    twice or half of it"
            );
            Error::new(Kind::Sizes, message)
        }),
    }
}

/// Expresses a number in terms of the batch, if it grows with it.
fn grown(once: &Value, twice: &Value) -> Option<Value> {
    if let (Some(once), Some(twice)) = (once.as_u64(), twice.as_u64()) {
        return (once.checked_mul(2)? == twice).then(|| json!({ "batch": once }));
    }
    let (once, twice) = (once.as_f64()?, twice.as_f64()?);
    let count = (1.0 / once).round();
    let exact = count >= 1.0 && 1.0 / count == once && 1.0 / (2.0 * count) == twice;
    exact.then(|| json!({ "one_over": { "batch": count as u64 } }))
}

/// Returns the value for a batch.
///
/// # Errors
/// If a number is too large to be a size.
pub(super) fn fill(value: &Value, batch: usize) -> Result<Value, Error> {
    match value {
        Value::Array(values) => values.iter().map(|value| fill(value, batch)).collect(),
        Value::Object(fields) => match one_field(fields) {
            Some(("batch", number @ Value::Number(_))) => grow(number, batch),
            Some(("one_over", inner)) if inner.is_object() => match fill(inner, batch)?.as_u64() {
                Some(count @ 1..) => Ok(json!(1.0 / count as f64)),
                _ => Err(wrong("one over", inner)),
            },
            _ => {
                let filled =
                    |(key, value): (&String, &Value)| Ok((key.clone(), fill(value, batch)?));
                fields.iter().map(filled).collect()
            }
        },
        Value::Number(number) if number.as_u64().is_some_and(|n| n > NUMBER_MAX) => {
            Err(large(number))
        }
        other => Ok(other.clone()),
    }
}

fn one_field(fields: &Map<String, Value>) -> Option<(&str, &Value)> {
    let (key, value) = fields.iter().next()?;
    (fields.len() == 1).then_some((key, value))
}

fn grow(number: &Value, batch: usize) -> Result<Value, Error> {
    let count = number.as_u64().filter(|count| *count > 0);
    let count = count.ok_or_else(|| wrong("the batch times", number))?;
    match count.checked_mul(batch as u64) {
        Some(grown) if grown <= NUMBER_MAX => Ok(json!(grown)),
        _ => Err(large(format!("{count} × {batch}"))),
    }
}

fn wrong(what: &str, found: &Value) -> Error {
    let message = format!("{what} {found}, expected a whole number of at least 1");
    Error::new(Kind::Sizes, message)
}

fn large(number: impl std::fmt::Display) -> Error {
    Error::new(Kind::Sizes, format!("the number {number}, expected at most {NUMBER_MAX}"))
}
