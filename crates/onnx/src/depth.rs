//! How deep messages lie in each other.
//!
//! Graphs hold nodes, whose attributes may hold graphs. The parser calls itself for each, so a file
//! made for it could exhaust the stack; here nothing calls itself.

use thinwire_model::{Error, Kind};

/// Deeper than any real file.
const DEPTH_MAX: usize = 64;

/// Messages that may hold themselves, directly or not.
#[derive(Clone, Copy)]
enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Function,
    Training,
    ValueInfo,
    Type,
    Holder,
}

impl Message {
    /// The message in a field, by its number in the format.
    fn field(self, number: u64) -> Option<Message> {
        match (self, number) {
            (Message::Model, 7) | (Message::Attribute, 6 | 11) | (Message::Training, 1 | 2) => {
                Some(Message::Graph)
            }
            (Message::Model, 20) => Some(Message::Training),
            (Message::Model, 25) => Some(Message::Function),
            (Message::Graph, 1) | (Message::Function, 7) => Some(Message::Node),
            (Message::Graph, 11..=13) | (Message::Function, 12) => Some(Message::ValueInfo),
            (Message::Node, 5) | (Message::Function, 11) => Some(Message::Attribute),
            (Message::Attribute, 14 | 15) | (Message::ValueInfo, 2) => Some(Message::Type),
            (Message::Holder, 1 | 2) => Some(Message::Type),
            (Message::Type, 4 | 5 | 9) => Some(Message::Holder),
            _ => None,
        }
    }
}

/// Refuses messages that lie too deep. What is cut off is left to the parser.
pub(crate) fn check(bytes: &[u8]) -> Result<(), Error> {
    let mut waiting = vec![(Message::Model, bytes, 0)];
    while let Some((message, mut rest, depth)) = waiting.pop() {
        if depth > DEPTH_MAX {
            let message = format!("messages lie more than {DEPTH_MAX} deep in each other");
            return Err(Error::new(Kind::File, message));
        }
        while let Some((number, inner, after)) = field(rest) {
            if let (Some(message), Some(inner)) = (message.field(number), inner) {
                waiting.push((message, inner, depth + 1));
            }
            rest = after;
        }
    }
    Ok(())
}

/// A field's number, its bytes if it has a length, and what comes after.
type Field<'a> = (u64, Option<&'a [u8]>, &'a [u8]);

/// The first field.
fn field(bytes: &[u8]) -> Option<Field<'_>> {
    let (tag, rest) = varint(bytes)?;
    let number = tag >> 3 & u64::from(u32::MAX);
    match tag & 7 {
        0 => varint(rest).map(|(_, rest)| (number, None, rest)),
        1 => rest.get(8..).map(|rest| (number, None, rest)),
        2 => {
            let (length, rest) = varint(rest)?;
            let (inner, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
            Some((number, Some(inner), rest))
        }
        5 => rest.get(4..).map(|rest| (number, None, rest)),
        _ => None,
    }
}

/// Seven bits a byte, the lowest first.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = bytes.iter().take(10).position(|byte| byte & 0x80 == 0)?;
    let step = |(value, shift): (u64, u32), byte: &u8| {
        (value | u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0), shift + 7)
    };
    let (value, _) = bytes[..=end].iter().fold((0, 0), step);
    Some((value, &bytes[end + 1..]))
}
