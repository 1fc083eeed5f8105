//! Operators that have an output: their loops, over the blocks of a batch.

use super::batch::{Batch, Registers};
use super::frame::Frame;
use super::loops::{self, View, map, reduce, select, zip};
use super::program::{Binary, Comparison, Instruction, Operation, Reduction, Source, Unary};
use super::{pick, random, take};
use crate::Error;
use crate::crowd::Crowd;
use crate::kernel::{Work, imp};

/// An instruction that has an output.
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

/// Runs an operator that has an output. Loops are called from here and not from closures, which
/// would be compiled without the machine's vectors.
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
        Source::Whole(at) => {
            let mut register = std::mem::take(&mut registers.wholes[at]);
            if register.len() < count {
                register.resize(count, 0);
            }
            let to = &mut register[..count];
            result = compute_wholes(batch, registers, instruction.operation, to);
            registers.wholes[at] = register;
        }
        Source::Input | Source::Constant(_) => {}
    }
    result
}

/// Operators that make numbers.
#[inline(always)]
fn compute_numbers(batch: &Batch<'_>, registers: &Registers, operation: Operation, to: &mut [f32]) {
    let blocks = batch.blocks;
    let numbers = |operand| batch.numbers(registers, operand);
    match operation {
        Operation::Take(field) => take::numbers(batch, field, to),
        Operation::Unary(operator, a) => unary(operator, to, numbers(a)),
        Operation::Binary(operator, a, b) => {
            binary(operator, to, blocks, (numbers(a), numbers(b)));
        }
        Operation::Number(a) => map(to, batch.wholes(registers, a), |x| x as f32),
        Operation::Digits { value, digits, up: false } => {
            map(to, numbers(value), |x| loops::digits(x, digits));
        }
        Operation::Digits { value, digits, up: true } => {
            map(to, numbers(value), |x| loops::digits_up(x, digits));
        }
        Operation::Select(mask, a, b) => {
            select(to, blocks, batch.wholes(registers, mask), (numbers(a), numbers(b)));
        }
        Operation::Reduce { reduction, value, absolute: false } => {
            reduction_of(reduction, batch.frame, to, numbers(value), |x| x);
        }
        Operation::Reduce { reduction: Reduction::Mean, value, absolute: true } => {
            mean_magnitude(batch.frame, to, numbers(value));
        }
        Operation::Reduce { reduction, value, absolute: true } => {
            reduction_of(reduction, batch.frame, to, numbers(value), f32::abs);
        }
        Operation::Scan(a) => pick::scan(to, numbers(a)),
        Operation::Random => random::uniform(batch.key, batch.first, to),
        Operation::Gather(a, indices) => {
            pick::gather(to, numbers(a), batch.wholes(registers, indices));
        }
        Operation::Rank { value, count } => {
            pick::rank(to, numbers(value), batch.frame.wholes[count]);
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

/// Operators that make whole numbers, masks and indices.
#[inline(always)]
fn compute_wholes(
    batch: &Batch<'_>,
    registers: &Registers,
    operation: Operation,
    to: &mut [i32],
) -> Result<(), Error> {
    let blocks = batch.blocks;
    let numbers = |operand| batch.numbers(registers, operand);
    let wholes = |operand| batch.wholes(registers, operand);
    match operation {
        Operation::Take(field) => return take::wholes(batch, field, to),
        Operation::Compare(comparison, a, b) => {
            compare(comparison, to, blocks, (numbers(a), numbers(b)));
        }
        Operation::WholeCompare(comparison, a, b) => {
            compare(comparison, to, blocks, (wholes(a), wholes(b)));
        }
        Operation::WholeUnary(Unary::Negative, a) => map(to, wholes(a), i32::wrapping_neg),
        Operation::WholeUnary(_, a) => map(to, wholes(a), i32::wrapping_abs),
        Operation::WholeBinary(operator, a, b) => {
            whole_binary(operator, to, blocks, (wholes(a), wholes(b)));
        }
        Operation::And(a, b) => zip(to, blocks, (wholes(a), wholes(b)), |x, y| x & y),
        Operation::Or(a, b) => zip(to, blocks, (wholes(a), wholes(b)), |x, y| x | y),
        Operation::Not(a) => map(to, wholes(a), |x| x ^ 1),
        Operation::Negative(a) => map(to, numbers(a), |x: f32| (x.to_bits() >> 31) as i32),
        Operation::Round(a) => map(to, numbers(a), loops::round),
        Operation::RoundRandom(a) => round_random(batch, to, numbers(a)),
        Operation::WholeSelect(mask, a, b) => {
            select(to, blocks, wholes(mask), (wholes(a), wholes(b)));
        }
        Operation::WholeSum(a) => reduce(to, wholes(a), 0, |x| x, i32::wrapping_add),
        Operation::Largest(a) => pick::largest(to, blocks, numbers(a)),
        Operation::LargestWhere(a, mask) => {
            pick::largest_where(to, blocks, (numbers(a), wholes(mask)), batch.draw());
        }
        Operation::LargestAbove(a, threshold) => {
            let pair = (numbers(a), numbers(threshold));
            pick::above(to, blocks, pair, batch.draw(), Crowd::Largest);
        }
        Operation::WhereAbove(a, threshold) => {
            let pair = (numbers(a), numbers(threshold));
            pick::above(to, blocks, pair, batch.draw(), Crowd::First);
        }
        Operation::Where(a) => pick::locate(to, blocks, wholes(a), batch.draw()),
        Operation::WholeGather(a, indices) => pick::gather(to, wholes(a), wholes(indices)),
        _ => {}
    }
    Ok(())
}

#[inline(always)]
fn unary(operator: Unary, to: &mut [f32], a: View<'_, f32>) {
    match operator {
        Unary::Negative => map(to, a, |x| -x),
        Unary::Absolute => map(to, a, f32::abs),
        Unary::Root => map(to, a, f32::sqrt),
        Unary::Floor => map(to, a, f32::floor),
        Unary::Ceiling => map(to, a, f32::ceil),
    }
}

#[inline(always)]
fn binary(operator: Binary, to: &mut [f32], blocks: usize, pair: (View<'_, f32>, View<'_, f32>)) {
    match operator {
        Binary::Add => zip(to, blocks, pair, |x, y| x + y),
        Binary::Subtract => zip(to, blocks, pair, |x, y| x - y),
        Binary::Multiply => zip(to, blocks, pair, |x, y| x * y),
        Binary::Divide => zip(to, blocks, pair, |x, y| if y == 0.0 { 0.0 } else { x / y }),
        Binary::Least => zip(to, blocks, pair, least),
        Binary::Largest => zip(to, blocks, pair, most),
    }
}

#[inline(always)]
fn whole_binary(
    operator: Binary,
    to: &mut [i32],
    blocks: usize,
    pair: (View<'_, i32>, View<'_, i32>),
) {
    match operator {
        Binary::Add => zip(to, blocks, pair, i32::wrapping_add),
        Binary::Subtract => zip(to, blocks, pair, i32::wrapping_sub),
        Binary::Multiply => zip(to, blocks, pair, i32::wrapping_mul),
        Binary::Least => zip(to, blocks, pair, |x: i32, y| x.min(y)),
        // The checker divides numbers only.
        Binary::Largest | Binary::Divide => zip(to, blocks, pair, |x: i32, y| x.max(y)),
    }
}

#[inline(always)]
fn compare<T: Copy + PartialOrd>(
    comparison: Comparison,
    to: &mut [i32],
    blocks: usize,
    pair: (View<'_, T>, View<'_, T>),
) {
    match comparison {
        Comparison::Below => zip(to, blocks, pair, |x, y| i32::from(x < y)),
        Comparison::AtMost => zip(to, blocks, pair, |x, y| i32::from(x <= y)),
        Comparison::Equal => zip(to, blocks, pair, |x, y| i32::from(x == y)),
        Comparison::Unequal => zip(to, blocks, pair, |x, y| i32::from(x != y)),
    }
}

#[inline(always)]
fn reduction_of(
    reduction: Reduction,
    frame: &Frame<'_>,
    to: &mut [f32],
    view: View<'_, f32>,
    term: impl Fn(f32) -> f32,
) {
    match reduction {
        Reduction::Sum => reduce(to, view, 0.0, term, |x, y| x + y),
        Reduction::Least => reduce(to, view, f32::INFINITY, term, least),
        Reduction::Largest => reduce(to, view, f32::NEG_INFINITY, term, most),
        Reduction::Mean => {
            let share = 1.0 / frame.parts();
            reduce(to, view, 0.0, |x| term(x) * share, |x, y| x + y);
            let whole = view.step as f32 * share;
            to.iter_mut().for_each(|to| *to /= whole);
        }
    }
}

/// The same bits as [`reduction_of`], from the loop that codecs in Rust have.
#[inline(always)]
fn mean_magnitude(frame: &Frame<'_>, to: &mut [f32], view: View<'_, f32>) {
    let share = 1.0 / frame.parts();
    let whole = view.step as f32 * share;
    for (block, to) in to.iter_mut().enumerate() {
        *to = imp().magnitudes(&view.data[block * view.step..][..view.step], share) / whole;
    }
}

/// As the machine has it: the second where one of them is NaN.
#[inline(always)]
fn least(x: f32, y: f32) -> f32 {
    if x < y { x } else { y }
}

/// As [`least`].
#[inline(always)]
fn most(x: f32, y: f32) -> f32 {
    if x > y { x } else { y }
}

#[inline(always)]
fn round_random(batch: &Batch<'_>, to: &mut [i32], a: View<'_, f32>) {
    random::fill(batch.key, batch.first, to);
    for (to, x) in to.iter_mut().zip(a.data) {
        *to = loops::round_random(*x, *to);
    }
}
