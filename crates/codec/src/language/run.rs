//! Interpreter: one operator after the other, each over many blocks.
//!
//! A batch of blocks stays in the nearest cache, and the loop of an operator over it is long enough
//! for the cost of dispatch to vanish.

use super::batch::{Batch, Put, Registers};
use super::compute::Compute;
use super::program::Operation;
use super::{emit, take};
use crate::Error;
use crate::kernel::{Work, imp};

/// Encodes a batch; returns whether all emitted numbers are finite.
pub(crate) fn encode(batch: &Batch<'_>, registers: &mut Registers, output: &mut [u8]) -> bool {
    let mut finite = true;
    for instruction in &batch.frame.program.encode {
        finite &= match instruction.operation {
            Operation::Emit(..) | Operation::EmitRoundRandom(..) => {
                imp().run(Emit { batch, registers, operation: instruction.operation, output })
            }
            // Only taken bytes can be corrupt.
            _ => imp().run(Compute { batch, registers, instruction }).is_ok(),
        };
    }
    finite
}

/// Decodes a batch.
///
/// # Errors
/// If the batch has indices of elements that do not exist.
pub(crate) fn decode(
    batch: &Batch<'_>,
    registers: &mut Registers,
    put: Put,
    values: &mut [f32],
) -> Result<(), Error> {
    for instruction in &batch.frame.program.decode {
        match instruction.operation {
            Operation::Yield(_) | Operation::YieldSelect(..) | Operation::YieldScaled(..) => {
                imp().run(Yield {
                    batch,
                    registers,
                    operation: instruction.operation,
                    put,
                    values,
                });
            }
            Operation::YieldAt(indices, numbers) => {
                take::put_at(batch, registers, indices, numbers, put, values);
            }
            _ => imp().run(Compute { batch, registers, instruction })?,
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
            Operation::EmitRoundRandom(field, x, factor) => {
                let numbers = |operand| batch.numbers(registers, operand);
                emit::round_random(batch, numbers(x), numbers(factor), field, output);
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
                take::put_select(batch, field, numbers(a), numbers(b), put, values);
            }
            Operation::YieldScaled(field, scale) => {
                take::put_scaled(batch, field, numbers(scale), put, values);
            }
            Operation::Yield(value) => take::put(batch, registers, value, put, values),
            _ => {}
        }
    }
}
