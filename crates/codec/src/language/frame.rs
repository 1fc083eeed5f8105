//! What is known before blocks of one length are worked on.

use super::program::{Length, Program};
use super::wire::Wire;
use crate::indices::Indices;

/// A program for blocks of so many elements.
#[derive(Clone, Debug)]
pub(crate) struct Frame<'a> {
    pub program: &'a Program,
    /// Elements of a block, not 0.
    pub elements: usize,
    /// The constants as they are, as f32 and as i32.
    pub constants: Vec<f64>,
    pub numbers: Vec<f32>,
    pub wholes: Vec<i32>,
    pub fields: Vec<Place>,
    /// The bytes of a block.
    pub bytes: usize,
}

/// Where a field is in a block's bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub wire: Wire,
    pub offset: usize,
    pub bytes: usize,
    /// How many there are.
    pub count: usize,
}

impl Frame<'_> {
    /// The frame for blocks of `elements`, which is not 0.
    pub(crate) fn new(program: &Program, elements: usize) -> Frame<'_> {
        let constants = program.constants(elements);
        let mut offset = 0;
        let mut fields = Vec::with_capacity(program.fields.len());
        for field in &program.fields {
            let count = Program::count(field.length, elements, &constants);
            let bytes = match field.wire {
                Wire::Indices => Indices::new(count, elements).encoded_len(),
                wire => wire.bytes(count),
            };
            fields.push(Place { wire: field.wire, offset, bytes, count });
            offset += bytes;
        }
        let numbers = constants.iter().map(|number| *number as f32).collect();
        let wholes = constants.iter().map(|number| *number as i32).collect();
        Frame { program, elements, constants, numbers, wholes, fields, bytes: offset }
    }

    /// Bytes of a block that planes have for elements that there are not.
    pub(crate) fn padding(&self) -> usize {
        let needed = |field: &Place| match field.wire {
            Wire::Bits { width, .. } => (field.count * width as usize).div_ceil(8),
            _ => field.bytes,
        };
        self.fields.iter().map(|field| field.bytes - needed(field)).sum()
    }

    /// How many numbers a value of this length has per block.
    #[inline(always)]
    pub(crate) fn count(&self, length: Length) -> usize {
        Program::count(length, self.elements, &self.constants)
    }

    /// Elements are shared out in so many parts before they are averaged: a power of two, the same
    /// for every block of a codec, so that sharing is exact.
    pub(crate) fn parts(&self) -> f32 {
        self.program.block.unwrap_or(self.elements).next_power_of_two() as f32
    }
}
