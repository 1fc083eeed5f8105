//! Numbers drawn from bytes, as long as there are any; then zeros.

/// The rest of an input.
#[derive(Clone, Debug)]
pub(crate) struct Draw<'a> {
    bytes: &'a [u8],
}

impl<'a> Draw<'a> {
    /// The whole input.
    pub fn new(bytes: &'a [u8]) -> Draw<'a> {
        Draw { bytes }
    }

    /// Whether nothing is left.
    pub fn is_over(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next so many bytes, zeros behind the end.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.slice(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// The next so many bytes, fewer at the end.
    pub fn slice(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(length.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// All that is left.
    pub fn rest(self) -> &'a [u8] {
        self.bytes
    }
}
