//! Numbers drawn from the bytes of an input; zeros when no bytes are left.

/// Bytes of an input that were not drawn yet.
#[derive(Clone, Debug)]
pub(crate) struct Draw<'a> {
    bytes: &'a [u8],
}

impl<'a> Draw<'a> {
    /// Starts at the beginning of an input.
    pub fn new(bytes: &'a [u8]) -> Draw<'a> {
        Draw { bytes }
    }

    /// Returns whether no bytes are left.
    pub fn is_over(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Draws `N` bytes, zeros behind the end.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.slice(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// Draws `length` bytes, fewer at the end.
    pub fn slice(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(length.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    /// Draws one byte.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Draws a number of two bytes, little-endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Draws a number of eight bytes, little-endian.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Returns all bytes that are left.
    pub fn rest(self) -> &'a [u8] {
        self.bytes
    }
}
