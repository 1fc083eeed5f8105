//! JSON in which every key occurs once per object.
//!
//! The usual parser keeps the last of two fields with the same name, so that other readers could understand a
//! file differently.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::check_name;

/// Largest number of letters of a field that an error repeats.
const LETTERS_MAX: usize = 60;

/// A value in which no object has two fields with the same name.
pub(super) struct Strict(pub Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strict, D::Error> {
        deserializer.deserialize_any(Reader).map(Strict)
    }
}

/// Refuses a text that is not JSON, or in which an object has two fields with the same name.
///
/// # Errors
/// The field and its position, in one line.
pub fn check_keys(json: &[u8]) -> Result<(), String> {
    let read: Result<Strict, _> = serde_json::from_slice(json);
    read.map(|_| ()).map_err(|error| error.to_string())
}

/// Refuses texts and fields with characters that control a terminal.
pub(super) fn check_names(value: &Value) -> Result<(), crate::error::Error> {
    match value {
        Value::String(text) => check_name(text),
        Value::Array(values) => values.iter().try_for_each(check_names),
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            check_name(name)?;
            check_names(value)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = sequence.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, Strict(value))) = entries.next_entry::<String, Strict>()? {
            if map.contains_key(&key) {
                let key: String = key.chars().take(LETTERS_MAX).collect();
                return Err(A::Error::custom(format_args!("the field {key:?} is given twice")));
            }
            map.insert(key, value);
        }
        Ok(map.into())
    }
}
