//! Mutations of protobuf messages that keep them well-formed messages.
//!
//! Random changes of bytes break the lengths of all enclosing messages, so that a parser sees little
//! but truncated files. Here a message is read as fields, without a schema; one field of one nested
//! message is changed in its number, wire type or content, and all enclosing lengths are corrected.
//! Law: fields without a change are written as they were read.

use crate::draw::Draw;

/// Depth below which messages are read as bytes.
const DEPTH_MAX: usize = 24;
/// Largest number of times that a field is put into itself at once.
const NESTED: usize = 80;
/// Bytes from which a field is nested no further.
const BYTES_MAX: usize = 1 << 16;

/// Field of a message: number and content.
#[derive(Clone, Debug, PartialEq)]
struct Field {
    number: u64,
    content: Content,
    /// Wire type that is written instead of the true one.
    said: Option<u8>,
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Varint(u64),
    Eight([u8; 8]),
    Bytes(Vec<u8>),
    Message(Vec<Field>),
    Four([u8; 4]),
}

/// Returns a message with one change, which the bytes of `choice` select. Bytes that are no message
/// come back unchanged.
pub fn mutate(message: &[u8], choice: [u8; 8]) -> Vec<u8> {
    let Some(mut fields) = parse(message, 0) else { return message.to_vec() };
    let mut draw = Draw::new(&choice);
    change(&mut fields, &mut draw, message);
    let mut output = Vec::new();
    write(&fields, &mut output);
    output
}

fn field(number: u64, content: Content) -> Field {
    Field { number, content, said: None }
}

/// Descends to a field and changes it.
fn change(fields: &mut Vec<Field>, draw: &mut Draw<'_>, whole: &[u8]) {
    let mut path = usize::from(draw.u16());
    let (how, value) = (draw.u8(), draw.array());
    let mut fields = fields;
    loop {
        if fields.is_empty() {
            fields.push(field(1 + u64::from(how & 31), Content::Varint(1)));
            return;
        }
        let at = path % fields.len();
        path /= fields.len();
        let deeper = path % 4 > 0 && matches!(fields[at].content, Content::Message(_));
        if !deeper {
            return alter(fields, at, (how, value), whole);
        }
        path /= 2;
        let Content::Message(inner) = &mut fields[at].content else { return };
        fields = inner;
    }
}

/// Changes the field at a place, or a field beside it.
fn alter(fields: &mut Vec<Field>, at: usize, (how, value): (u8, [u8; 4]), whole: &[u8]) {
    let small = u64::from(value[0]);
    let field = &mut fields[at];
    let [a, b, c, d] = value;
    match how % 13 {
        0 => field.content = retyped(&field.content, value[0]),
        1 => field.number = 1 + small % 32,
        2 => field.content = Content::Varint(u64::from_le_bytes([a, b, c, d, a, b, c, d])),
        3 => field.content = Content::Varint(small),
        4 => field.content = Content::Varint(small.wrapping_neg()),
        5 => drop(fields.remove(at)),
        6 => {
            let twice = field.clone();
            fields.insert(at, twice);
        }
        7 => {
            let other = usize::from(value[0]) % fields.len();
            fields.swap(at, other);
        }
        8 => *field = nested(field, 1 + usize::from(a) % NESTED, (b & 1 == 1).then_some(c % 8)),
        11 => field.said = Some(a % 8),
        9 => field.content = spliced(whole, value),
        10 => {
            let other = fields[usize::from(value[0]) % fields.len()].content.clone();
            fields[at].content = other;
        }
        _ => field.content = Content::Bytes(value[..usize::from(value[3]) % 4].to_vec()),
    }
}

/// Returns the content of a field under another wire type.
fn retyped(content: &Content, kind: u8) -> Content {
    let mut bytes = Vec::new();
    match content {
        Content::Varint(value) => bytes.extend_from_slice(&value.to_le_bytes()),
        Content::Eight(value) => bytes.extend_from_slice(value),
        Content::Four(value) => bytes.extend_from_slice(value),
        Content::Bytes(value) => bytes.extend_from_slice(value),
        Content::Message(fields) => write(fields, &mut bytes),
    }
    let mut draw = Draw::new(&bytes);
    match kind % 4 {
        0 => Content::Varint(draw.u64()),
        1 => Content::Eight(draw.array()),
        2 => Content::Bytes(bytes),
        _ => Content::Four(draw.array()),
    }
}

/// Returns a field nested in itself `times` times. The wire type may be one without a length, where a
/// parser that goes by field numbers alone would still look.
fn nested(field: &Field, times: usize, said: Option<u8>) -> Field {
    let mut inner = field.clone();
    for _ in 0..times {
        let content = Content::Message(vec![inner]);
        inner = Field { number: field.number, content, said };
        let mut bytes = Vec::new();
        write(std::slice::from_ref(&inner), &mut bytes);
        if bytes.len() > BYTES_MAX {
            break;
        }
    }
    inner
}

/// Returns a piece of the whole message as the content of a field.
fn spliced(whole: &[u8], [a, b, c, d]: [u8; 4]) -> Content {
    let from = usize::from(u16::from_le_bytes([a, b])) % whole.len().max(1);
    let to = (from + usize::from(u16::from_le_bytes([c, d]) & 0xff)).min(whole.len());
    let piece = &whole[from..to];
    parse(piece, 0).map_or_else(|| Content::Bytes(piece.to_vec()), Content::Message)
}

/// Reads the fields of a message; none if the bytes are no message.
fn parse(mut bytes: &[u8], depth: usize) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let (tag, rest) = varint(bytes)?;
        let mut draw = Draw::new(rest);
        let content = match tag & 7 {
            0 => {
                let (value, rest) = varint(rest)?;
                draw = Draw::new(rest);
                Content::Varint(value)
            }
            1 if rest.len() >= 8 => Content::Eight(draw.array()),
            2 => {
                let (length, rest) = varint(rest)?;
                let (inner, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                draw = Draw::new(rest);
                let is_message = depth < DEPTH_MAX && !inner.is_empty();
                let fields = is_message.then(|| parse(inner, depth + 1)).flatten();
                fields.map_or_else(|| Content::Bytes(inner.to_vec()), Content::Message)
            }
            5 if rest.len() >= 4 => Content::Four(draw.array()),
            _ => return None,
        };
        fields.push(field(tag >> 3, content));
        bytes = draw.rest();
    }
    Some(fields)
}

fn write(fields: &[Field], output: &mut Vec<u8>) {
    for Field { number, content, said } in fields {
        let kind = match content {
            Content::Varint(_) => 0,
            Content::Eight(_) => 1,
            Content::Bytes(_) | Content::Message(_) => 2,
            Content::Four(_) => 5,
        };
        put_varint(number << 3 | said.map_or(kind, u64::from), output);
        match content {
            Content::Varint(value) => put_varint(*value, output),
            Content::Eight(value) => output.extend_from_slice(value),
            Content::Four(value) => output.extend_from_slice(value),
            Content::Bytes(bytes) => {
                put_varint(bytes.len() as u64, output);
                output.extend_from_slice(bytes);
            }
            Content::Message(fields) => {
                let mut inner = Vec::new();
                write(fields, &mut inner);
                put_varint(inner.len() as u64, output);
                output.extend_from_slice(&inner);
            }
        }
    }
}

/// Reads a variable-length integer, seven bits a byte, the lowest first.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = bytes.iter().take(10).position(|byte| byte & 0x80 == 0)?;
    let step = |(value, shift): (u64, u32), byte: &u8| {
        (value | u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0), shift + 7)
    };
    let (value, _) = bytes[..=end].iter().fold((0, 0), step);
    Some((value, &bytes[end + 1..]))
}

fn put_varint(mut value: u64, output: &mut Vec<u8>) {
    while value >= 0x80 {
        output.push(value as u8 | 0x80);
        value >>= 7;
    }
    output.push(value as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A graph with two nodes, each with two names.
    fn message() -> Vec<u8> {
        let text = |number, text: &str| field(number, Content::Bytes(text.into()));
        let node = || field(1, Content::Message(vec![text(1, "xxxxxxxx"), text(4, "Relu")]));
        let graph = field(7, Content::Message(vec![node(), node()]));
        let mut bytes = Vec::new();
        write(
            &[field(1, Content::Varint(300)), graph, field(9, Content::Four([7; 4]))],
            &mut bytes,
        );
        bytes
    }

    proptest! {
        #[test]
        fn what_was_changed_is_a_message_unless_a_type_was_said(choice: [u8; 8]) {
            let changed = mutate(&message(), choice);
            let says = [8, 11].contains(&(choice[2] % 13));
            prop_assert!(says || parse(&changed, 0).is_some(), "{changed:?}");
        }
    }

    #[test]
    fn what_is_not_changed_stays() {
        let fields = parse(&message(), 0).unwrap();
        assert!(matches!(&fields[1].content, Content::Message(nodes) if nodes.len() == 2));
        let mut bytes = Vec::new();
        write(&fields, &mut bytes);
        assert_eq!(bytes, message());
        assert_eq!(mutate(b"\xff", [0; 8]), b"\xff");
    }

    #[test]
    fn messages_get_deeper_than_a_parser_may_go() {
        let choice = [1, 0, 8, 79, 1, 0, 0, 0];
        let changed = mutate(&message(), choice);
        assert!(changed.len() > message().len() + 79 * 2, "{}", changed.len());
    }
}
