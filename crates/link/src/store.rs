//! Rendezvous stores, in which ranks that do not know each other yet find each other's addresses.
//!
//! A store holds small values under short keys. A key is written only once, and keeps its first value,
//! so two processes cannot both be rank 1. The store is used when a job starts, and not afterwards.

mod key_value;
pub mod mem;
pub(crate) mod message;
pub mod tcp;
mod values;

use std::time::Duration;

pub use key_value::KeyValueService;

use crate::{Error, Kind};

/// The longest key in bytes.
pub const KEY_BYTES_MAX: usize = 200;
/// The longest value in bytes.
pub const VALUE_BYTES_MAX: usize = 16 << 10;
/// The most keys of one store.
pub const KEYS_MAX: usize = 1 << 16;
/// The most memory in bytes that the values of one store may take, including their keys and
/// [`KEY_COST_BYTES`] for each.
pub const STORE_BYTES_MAX: usize = 32 << 20;
/// The memory that a key costs in addition to the bytes of its name and value.
pub const KEY_COST_BYTES: usize = 128;

/// A place for small values that all ranks of a job can reach.
pub trait Store: Send + Sync {
    /// Writes a value under a key that has none yet.
    ///
    /// # Errors
    /// [`Kind::RankTaken`] if the key has another value; [`Kind::Limit`] if key, value or store are too
    /// large.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error>;

    /// Waits for the value of a key; if `timeout` is zero, checks once.
    ///
    /// # Errors
    /// [`Kind::Timeout`] if the key is not written in time.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, Error>;
}

/// Refuses keys and values that no store accepts. Keys are words of `a-z 0-9 . _ -` between slashes.
fn check(key: &str, value: &[u8]) -> Result<(), Error> {
    let word = |word: &str| {
        let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        !word.is_empty() && !word.starts_with('.') && word.chars().all(letters)
    };
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::new(
            Kind::Limit,
            format!("key of {} bytes, at most {KEY_BYTES_MAX} allowed", key.len()),
        ));
    }
    if !key.split('/').all(word) {
        return Err(Error::new(Kind::Invalid, format!("'{}' is no key", key.escape_debug())));
    }
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::new(
            Kind::Limit,
            format!("value of {} bytes, at most {VALUE_BYTES_MAX} allowed", value.len()),
        ));
    }
    Ok(())
}

fn taken(key: &str, found: &[u8]) -> Error {
    let found = String::from_utf8_lossy(found);
    let context = format!("{key} is taken already, by {}", found.escape_debug());
    Error::new(Kind::RankTaken, context)
}

fn missing(key: &str, timeout: Duration) -> Error {
    Error::new(
        Kind::Timeout,
        format!("no process wrote {key} within {:.1} s", timeout.as_secs_f64()),
    )
}
