//! The interpreter: one operator after the other, each over many blocks.
//!
//! A batch of blocks stays in the nearest cache, and an operator's loop over it is long enough for
//! the cost of choosing the operator to vanish.

use thinwire_wire::random::Key;

use super::compute::Compute;
use super::frame::Frame;
use super::loops::View;
use super::program::{Operand, Operation, Source};
use super::{emit, take};
use crate::Error;
use crate::kernel::{Work, wide};

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

/// Encodes a batch. False if a number that was emitted is not finite.
pub(crate) fn encode(batch: &Batch<'_>, registers: &mut Registers, output: &mut [u8]) -> bool {
    let mut finite = true;
    for instruction in &batch.frame.program.encode {
        finite &= match instruction.operation {
            Operation::Emit(..)
            | Operation::EmitNegative(..)
            | Operation::EmitRound(..)
            | Operation::EmitRoundRandom(..)
            | Operation::EmitSteps(..) => {
                wide(Emit { batch, registers, operation: instruction.operation, output })
            }
            // Only what is taken can be corrupt.
            _ => wide(Compute { batch, registers, instruction }).is_ok(),
        };
    }
    finite
}

/// Decodes a batch.
///
/// # Errors
/// If it names elements that do not exist.
pub(crate) fn decode(
    batch: &Batch<'_>,
    registers: &mut Registers,
    put: Put,
    values: &mut [f32],
) -> Result<(), Error> {
    for instruction in &batch.frame.program.decode {
        match instruction.operation {
            Operation::Yield(_) | Operation::YieldSelect(..) | Operation::YieldScaled(..) => {
                wide(Yield { batch, registers, operation: instruction.operation, put, values });
            }
            Operation::YieldAt(indices, numbers) => {
                take::put_at(batch, registers, (indices, numbers), put, values);
            }
            _ => wide(Compute { batch, registers, instruction })?,
        }
    }
    Ok(())
}

struct Emit<'a> {
    batch: &'a Batch<'a>,
    registers: &'a Registers,
    operation: Operation,
    output: &'a mut [u8],
}

impl Work for Emit<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Emit { batch, registers, operation, output } = self;
        match operation {
            Operation::EmitNegative(field, x) => {
                emit::negative(batch, batch.numbers(registers, x), field, output);
            }
            Operation::EmitRound(field, x) => {
                emit::round(batch, batch.numbers(registers, x), field, output);
            }
            Operation::EmitRoundRandom(field, x, factor) => {
                let pair = (batch.numbers(registers, x), batch.numbers(registers, factor));
                emit::round_random(batch, pair, field, output);
            }
            Operation::EmitSteps(field, steps, other) => {
                emit::steps(batch, registers, (steps, other), field, output);
            }
            Operation::Emit(field, value) => {
                return emit::emit(batch, registers, field, value, output);
            }
            _ => {}
        }
        true
    }
}

struct Yield<'a> {
    batch: &'a Batch<'a>,
    registers: &'a Registers,
    operation: Operation,
    put: Put,
    values: &'a mut [f32],
}

impl Work for Yield<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Yield { batch, registers, operation, put, values } = self;
        let numbers = |operand| batch.numbers(registers, operand);
        match operation {
            Operation::YieldSelect(field, a, b) => {
                take::put_select(batch, field, (numbers(a), numbers(b)), put, values);
            }
            Operation::YieldScaled(field, scale) => {
                take::put_scaled(batch, field, numbers(scale), put, values);
            }
            Operation::Yield(value) => take::put(batch, registers, value, put, values),
            _ => {}
        }
    }
}

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
