//! The fields that the parser reads, by message.

/// Wire types of the format.
pub(super) const VARINT: u64 = 0;
pub(super) const FIXED64: u64 = 1;
pub(super) const BYTES: u64 = 2;
pub(super) const FIXED32: u64 = 5;

/// A message of the format.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Function,
    Training,
    ValueInfo,
    Type,
    /// A sequence or an optional.
    Sequence,
    Map,
    /// A tensor's type, sparse or dense.
    TensorType,
    Shape,
    Dimension,
    Tensor,
    Segment,
    SparseTensor,
    Annotation,
    Opset,
    Entry,
}

/// The content of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Integer,
    Float,
    Bytes,
    /// Numbers, in separate fields or packed.
    Integers,
    Floats,
    Doubles,
    Inner(Message),
}

impl Form {
    /// Returns the wire types that the field may have.
    pub fn wires(self) -> &'static [u64] {
        match self {
            Form::Integer => &[VARINT],
            Form::Float => &[FIXED32],
            Form::Bytes | Form::Inner(_) => &[BYTES],
            Form::Integers => &[VARINT, BYTES],
            Form::Floats => &[FIXED32, BYTES],
            Form::Doubles => &[FIXED64, BYTES],
        }
    }

    /// Returns the number of bytes of which the field's length must be a multiple.
    pub fn size(self) -> usize {
        match self {
            Form::Floats => 4,
            Form::Doubles => 8,
            _ => 1,
        }
    }
}

/// Returns the form of a field by its number, if the parser reads it.
pub(super) fn form(message: Message, number: u64) -> Option<Form> {
    use Form::{Bytes, Float, Floats, Inner, Integer};
    Some(match (message, number) {
        (Message::Model, 1 | 5) => Integer,
        (Message::Model, 2..=4 | 6) => Bytes,
        (Message::Model, 7) => Inner(Message::Graph),
        (Message::Model, 8) => Inner(Message::Opset),
        (Message::Model, 14) => Inner(Message::Entry),
        (Message::Model, 20) => Inner(Message::Training),
        (Message::Model, 25) => Inner(Message::Function),
        (Message::Graph, 1) => Inner(Message::Node),
        (Message::Graph, 2 | 10) => Bytes,
        (Message::Graph, 5) => Inner(Message::Tensor),
        (Message::Graph, 11..=13) => Inner(Message::ValueInfo),
        (Message::Graph, 14) => Inner(Message::Annotation),
        (Message::Graph, 15) => Inner(Message::SparseTensor),
        (Message::Graph, 16) => Inner(Message::Entry),
        (Message::Node, 1..=4 | 6..=8) => Bytes,
        (Message::Node, 5) => Inner(Message::Attribute),
        (Message::Node, 9) => Inner(Message::Entry),
        (Message::Attribute, 1 | 4 | 9 | 13 | 21) => Bytes,
        (Message::Attribute, 2) => Float,
        (Message::Attribute, 3 | 20) => Integer,
        (Message::Attribute, 5 | 10) => Inner(Message::Tensor),
        (Message::Attribute, 6 | 11) => Inner(Message::Graph),
        (Message::Attribute, 7) => Floats,
        (Message::Attribute, 8) => Form::Integers,
        (Message::Attribute, 14 | 15) => Inner(Message::Type),
        (Message::Attribute, 22 | 23) => Inner(Message::SparseTensor),
        (Message::Function, 1 | 4..=6 | 8 | 10 | 13) => Bytes,
        (Message::Function, 7) => Inner(Message::Node),
        (Message::Function, 9) => Inner(Message::Opset),
        (Message::Function, 11) => Inner(Message::Attribute),
        (Message::Function, 12) => Inner(Message::ValueInfo),
        (Message::Function, 14) => Inner(Message::Entry),
        (Message::Training, 1 | 2) => Inner(Message::Graph),
        (Message::Training, 3 | 4) => Inner(Message::Entry),
        _ => return leaf(message, number),
    })
}

/// Returns the form of a field of a message that contains no graph.
fn leaf(message: Message, number: u64) -> Option<Form> {
    use Form::{Bytes, Doubles, Floats, Inner, Integer, Integers};
    Some(match (message, number) {
        (Message::ValueInfo, 1 | 3) => Bytes,
        (Message::ValueInfo, 2) => Inner(Message::Type),
        (Message::ValueInfo, 4) => Inner(Message::Entry),
        (Message::Type, 1 | 8) => Inner(Message::TensorType),
        (Message::Type, 4 | 9) => Inner(Message::Sequence),
        (Message::Type, 5) => Inner(Message::Map),
        (Message::Type, 6) => Bytes,
        (Message::Sequence, 1) | (Message::Map, 2) => Inner(Message::Type),
        (Message::Map | Message::TensorType, 1) => Integer,
        (Message::TensorType, 2) => Inner(Message::Shape),
        (Message::Shape, 1) => Inner(Message::Dimension),
        (Message::Dimension, 1) => Integer,
        (Message::Dimension, 2 | 3) => Bytes,
        (Message::Tensor, 1 | 5 | 7 | 11) => Integers,
        (Message::Tensor, 2 | 14) => Integer,
        (Message::Tensor, 3) => Inner(Message::Segment),
        (Message::Tensor, 4) => Floats,
        (Message::Tensor, 6 | 8 | 9 | 12) => Bytes,
        (Message::Tensor, 10) => Doubles,
        (Message::Tensor, 13 | 16) => Inner(Message::Entry),
        (Message::Segment, 1 | 2) => Integer,
        (Message::SparseTensor, 1 | 2) => Inner(Message::Tensor),
        (Message::SparseTensor, 3) => Integers,
        (Message::Annotation, 1) => Bytes,
        (Message::Annotation, 2) => Inner(Message::Entry),
        (Message::Opset, 1) => Bytes,
        (Message::Opset, 2) => Integer,
        (Message::Entry, 1 | 2) => Bytes,
        _ => return None,
    })
}
