//! Blocks that the interpreter works on together, and registers between operators.

use std::ops::Range;

use thinwire_wire::random::Key;

use super::frame::{Frame, Place};
use super::loops::View;
use super::program::{Operand, Program, Source};

/// Blocks that are worked on together.
pub(crate) struct Batch<'a> {
    pub frame: &'a Frame<'a>,
    pub blocks: usize,
    pub input: &'a [f32],
    pub encoded: &'a [u8],
    pub key: Key,
    /// Number of the first element in the whole input.
    pub first: u64,
}

impl Batch<'_> {
    /// Returns the bytes of a field of a block.
    #[inline(always)]
    pub(crate) fn bytes(&self, place: Place, block: usize) -> Range<usize> {
        let first = block * self.frame.bytes + place.offset;
        first..first + place.bytes
    }

    /// Returns the elements of a block that is not the last.
    pub(crate) fn size(&self) -> u64 {
        self.frame.program.block.unwrap_or(self.frame.elements) as u64
    }

    /// Returns, for each block, the position of a random element.
    pub(crate) fn draw(&self) -> impl Fn(usize) -> u32 + use<> {
        let (key, elements) = (self.key, self.frame.elements);
        let first = self.first / elements as u64;
        move |block| key.below(first + block as u64, elements as u32)
    }

    /// Returns an operand of f32.
    #[inline(always)]
    pub(crate) fn numbers<'a>(
        &'a self,
        registers: &'a Registers,
        operand: Operand,
    ) -> View<'a, f32> {
        let step = self.frame.count(operand.length);
        match operand.source {
            Source::Input => View { data: self.input, step },
            Source::Constant(at) => View { data: &self.frame.numbers[at..=at], step: 0 },
            Source::Number(at) | Source::Int(at) => {
                View { data: &registers.numbers[at][..self.blocks * step], step }
            }
        }
    }

    /// Returns an operand of integers, masks or indices.
    #[inline(always)]
    pub(crate) fn ints<'a>(&'a self, registers: &'a Registers, operand: Operand) -> View<'a, i32> {
        let step = self.frame.count(operand.length);
        match operand.source {
            Source::Constant(at) => View { data: &self.frame.ints[at..=at], step: 0 },
            Source::Input => View { data: &[], step },
            Source::Number(at) | Source::Int(at) => {
                View { data: &registers.ints[at][..self.blocks * step], step }
            }
        }
    }
}

/// Registers of a program, kept from one call to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registers {
    pub numbers: Vec<Vec<f32>>,
    pub ints: Vec<Vec<i32>>,
    /// Decoded values, for the check that they are finite.
    pub decoded: Vec<f32>,
}

impl Registers {
    pub(crate) fn of(program: &Program) -> Registers {
        let (numbers, ints) = program.registers;
        Registers {
            numbers: vec![Vec::new(); numbers],
            ints: vec![Vec::new(); ints],
            decoded: Vec::new(),
        }
    }

    /// Returns the number of bytes held.
    pub(crate) fn bytes(&self) -> usize {
        let numbers = self.numbers.iter().map(|register| register.len());
        let ints = self.ints.iter().map(|register| register.len());
        4 * numbers.chain(ints).chain([self.decoded.len()]).sum::<usize>()
    }
}

/// Effect of yielding on the values that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Set,
    Add,
    Subtract,
}
