//! Fewer instructions for the same program.
//!
//! What one instruction makes and only the next one reads need not go through memory: such pairs
//! become one. An instruction whose result nobody reads is left out.

use super::program::{Instruction, Operand, Operation, Source, Unary};

/// The same instructions, fewer.
pub(crate) fn fuse(mut instructions: Vec<Instruction>) -> Vec<Instruction> {
    for at in 0..instructions.len() {
        if let Operation::Reduce { reduction, value, absolute: false } = instructions[at].operation
            && let Some(Operation::Unary(Unary::Absolute, value)) = made(&instructions, value)
        {
            instructions[at].operation = Operation::Reduce { reduction, value, absolute: true };
        }
    }
    without_idle(instructions)
}

/// The operation that makes a value.
fn made(instructions: &[Instruction], value: Operand) -> Option<Operation> {
    let maker = instructions.iter().find(|maker| {
        let register = matches!(value.source, Source::Number(_) | Source::Whole(_));
        register && maker.output.is_some_and(|output| output.source == value.source)
    });
    maker.map(|maker| maker.operation)
}

/// Leaves out, from the last one backwards, what makes a value that nobody reads.
fn without_idle(instructions: Vec<Instruction>) -> Vec<Instruction> {
    let mut kept: Vec<Instruction> = Vec::with_capacity(instructions.len());
    for instruction in instructions.into_iter().rev() {
        let idle = instruction.output.is_some_and(|output| {
            let reads = |later: &Instruction| {
                let mut operation = later.operation;
                operation.operands().iter().any(|read| read.source == output.source)
            };
            !kept.iter().any(reads)
        });
        // What is taken is read in order, whether it is needed or not.
        if !idle || matches!(instruction.operation, Operation::Take(_)) {
            kept.push(instruction);
        }
    }
    kept.reverse();
    kept
}
