//! Operator fusion: fewer instructions for an equivalent program.
//!
//! A result that only the next instruction reads need not go through memory: both become one
//! instruction. An instruction whose result is not read is left out. docs/codec-language.md has the
//! measured gains; a pair without one is not fused.

use super::program::{
    Binary, Comparison, Field, Instruction, Length, Operand, Operation, Source, Unary,
};
use super::wire::Wire;

/// Fuses instructions of a section; `fields` are the emitted ones.
pub(crate) fn fuse(mut instructions: Vec<Instruction>, fields: &[Field]) -> Vec<Instruction> {
    for at in 0..instructions.len() {
        if let Some(fused) = fused(&instructions, instructions[at].operation, fields) {
            instructions[at].operation = fused;
        }
    }
    let taken = |field: usize| {
        let by = |instruction: &Instruction| match instruction.operation {
            Operation::YieldSelect(own, ..) | Operation::YieldScaled(own, _) => own == field,
            _ => false,
        };
        instructions.iter().any(by)
    };
    let idle: Vec<bool> = instructions
        .iter()
        .map(|instruction| matches!(instruction.operation, Operation::Take(field) if taken(field)))
        .collect();
    without_idle(instructions, &idle)
}

/// Returns the fusion of an operation with the instructions of its operands, if there is one.
fn fused(
    instructions: &[Instruction],
    operation: Operation,
    fields: &[Field],
) -> Option<Operation> {
    let made = |value| made(instructions, value);
    let bits = |field: usize| match fields[field].wire {
        Wire::Bits { width, .. } => width,
        _ => 0,
    };
    match operation {
        Operation::Sample { value, absolute: false } => match made(value)? {
            Operation::Unary(Unary::Absolute, value) => {
                Some(Operation::Sample { value, absolute: true })
            }
            _ => None,
        },
        Operation::Where(mask) => {
            let (x, threshold) = above(instructions, mask)?;
            Some(Operation::WhereAbove(x, threshold))
        }
        Operation::LargestWhere(value, mask) => {
            let (x, threshold) = above(instructions, mask)?;
            (x == value).then_some(Operation::LargestAbove(x, threshold))
        }
        Operation::Emit(field, value) => match made(value)? {
            Operation::RoundRandom(x) if (2..8).contains(&bits(field)) => match made(x)? {
                Operation::Binary(Binary::Multiply, x, factor) if !single(x) && single(factor) => {
                    Some(Operation::EmitRoundRandom(field, x, factor))
                }
                _ => None,
            },
            _ => None,
        },
        Operation::Yield(value) => match made(value)? {
            Operation::Select(mask, a, b) if single(a) && single(b) => match made(mask)? {
                Operation::Take(field) if !single(mask) => {
                    Some(Operation::YieldSelect(field, a, b))
                }
                _ => None,
            },
            Operation::Binary(Binary::Multiply, codes, scale) if single(scale) => {
                let Operation::Number(codes) = made(codes)? else { return None };
                match made(codes)? {
                    Operation::Take(field) if (2..8).contains(&bits(field)) && !single(codes) => {
                        Some(Operation::YieldScaled(field, scale))
                    }
                    _ => None,
                }
            }
            _ => None,
        },
        _ => None,
    }
}

/// Returns whether a value is one per block or constant.
fn single(value: Operand) -> bool {
    matches!(value.length, Length::Constant | Length::One)
}

/// Returns numbers and threshold of a mask `abs(x) >= threshold`.
fn above(instructions: &[Instruction], mask: Operand) -> Option<(Operand, Operand)> {
    match made(instructions, mask)? {
        Operation::Compare(Comparison::AtMost, threshold, magnitude)
            if single(threshold) && matches!(magnitude.source, Source::Number(_)) =>
        {
            match made(instructions, magnitude)? {
                Operation::Unary(Unary::Absolute, x) => Some((x, threshold)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns the operation whose result is a value.
fn made(instructions: &[Instruction], value: Operand) -> Option<Operation> {
    let maker = instructions.iter().find(|maker| {
        let register = matches!(value.source, Source::Number(_) | Source::Int(_));
        register && maker.output.is_some_and(|output| output.source == value.source)
    });
    maker.map(|maker| maker.operation)
}

/// Leaves out, from the last one backwards, instructions whose result is not read. Taken bytes may be
/// corrupt and must be checked, so a take is left out only where `idle` says that a fused operation
/// reads the field.
fn without_idle(instructions: Vec<Instruction>, idle: &[bool]) -> Vec<Instruction> {
    let mut kept: Vec<Instruction> = Vec::with_capacity(instructions.len());
    for (instruction, idle) in instructions.into_iter().zip(idle).rev() {
        let unread = instruction.output.is_some_and(|output| {
            let reads = |later: &Instruction| {
                let mut operation = later.operation;
                operation.operands().iter().any(|read| read.source == output.source)
            };
            !kept.iter().any(reads)
        });
        let taken = matches!(instruction.operation, Operation::Take(_)) && !idle;
        if !unread || taken {
            kept.push(instruction);
        }
    }
    kept.reverse();
    kept
}
