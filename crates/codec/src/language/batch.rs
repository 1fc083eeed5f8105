//! Blocks that the interpreter works on together, and the registers between operators.

use thinwire_wire::random::Key;

use super::frame::Frame;
use super::loops::View;
use super::program::{Operand, Source};

/// Blocks that are worked on together.
pub(crate) struct Batch<'a> {
    pub frame: &'a Frame<'a>,
    pub blocks: usize,
    pub input: &'a [f32],
    pub encoded: &'a [u8],
    pub key: Key,
    /// The number of the first element.
    pub first: u64,
}

impl Batch<'_> {
    /// For each block a random element of it.
    pub(crate) fn draw(&self) -> impl Fn(usize) -> u32 + use<> {
        let (key, elements) = (self.key, self.frame.elements);
        let first = self.first / elements as u64;
        move |block| key.below(first + block as u64, elements as u32)
    }

    /// Numbers to read.
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
            Source::Number(at) | Source::Whole(at) => {
                View { data: &registers.numbers[at][..self.blocks * step], step }
            }
        }
    }

    /// Whole numbers to read.
    #[inline(always)]
    pub(crate) fn wholes<'a>(
        &'a self,
        registers: &'a Registers,
        operand: Operand,
    ) -> View<'a, i32> {
        let step = self.frame.count(operand.length);
        match operand.source {
            Source::Constant(at) => View { data: &self.frame.wholes[at..=at], step: 0 },
            Source::Input => View { data: &[], step },
            Source::Number(at) | Source::Whole(at) => {
                View { data: &registers.wholes[at][..self.blocks * step], step }
            }
        }
    }
}

/// Registers, kept from one call to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registers {
    pub numbers: Vec<Vec<f32>>,
    pub wholes: Vec<Vec<i32>>,
    /// What an encoding decodes to, where nobody else asks.
    pub decoded: Vec<f32>,
}

impl Registers {
    pub(crate) fn new((numbers, wholes): (usize, usize)) -> Registers {
        Registers {
            numbers: vec![Vec::new(); numbers],
            wholes: vec![Vec::new(); wholes],
            decoded: Vec::new(),
        }
    }

    /// How many bytes are held.
    pub(crate) fn bytes(&self) -> usize {
        let numbers = self.numbers.iter().map(|register| register.len());
        let wholes = self.wholes.iter().map(|register| register.len());
        4 * numbers.chain(wholes).chain([self.decoded.len()]).sum::<usize>()
    }
}

/// What yielding does to the values that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Set,
    Add,
    Subtract,
}
