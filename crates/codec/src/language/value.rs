//! Types of expressions: kind and length.

use super::program::{Length, Operand, Source};

/// Kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Number of f32.
    Number,
    /// Integer of 32 bits.
    Int,
    /// Truth value.
    Mask,
    /// Sorted indices of elements.
    Indices,
}

/// Type of an expression, and the operand that will hold the value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Value {
    pub kind: Kind,
    pub operand: Operand,
}

impl Value {
    pub(crate) fn length(&self) -> Length {
        self.operand.length
    }

    /// Returns the entry in the table of constants, if the value is a constant.
    pub(crate) fn constant(&self) -> Option<usize> {
        match self.operand.source {
            Source::Constant(index) => Some(index),
            _ => None,
        }
    }

    /// Describes the type for errors.
    pub(crate) fn describe(&self) -> String {
        let kind = match self.kind {
            Kind::Number => "number",
            Kind::Int => "whole number",
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

/// Returns the length of a result of two values, element by element, if the lengths fit.
pub(crate) fn common(a: Length, b: Length) -> Option<Length> {
    match (a, b) {
        (Length::Constant, other) | (other, Length::Constant) => Some(other),
        (Length::One, other) | (other, Length::One) => Some(other),
        (a, b) => (a == b).then_some(a),
    }
}
