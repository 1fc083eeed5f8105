//! Texts in messages: a length in two bytes, then as many bytes of UTF-8.

use thinwire_member::Fields;

/// Appends a text of at most 65,535 bytes.
pub fn write_text(text: &str, bytes: &mut Vec<u8>) {
    let length = u16::try_from(text.len()).expect("texts are cut before");
    bytes.extend(length.to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// Reads a text of at most `bytes_max` bytes.
pub fn read_text(fields: &mut Fields<'_>, bytes_max: usize) -> Option<String> {
    let length = usize::from(fields.u16().ok()?);
    let text = fields.bytes(length).ok().filter(|_| length <= bytes_max)?;
    String::from_utf8(text.to_vec()).ok()
}
