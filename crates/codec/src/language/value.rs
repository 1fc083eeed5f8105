//! What an expression is: its kind, and how many there are of it.

use super::program::{Length, Operand, Source};

/// What sort of thing a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// f32.
    Number,
    /// A whole number of 32 bits.
    Whole,
    /// Whether something holds.
    Mask,
    /// Places of elements, sorted.
    Indices,
}

/// An expression's type, and where its value will be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Value {
    pub kind: Kind,
    pub operand: Operand,
}

impl Value {
    pub(crate) fn length(&self) -> Length {
        self.operand.length
    }

    /// The entry in the table of constants, if it is one.
    pub(crate) fn constant(&self) -> Option<usize> {
        match self.operand.source {
            Source::Constant(index) => Some(index),
            _ => None,
        }
    }

    /// As errors call it.
    pub(crate) fn describe(&self) -> String {
        let kind = match self.kind {
            Kind::Number => "number",
            Kind::Whole => "whole number",
            Kind::Mask => "mask",
            Kind::Indices => "indices",
        };
        match (self.length(), self.kind) {
            (_, Kind::Indices) => kind.to_owned(),
            (Length::Constant, _) => format!("a constant {kind}"),
            (Length::One, _) => format!("one {kind} per block"),
            (Length::Elements, _) => format!("a {kind} per element"),
            (Length::Count(_), _) => format!("a {kind} per kept element"),
        }
    }
}

/// The length of something made of both element by element, if that can be.
pub(crate) fn common(a: Length, b: Length) -> Option<Length> {
    match (a, b) {
        (Length::Constant, other) | (other, Length::Constant) => Some(other),
        (Length::One, other) | (other, Length::One) => Some(other),
        (a, b) => (a == b).then_some(a),
    }
}
