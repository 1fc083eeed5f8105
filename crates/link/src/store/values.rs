//! Keys and their values, within the limits of a store.

use std::collections::BTreeMap;

use crate::store::{self, KEY_COST_BYTES, KEYS_MAX, STORE_BYTES_MAX};
use crate::{Error, Kind};

/// Entries of a store.
#[derive(Debug, Default)]
pub struct Values {
    entries: BTreeMap<String, Vec<u8>>,
    /// Their part of [`STORE_BYTES_MAX`].
    bytes: usize,
}

impl Values {
    /// Writes a value under a key that has none, or the same.
    ///
    /// # Errors
    /// [`Kind::RankTaken`] if the key has another value; [`Kind::Limit`]; [`Kind::Invalid`].
    pub fn set(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        store::check(key, value)?;
        let bytes = self.bytes + cost_bytes(key, value);
        match self.entries.get(key) {
            Some(found) if found == value => Ok(()),
            Some(found) => Err(store::taken(key, found)),
            None if self.entries.len() >= KEYS_MAX => {
                Err(Error::new(Kind::Limit, format!("the store is full: it has {KEYS_MAX} keys")))
            }
            None if bytes > STORE_BYTES_MAX => {
                let most = format!("at most {STORE_BYTES_MAX}");
                Err(Error::new(Kind::Limit, format!("the store is full: {bytes} bytes, {most}")))
            }
            None => {
                self.entries.insert(key.to_owned(), value.to_vec());
                self.bytes = bytes;
                Ok(())
            }
        }
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.entries.get(key).map(Vec::as_slice)
    }

    /// Removes all keys that begin with `prefix` and a slash; returns their number.
    pub fn remove_under(&mut self, prefix: &str) -> usize {
        let before = self.entries.len();
        self.entries.retain(|key, value| {
            let goes = key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
            self.bytes -= if goes { cost_bytes(key, value) } else { 0 };
            !goes
        });
        before - self.entries.len()
    }
}

fn cost_bytes(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + KEY_COST_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_a_prefix_frees_its_room_and_nothing_else() {
        let mut values = Values::default();
        for key in ["epoch/1/a", "epoch/1/b/c", "epoch/10/a", "epoch/1", "other"] {
            values.set(key, key.as_bytes()).unwrap();
        }
        let before = values.bytes;
        assert_eq!(values.remove_under("epoch/1"), 2);
        assert_eq!(before - values.bytes, 2 * (9 + 11 + KEY_COST_BYTES));
        assert_eq!(values.get("epoch/1/a"), None);
        assert_eq!(values.get("epoch/1"), Some(&b"epoch/1"[..]));
        assert_eq!(values.get("epoch/10/a"), Some(&b"epoch/10/a"[..]));
        values.set("epoch/1/a", b"another").unwrap();
        assert_eq!(values.remove_under("nothing"), 0);
    }
}
