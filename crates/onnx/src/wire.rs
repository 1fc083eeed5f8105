//! The protobuf form of a file, checked before it is parsed.
//!
//! The parser selects fields by number and ignores their wire types, and it recurses into nested messages, so
//! a malicious file could exhaust the stack. Here every field that the parser reads must have the wire type
//! of the format. So this check, which does not recurse, sees the same messages as the parser.

mod field;

use thinwire_model::{Error, Kind};

use crate::none;
use field::{BYTES, FIXED32, FIXED64, Form, Message, VARINT, form};

/// The deepest nesting of messages that is allowed: deeper than in any real file.
const DEPTH_MAX: usize = 64;
/// Largest number of messages, more than any real file has: one takes two bytes of a file, and about a
/// hundred in memory.
const MESSAGES_MAX: usize = 1 << 21;

/// A message that still has to be checked.
struct Waiting<'a> {
    message: Message,
    reader: Reader<'a>,
    depth: usize,
}

/// Refuses bytes that are not in the format, and messages that are nested too deeply or are too many.
pub(crate) fn check(bytes: &[u8]) -> Result<(), Error> {
    let reader = Reader { bytes, offset: 0 };
    let mut waiting = vec![Waiting { message: Message::Model, reader, depth: 0 }];
    let mut messages = 0;
    while let Some(Waiting { message, mut reader, depth }) = waiting.pop() {
        if depth > DEPTH_MAX {
            return Err(file(format!("messages are nested more than {DEPTH_MAX} deep")));
        }
        while !reader.bytes.is_empty() {
            if let Some((message, reader)) = inner(message, &mut reader)? {
                messages += 1;
                waiting.push(Waiting { message, reader, depth: depth + 1 });
            }
            if messages > MESSAGES_MAX {
                return Err(file(format!("more than {MESSAGES_MAX} messages")));
            }
        }
    }
    Ok(())
}

/// Reads a field, and returns the message in it, if there is one.
fn inner<'a>(
    message: Message,
    reader: &mut Reader<'a>,
) -> Result<Option<(Message, Reader<'a>)>, Error> {
    let at = reader.offset;
    let tag = reader.varint()?;
    let (number, wire) = (tag >> 3, tag & 7);
    if number == 0 || tag > u64::from(u32::MAX) {
        return Err(none(&format!("tag {tag} at offset {at} is not that of a field")));
    }
    let form = form(message, number);
    let expected = form.map_or(&[VARINT, FIXED64, BYTES, FIXED32][..], Form::wires);
    if !expected.contains(&wire) {
        let expected = expected.iter().map(u64::to_string).collect::<Vec<_>>().join(" or ");
        let place = format!("field {number} of a message {message:?} at offset {at}");
        return Err(none(&format!("{place} has wire type {wire}, expected {expected}")));
    }
    let value = match wire {
        VARINT => return reader.varint().map(|_| None),
        FIXED64 => reader.take(8)?,
        FIXED32 => reader.take(4)?,
        _ => {
            let length = reader.varint()?;
            reader.take(length)?
        }
    };
    let size = form.map_or(1, Form::size);
    if wire == BYTES && !value.bytes.len().is_multiple_of(size) {
        let length = value.bytes.len();
        let found = format!("{length} bytes at offset {}", value.offset);
        return Err(none(&format!("{found}, expected numbers of {size}")));
    }
    Ok(match form {
        Some(Form::Inner(message)) => Some((message, value)),
        _ => None,
    })
}

/// Bytes of a message that were not read yet, and their position in the file.
struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    /// Returns the next bytes.
    fn take(&mut self, length: u64) -> Result<Reader<'a>, Error> {
        let (offset, left) = (self.offset, self.bytes.len());
        let parts = usize::try_from(length).ok().and_then(|n| self.bytes.split_at_checked(n));
        let (bytes, rest) = parts.ok_or_else(|| {
            none(&format!("cut off at offset {offset}: {length} bytes expected, {left} left"))
        })?;
        *self = Reader { bytes: rest, offset: offset + bytes.len() };
        Ok(Reader { bytes, offset })
    }

    /// Reads a number with seven bits per byte, the lowest first.
    fn varint(&mut self) -> Result<u64, Error> {
        let (offset, mut value) = (self.offset, 0);
        for shift in (0..64).step_by(7) {
            let byte = u64::from(self.take(1)?.bytes[0]);
            if shift == 63 && byte > 1 {
                break;
            }
            value |= (byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(none(&format!("the number at offset {offset} has more than 64 bits")))
    }
}

fn file(message: String) -> Error {
    Error::new(Kind::File, message)
}
