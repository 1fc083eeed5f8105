//! Layout and constants of blocks of one length.

use super::program::{Length, Program};
use super::wire::Wire;
use crate::indices::Indices;

/// Program with the layout and the constants of blocks of one length.
#[derive(Clone, Debug)]
pub(crate) struct Frame<'a> {
    pub program: &'a Program,
    /// Elements of a block, at least 1.
    pub elements: usize,
    /// Constants of the program, which `numbers` has as f32 and `ints` as i32.
    pub constants: Vec<f64>,
    pub numbers: Vec<f32>,
    pub ints: Vec<i32>,
    pub fields: Vec<Place>,
    /// Bytes of a block.
    pub bytes: usize,
}

/// Place of a field in the bytes of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub wire: Wire,
    pub offset: usize,
    pub bytes: usize,
    /// Number of values.
    pub count: usize,
}

impl Frame<'_> {
    /// Returns the frame of blocks of `elements`, at least 1.
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
        let ints = constants.iter().map(|number| *number as i32).collect();
        Frame { program, elements, constants, numbers, ints, fields, bytes: offset }
    }

    /// Returns the bytes of a block that are padding of planes.
    pub(crate) fn padding(&self) -> usize {
        let needed = |field: &Place| match field.wire {
            Wire::Bits { width, .. } => (field.count * width as usize).div_ceil(8),
            _ => field.bytes,
        };
        self.fields.iter().map(|field| field.bytes - needed(field)).sum()
    }

    /// Returns the number of values of this length per block.
    #[inline(always)]
    pub(crate) fn count(&self, length: Length) -> usize {
        Program::count(length, self.elements, &self.constants)
    }

    /// Returns the divisor of elements before they are summed to a mean: a power of two, so that the
    /// division is exact, and equal for all blocks of a codec.
    pub(crate) fn parts(&self) -> f32 {
        self.program.block.unwrap_or(self.elements).next_power_of_two() as f32
    }
}
