//! Fields of messages, as bytes: little-endian, texts behind their length in two bytes.

/// Appends a text of at most 65,535 bytes.
pub fn write_text(text: &str, bytes: &mut Vec<u8>) {
    let length = u16::try_from(text.len()).expect("texts are cut before");
    bytes.extend(length.to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// Fields that were not read yet.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*array)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a text of at most `bytes_max` bytes.
    pub fn text(&mut self, bytes_max: usize) -> Option<String> {
        let length = usize::from(self.array().map(u16::from_le_bytes)?);
        let (text, rest) = self.rest.split_at_checked(length).filter(|_| length <= bytes_max)?;
        self.rest = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    /// Returns all bytes that are left.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Ends, if nothing is left.
    pub fn end(self) -> Option<()> {
        self.rest.is_empty().then_some(())
    }
}
