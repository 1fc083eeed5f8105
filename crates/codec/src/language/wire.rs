//! Types of fields, and the layout of their bits.
//!
//! Numbers of f32, f16 and bf16 and integers of 8 and 16 bits lie one after the other, little-endian.
//! Smaller integers lie in planes of 16 bytes, one for every bit, the lowest first: of every 128
//! elements, bit `i` of byte `j` belongs to element `16 i + j`. In a last group of fewer than 16
//! elements a plane has as many bytes as there are elements.

use super::pack;
use super::refusal::{Refusal, nearest};
use super::syntax::Name;

/// Type of the elements of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    F32,
    F16,
    Bf16,
    /// Integer of `width` bits.
    Bits {
        width: u32,
        signed: bool,
    },
    /// Sorted indices, in the layout of `indices`.
    Indices,
}

/// Every type by name.
const NAMES: [(&str, Wire); 13] = [
    ("f32", Wire::F32),
    ("f16", Wire::F16),
    ("bf16", Wire::Bf16),
    ("u1", Wire::Bits { width: 1, signed: false }),
    ("u2", Wire::Bits { width: 2, signed: false }),
    ("u4", Wire::Bits { width: 4, signed: false }),
    ("u8", Wire::Bits { width: 8, signed: false }),
    ("u16", Wire::Bits { width: 16, signed: false }),
    ("i2", Wire::Bits { width: 2, signed: true }),
    ("i4", Wire::Bits { width: 4, signed: true }),
    ("i8", Wire::Bits { width: 8, signed: true }),
    ("i16", Wire::Bits { width: 16, signed: true }),
    ("indices", Wire::Indices),
];

impl Wire {
    /// Returns the type called `name`.
    pub(crate) fn parse(name: &Name) -> Result<Wire, Refusal> {
        let known = NAMES.iter().map(|(known, _)| *known);
        if let Some((_, wire)) = NAMES.iter().find(|(known, _)| *known == name.text) {
            return Ok(*wire);
        }
        let refusal = Refusal::at(name.place, format!("no type is called '{}'", name.text));
        Err(match nearest(&name.text, known.clone()) {
            Some(near) => refusal.hint(format!("did you mean '{near}'?")),
            None => refusal.hint(format!("types are {}", known.collect::<Vec<_>>().join(", "))),
        })
    }

    /// Returns the name.
    pub(crate) fn name(self) -> &'static str {
        NAMES.iter().find(|(_, wire)| *wire == self).map_or("", |(name, _)| name)
    }

    /// Returns the bytes of `count` elements, which are not indices.
    pub(crate) fn bytes(self, count: usize) -> usize {
        match self {
            Wire::F32 => 4 * count,
            Wire::F16 | Wire::Bf16 => 2 * count,
            Wire::Bits { width, .. } if width >= 8 => width as usize / 8 * count,
            Wire::Bits { width, .. } => pack::bytes(count, width as usize),
            Wire::Indices => 0,
        }
    }

    /// Returns the smallest and the largest integer.
    pub(crate) fn range(self) -> (i32, i32) {
        match self {
            Wire::Bits { width, signed: false } => (0, (1 << width) - 1),
            Wire::Bits { width, signed: true } => (-1 << (width - 1), (1 << (width - 1)) - 1),
            _ => (i32::MIN, i32::MAX),
        }
    }
}
