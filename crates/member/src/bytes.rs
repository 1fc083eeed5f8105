//! Fields of raw payloads, as bytes: little-endian, lists behind their length.

use crate::Corrupt;

/// Fields that have not been read yet: little-endian integers, and bytes whose number is known.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Returns the fields of a message.
    pub fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let bytes = self.bytes(N)?;
        Ok(bytes.try_into().expect("as many bytes as asked for"))
    }

    /// Reads `count` bytes.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Corrupt> {
        let short = Corrupt::Short { found: self.rest.len(), expected: count };
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(short)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Returns all bytes that are left.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Reads an integer of one byte.
    ///
    /// # Errors
    /// If none is left.
    pub fn u8(&mut self) -> Result<u8, Corrupt> {
        self.array().map(u8::from_le_bytes)
    }

    /// Reads an integer of two bytes.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn u16(&mut self) -> Result<u16, Corrupt> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads an integer of four bytes.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn u32(&mut self) -> Result<u32, Corrupt> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads an integer of eight bytes.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn u64(&mut self) -> Result<u64, Corrupt> {
        self.array().map(u64::from_le_bytes)
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// If any byte is.
    pub fn end(self) -> Result<(), Corrupt> {
        match self.rest.len() {
            0 => Ok(()),
            found => Err(Corrupt::Long { found }),
        }
    }
}
