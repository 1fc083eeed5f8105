//! JSON in which every key of an object stands once.
//!
//! Of two equal keys one reader takes the first and another the last, so such a text means two things.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Refuses a JSON text that is none, or in which an object has a key twice.
///
/// # Errors
/// The place and the key, in one line.
pub fn check_keys(json: &[u8]) -> Result<(), String> {
    let checked: Result<Checked, _> = serde_json::from_slice(json);
    checked.map(|_| ()).map_err(|error| error.to_string().replace('\n', " "))
}

/// Any value, forgotten at once.
struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Checked, D::Error> {
        deserializer.deserialize_any(Checked)
    }
}

impl<'de> Visitor<'de> for Checked {
    type Value = Checked;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Checked, A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            let _: Checked = map.next_value()?;
            if let Some(key) = seen.replace(key) {
                let message = format!("key '{key}' is given twice, expected once");
                return Err(A::Error::custom(message));
            }
        }
        Ok(Checked)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Checked, A::Error> {
        while values.next_element::<Checked>()?.is_some() {}
        Ok(Checked)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_str<E>(self, _: &str) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_unit<E>(self) -> Result<Checked, E> {
        Ok(Checked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_stands_twice_is_named_wherever_it_is() {
        assert_eq!(
            check_keys(br#"{"a": [1, -2, 0.5, null, true, "x", {"a": {}}], "b": 0}"#),
            Ok(())
        );
        for json in [r#"{"a": 1, "a": 1}"#, r#"[{"b": [{"a": 0, "\u0061": {}}]}]"#] {
            let error = check_keys(json.as_bytes()).unwrap_err();
            assert!(
                error.starts_with("key 'a' is given twice, expected once at line 1"),
                "{error}"
            );
        }
        assert!(check_keys(b"{").is_err());
        assert!(check_keys(&[b'['; 100_000]).is_err());
    }
}
