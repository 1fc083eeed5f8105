//! Operators with an output: a loop each over the blocks of a batch.

use super::batch::{Batch, Registers};
use super::frame::Frame;
use super::loops::{self, View, map, reduce, select, zip};
use super::program::{Binary, Comparison, Instruction, Operation, Reduction, Source, Unary};
use super::{pick, random, take};
use crate::Error;
use crate::crowd::Crowd;
use crate::kernel::Work;

/// Run of an instruction with an output.
pub(crate) struct Compute<'a> {
    pub batch: &'a Batch<'a>,
    pub registers: &'a mut Registers,
    pub instruction: &'a Instruction,
}

impl Work for Compute<'_> {
    type Output = Result<(), Error>;

    #[inline(always)]
    fn run(self) -> Result<(), Error> {
        compute(self.batch, self.registers, self.instruction)
    }
}

/// Runs an operator with an output. Loops are called from functions that are inlined here, not from
/// closures, which would be compiled without vector instructions.
#[inline(always)]
fn compute(
    batch: &Batch<'_>,
    registers: &mut Registers,
    instruction: &Instruction,
) -> Result<(), Error> {
    let Some(output) = instruction.output else { return Ok(()) };
    let count = batch.blocks * batch.frame.count(output.length);
    let mut result = Ok(());
    match output.source {
        Source::Number(at) => {
            let mut register = std::mem::take(&mut registers.numbers[at]);
            if register.len() < count {
                register.resize(count, 0.0);
            }
            compute_numbers(batch, registers, instruction.operation, &mut register[..count]);
            registers.numbers[at] = register;
        }
        Source::Int(at) => {
            let mut register = std::mem::take(&mut registers.ints[at]);
            if register.len() < count {
                register.resize(count, 0);
            }
            let to = &mut register[..count];
            result = compute_ints(batch, registers, instruction.operation, to);
            registers.ints[at] = register;
        }
        Source::Input | Source::Constant(_) => {}
    }
    result
}

/// Runs an operator whose result is numbers.
#[inline(always)]
fn compute_numbers(batch: &Batch<'_>, registers: &Registers, operation: Operation, to: &mut [f32]) {
    let blocks = batch.blocks;
    let numbers = |operand| batch.numbers(registers, operand);
    match operation {
        Operation::Take(field) => take::numbers(batch, field, to),
        Operation::Unary(operator, a) => unary(operator, to, numbers(a)),
        Operation::Binary(operator, a, b) => {
            binary(operator, to, blocks, numbers(a), numbers(b));
        }
        Operation::Number(a) => map(to, batch.ints(registers, a), |x| x as f32),
        Operation::Digits { value, digits, up: false } => {
            map(to, numbers(value), |x| loops::digits(x, digits));
        }
        Operation::Digits { value, digits, up: true } => {
            map(to, numbers(value), |x| loops::digits_up(x, digits));
        }
        Operation::Select(mask, a, b) => {
            select(to, blocks, batch.ints(registers, mask), numbers(a), numbers(b));
        }
        Operation::Reduce(reduction, a) => reduce_blocks(reduction, batch.frame, to, numbers(a)),
        Operation::Scan(a) => pick::scan(to, numbers(a)),
        Operation::Shift { value, by } => pick::shift(to, numbers(value), batch.frame.ints[by]),
        Operation::Transform(a) => pick::transform(to, numbers(a)),
        Operation::Random => random::uniform(batch.key, batch.first, to),
        Operation::Gather(a, indices) => {
            pick::gather(to, numbers(a), batch.ints(registers, indices));
        }
        Operation::Rank { value, count } => {
            pick::rank(to, numbers(value), batch.frame.ints[count]);
        }
        Operation::Sample { value, absolute } => {
            pick::sample(to, blocks, numbers(value));
            if absolute {
                to.iter_mut().for_each(|x| *x = x.abs());
            }
        }
        _ => {}
    }
}

/// Runs an operator whose result is integers, a mask or indices.
#[inline(always)]
fn compute_ints(
    batch: &Batch<'_>,
    registers: &Registers,
    operation: Operation,
    to: &mut [i32],
) -> Result<(), Error> {
    let blocks = batch.blocks;
    let numbers = |operand| batch.numbers(registers, operand);
    let ints = |operand| batch.ints(registers, operand);
    match operation {
        Operation::Take(field) => return take::ints(batch, field, to),
        // Of two integers one is in a register: two constants are never compared.
        Operation::Compare(comparison, a, b) if a.is_int() || b.is_int() => {
            compare(comparison, to, blocks, ints(a), ints(b));
        }
        Operation::Compare(comparison, a, b) => {
            compare(comparison, to, blocks, numbers(a), numbers(b));
        }
        Operation::Unary(Unary::Negative, a) => map(to, ints(a), i32::wrapping_neg),
        Operation::Unary(_, a) => map(to, ints(a), i32::wrapping_abs),
        Operation::Binary(operator, a, b) => {
            int_binary(operator, to, blocks, ints(a), ints(b));
        }
        Operation::And(a, b) => zip(to, blocks, ints(a), ints(b), |x, y| x & y),
        Operation::Or(a, b) => zip(to, blocks, ints(a), ints(b), |x, y| x | y),
        Operation::Shift { value, by } => pick::shift(to, ints(value), batch.frame.ints[by]),
        Operation::BlockIndex => {
            let first = batch.first / batch.size();
            to.iter_mut().zip(first..).for_each(|(to, block)| *to = block as i32);
        }
        Operation::Not(a) => map(to, ints(a), |x| x ^ 1),
        Operation::Negative(a) => map(to, numbers(a), |x: f32| (x.to_bits() >> 31) as i32),
        Operation::Round(a) => map(to, numbers(a), loops::round),
        Operation::RoundRandom(a) => round_random(batch, to, numbers(a)),
        Operation::Select(mask, a, b) => {
            select(to, blocks, ints(mask), ints(a), ints(b));
        }
        Operation::Reduce(_, a) => reduce(to, ints(a), 0, |x| x, i32::wrapping_add),
        Operation::Largest(a) => pick::largest(to, blocks, numbers(a)),
        Operation::LargestWhere(a, mask) => {
            pick::largest_where(to, blocks, numbers(a), ints(mask), batch.draw());
        }
        Operation::LargestAbove(a, threshold) => {
            pick::above(to, blocks, numbers(a), numbers(threshold), batch.draw(), Crowd::Largest);
        }
        Operation::WhereAbove(a, threshold) => {
            pick::above(to, blocks, numbers(a), numbers(threshold), batch.draw(), Crowd::First);
        }
        Operation::Where(a) => pick::locate(to, blocks, ints(a), batch.draw()),
        Operation::Gather(a, indices) => pick::gather(to, ints(a), ints(indices)),
        _ => {}
    }
    Ok(())
}

#[inline(always)]
fn unary(operator: Unary, to: &mut [f32], a: View<'_, f32>) {
    match operator {
        Unary::Negative => map(to, a, |x| -x),
        Unary::Absolute => map(to, a, f32::abs),
        Unary::Sqrt => map(to, a, f32::sqrt),
        Unary::Floor => map(to, a, f32::floor),
        Unary::Ceiling => map(to, a, f32::ceil),
    }
}

#[inline(always)]
fn binary(operator: Binary, to: &mut [f32], blocks: usize, a: View<'_, f32>, b: View<'_, f32>) {
    match operator {
        Binary::Add => zip(to, blocks, a, b, |x, y| x + y),
        Binary::Subtract => zip(to, blocks, a, b, |x, y| x - y),
        Binary::Multiply => zip(to, blocks, a, b, |x, y| x * y),
        Binary::Divide => zip(to, blocks, a, b, |x, y| if y == 0.0 { 0.0 } else { x / y }),
        Binary::Min => zip(to, blocks, a, b, min),
        Binary::Max => zip(to, blocks, a, b, max),
    }
}

#[inline(always)]
fn int_binary(operator: Binary, to: &mut [i32], blocks: usize, a: View<'_, i32>, b: View<'_, i32>) {
    match operator {
        Binary::Add => zip(to, blocks, a, b, i32::wrapping_add),
        Binary::Subtract => zip(to, blocks, a, b, i32::wrapping_sub),
        Binary::Multiply => zip(to, blocks, a, b, i32::wrapping_mul),
        Binary::Min => zip(to, blocks, a, b, |x: i32, y| x.min(y)),
        // The checker divides numbers only.
        Binary::Max | Binary::Divide => zip(to, blocks, a, b, |x: i32, y| x.max(y)),
    }
}

#[inline(always)]
fn compare<T: Copy + PartialOrd>(
    comparison: Comparison,
    to: &mut [i32],
    blocks: usize,
    a: View<'_, T>,
    b: View<'_, T>,
) {
    match comparison {
        Comparison::Below => zip(to, blocks, a, b, |x, y| i32::from(x < y)),
        Comparison::AtMost => zip(to, blocks, a, b, |x, y| i32::from(x <= y)),
        Comparison::Equal => zip(to, blocks, a, b, |x, y| i32::from(x == y)),
        Comparison::Unequal => zip(to, blocks, a, b, |x, y| i32::from(x != y)),
    }
}

#[inline(always)]
fn reduce_blocks(reduction: Reduction, frame: &Frame<'_>, to: &mut [f32], view: View<'_, f32>) {
    match reduction {
        Reduction::Sum => reduce(to, view, 0.0, |x| x, |x, y| x + y),
        Reduction::Min => reduce(to, view, f32::INFINITY, |x| x, min),
        Reduction::Max => reduce(to, view, f32::NEG_INFINITY, |x| x, max),
        Reduction::Mean => {
            // Divided before they are summed, numbers overflow only where their mean does.
            let share = 1.0 / frame.parts();
            reduce(to, view, 0.0, |x| x * share, |x, y| x + y);
            let parts = view.step as f32 * share;
            to.iter_mut().for_each(|to| *to /= parts);
        }
    }
}

/// Returns the smaller number, or `y` where one of them is NaN: one vector instruction.
#[inline(always)]
fn min(x: f32, y: f32) -> f32 {
    if x < y { x } else { y }
}

/// Returns the larger number, or `y` where one of them is NaN: one vector instruction.
#[inline(always)]
fn max(x: f32, y: f32) -> f32 {
    if x > y { x } else { y }
}

#[inline(always)]
fn round_random(batch: &Batch<'_>, to: &mut [i32], a: View<'_, f32>) {
    random::fill(batch.key, batch.first, to);
    for (to, x) in to.iter_mut().zip(a.data) {
        *to = loops::round_random(*x, *to);
    }
}
