//! Mutations of protobuf messages that keep them well-formed messages.
//!
//! Random changes of bytes break the lengths of all enclosing messages, so a parser would mostly see
//! truncated files. Here a message is read as fields, without a schema. One field of one nested message
//! is changed in its number, wire type or content, and all enclosing lengths are corrected. Law: fields
//! without a change are written as they were read.

use crate::draw::Draw;

/// Wire types: a number of variable length, eight bytes, bytes behind their length, four bytes.
const VARINT: u8 = 0;
const EIGHT: u8 = 1;
const BYTES: u8 = 2;
const FOUR: u8 = 5;
/// Largest number of times that a field is put into itself at once.
const NESTED: usize = 80;
/// Bytes from which a field is nested no further.
const BYTES_MAX: usize = 1 << 16;

/// Field of a message: number, wire type, and content without its length.
#[derive(Clone, Debug, PartialEq)]
struct Field {
    number: u64,
    kind: u8,
    content: Vec<u8>,
    /// Wire type that is written instead of the true one.
    said: Option<u8>,
}

impl Field {
    fn set(&mut self, kind: u8, content: Vec<u8>) {
        (self.kind, self.content) = (kind, content);
    }
}

/// Change of a field: its kind, and numbers that it may use.
type Change = (u8, [u8; 4]);

/// Returns a message with one change, which the bytes of `choice` select. Bytes that are not a message
/// are returned unchanged.
pub fn mutate(message: &[u8], choice: [u8; 8]) -> Vec<u8> {
    let mut draw = Draw::new(&choice);
    let (path, change) = (usize::from(draw.u16()), (draw.u8(), draw.array()));
    changed(message, path, change, message).unwrap_or_else(|| message.to_vec())
}

/// Returns a message with a change of one of its fields or of a nested field; `None` if the bytes are not
/// a message. The path selects the field; it becomes shorter with each message that it enters.
fn changed(message: &[u8], path: usize, change: Change, whole: &[u8]) -> Option<Vec<u8>> {
    let mut fields = parse(message)?;
    if fields.is_empty() {
        let number = 1 + u64::from(change.0 & 31);
        return Some(write(&[Field { number, kind: VARINT, content: vec![1], said: None }]));
    }
    let (at, path) = (path % fields.len(), path / fields.len());
    let Field { kind, content, .. } = &fields[at];
    let enters = path % 4 > 0 && *kind == BYTES && !content.is_empty();
    match enters.then(|| changed(content, path / 2, change, whole)).flatten() {
        Some(content) => fields[at].content = content,
        None => alter(&mut fields, at, change, whole),
    }
    Some(write(&fields))
}

/// Changes, removes or repeats the field at a place, or swaps it with another one.
fn alter(fields: &mut Vec<Field>, at: usize, (how, value): Change, whole: &[u8]) {
    let [a, b, c, d] = value;
    let other = usize::from(a) % fields.len();
    let copy = fields[other].clone();
    let field = &mut fields[at];
    match how % 13 {
        0 => retype(field, a),
        1 => field.number = 1 + u64::from(a) % 32,
        2 => field.set(VARINT, varint(u64::from_le_bytes([a, b, c, d, a, b, c, d]))),
        3 => field.set(VARINT, varint(a.into())),
        4 => field.set(VARINT, varint(u64::from(a).wrapping_neg())),
        5 => drop(fields.remove(at)),
        6 => fields.insert(at, fields[at].clone()),
        7 => fields.swap(at, other),
        8 => nest(field, 1 + usize::from(a) % NESTED, (b & 1 == 1).then_some(c % 8)),
        9 => {
            let from = usize::from(u16::from_le_bytes([a, b])) % whole.len();
            let piece = whole[from..].iter().take(c.into());
            field.set(BYTES, piece.copied().collect());
        }
        10 => field.set(copy.kind, copy.content),
        11 => field.said = Some(a % 8),
        _ => field.set(BYTES, value[..usize::from(d) % 4].to_vec()),
    }
}

/// Reads the content of a field under another wire type.
fn retype(field: &mut Field, kind: u8) {
    let content = std::mem::take(&mut field.content);
    let mut draw = Draw::new(&content);
    match kind % 4 {
        0 => field.set(VARINT, varint(draw.u64())),
        1 => field.set(EIGHT, draw.array::<8>().to_vec()),
        2 => field.set(BYTES, content),
        _ => field.set(FOUR, draw.array::<4>().to_vec()),
    }
}

/// Nests a field in itself. The wire type may be one without a length, where a parser that only uses
/// field numbers would still look for content.
fn nest(field: &mut Field, times: usize, said: Option<u8>) {
    for _ in 0..times {
        let content = write(std::slice::from_ref(field));
        if content.len() > BYTES_MAX {
            return;
        }
        *field = Field { number: field.number, kind: BYTES, content, said };
    }
}

/// Reads the fields of a message; `None` if the bytes are not a message.
fn parse(mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let (tag, mut rest) = split_varint(bytes)?;
        let kind = (tag & 7) as u8;
        let length = match kind {
            VARINT => rest.len() - split_varint(rest)?.1.len(),
            EIGHT => 8,
            BYTES => {
                let (length, content) = split_varint(rest)?;
                rest = content;
                usize::try_from(length).ok()?
            }
            FOUR => 4,
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        fields.push(Field { number: tag >> 3, kind, content: content.to_vec(), said: None });
        bytes = rest;
    }
    Some(fields)
}

fn write(fields: &[Field]) -> Vec<u8> {
    let mut output = Vec::new();
    for Field { number, kind, content, said } in fields {
        output.extend(varint(number << 3 | u64::from(said.unwrap_or(*kind))));
        if *kind == BYTES {
            output.extend(varint(content.len() as u64));
        }
        output.extend_from_slice(content);
    }
    output
}

/// Splits off a variable-length integer: seven bits a byte, the lowest first.
fn split_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = 1 + bytes.iter().take(10).position(|byte| byte & 0x80 == 0)?;
    let (varint, rest) = bytes.split_at(end);
    let value = varint.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f));
    Some((value, rest))
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A graph with two nodes, each with two names.
    fn message() -> Vec<u8> {
        let field = |number, kind, content| Field { number, kind, content, said: None };
        let text = |number, text: &str| field(number, BYTES, text.into());
        let node = || field(1, BYTES, write(&[text(1, "xxxxxxxx"), text(4, "Relu")]));
        let graph = field(7, BYTES, write(&[node(), node()]));
        write(&[field(1, VARINT, varint(300)), graph, field(9, FOUR, vec![7; 4])])
    }

    proptest! {
        #[test]
        fn what_was_changed_is_a_message_unless_a_type_was_said(choice: [u8; 8]) {
            let changed = mutate(&message(), choice);
            let says = [8, 11].contains(&(choice[2] % 13));
            prop_assert!(says || parse(&changed).is_some(), "{changed:?}");
        }
    }

    #[test]
    fn what_is_not_changed_stays() {
        let fields = parse(&message()).unwrap();
        assert_eq!(parse(&fields[1].content).unwrap().len(), 2);
        assert_eq!(write(&fields), message());
        assert_eq!(mutate(b"\xff", [0; 8]), b"\xff");
    }

    #[test]
    fn messages_get_deeper_than_a_parser_may_go() {
        let choice = [1, 0, 8, 79, 1, 0, 0, 0];
        let changed = mutate(&message(), choice);
        assert!(changed.len() > message().len() + 79 * 2, "{}", changed.len());
    }
}
