//! Numbers in messages, and fields of raw tables.

use serde::{Deserialize, Deserializer, de};

/// Largest number of a push, entry or clock; sums of two such numbers fit in 64 bits.
pub const NUMBER_MAX: u64 = 1 << 62;

/// Reads a number of at most [`NUMBER_MAX`], or no number: `#[serde(deserialize_with = "number")]`.
///
/// # Errors
/// If the number is larger.
pub fn number<'de, D: Deserializer<'de>, N: Deserialize<'de> + Copy + Into<Option<u64>>>(
    deserializer: D,
) -> Result<N, D::Error> {
    let number = N::deserialize(deserializer)?;
    let found = number.into().filter(|number| *number > NUMBER_MAX);
    found.map_or(Ok(number), |found| {
        Err(de::Error::custom(format!("number {found}, expected at most {NUMBER_MAX}")))
    })
}

/// Fields of raw tables that have not been read yet, little-endian; each is `None` if too few bytes are left.
#[derive(Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// Reads `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        self.0.split_off(..count)
    }

    /// Reads an integer of four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    /// Reads a number of items, of at least `bytes` bytes each, which the remaining bytes can hold.
    pub fn count(&mut self, bytes: usize) -> Option<usize> {
        let count = self.u32()? as usize;
        (count <= self.0.len() / bytes).then_some(count)
    }

    /// Checks that no byte is left.
    pub fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Appends a number of items as four bytes.
pub fn write_count(count: usize, bytes: &mut Vec<u8>) {
    let count = u32::try_from(count).expect("fewer than 2^32 items");
    bytes.extend(count.to_le_bytes());
}
