//! Ids in JSON as sixteen lower-case hexadecimal digits, the form in which messages show them.

use serde::{Deserialize, Deserializer, Serializer};
use thinwire_member::Id;

pub fn serialize<S: Serializer>(id: &Id, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| serde::de::Error::custom(format!("'{text}' is no id")))
}

/// Parses sixteen lower-case hexadecimal digits.
pub fn parse(text: &str) -> Option<Id> {
    let id = u64::from_str_radix(text, 16).ok().map(Id)?;
    (id.to_string() == text).then_some(id)
}
