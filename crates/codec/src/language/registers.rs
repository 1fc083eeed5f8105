//! Which register holds what, and for how long.
//!
//! The checker gives every value a number of its own. Here values that are not needed at the same
//! time share a register, so that the working set stays small.

use std::collections::HashMap;

use super::program::{Instruction, Operand, Source};

/// Rewrites both sections; how many registers of f32 and of i32 they need.
pub(crate) fn assign(
    encode: Vec<Instruction>,
    decode: Vec<Instruction>,
) -> (Vec<Instruction>, Vec<Instruction>, (usize, usize)) {
    let (mut numbers, mut wholes) = (0, 0);
    let mut section = |mut instructions: Vec<Instruction>| {
        let uses = last_uses(&instructions);
        let mut banks = (Bank::default(), Bank::default());
        for (at, instruction) in instructions.iter_mut().enumerate() {
            for operand in instruction.operation.operands() {
                rename(operand, &banks);
            }
            // The output is given its register before the operands give theirs back: an operation
            // never writes where it reads.
            if let Some(output) = &mut instruction.output {
                match &mut output.source {
                    Source::Number(value) => *value = banks.0.take(*value),
                    Source::Whole(value) => *value = banks.1.take(*value),
                    _ => {}
                }
            }
            banks.0.release(at, &uses);
            banks.1.release(at, &uses);
        }
        (numbers, wholes) = (numbers.max(banks.0.size), wholes.max(banks.1.size));
        instructions
    };
    let (encode, decode) = (section(encode), section(decode));
    (encode, decode, (numbers, wholes))
}

/// Registers of one kind.
#[derive(Default)]
struct Bank {
    places: HashMap<usize, usize>,
    free: Vec<usize>,
    size: usize,
}

impl Bank {
    fn take(&mut self, value: usize) -> usize {
        let register = self.free.pop().unwrap_or_else(|| {
            self.size += 1;
            self.size - 1
        });
        self.places.insert(value, register);
        register
    }

    /// Frees what nothing after instruction `at` reads.
    fn release(&mut self, at: usize, uses: &HashMap<usize, usize>) {
        let free = &mut self.free;
        self.places.retain(|value, register| {
            let needed = uses.get(value).is_some_and(|last| *last > at);
            if !needed {
                free.push(*register);
            }
            needed
        });
        // A map has no order, and the same text gives the same program.
        free.sort_unstable();
    }
}

fn rename(operand: &mut Operand, banks: &(Bank, Bank)) {
    match &mut operand.source {
        Source::Number(value) => *value = banks.0.places[value],
        Source::Whole(value) => *value = banks.1.places[value],
        _ => {}
    }
}

/// For each value the last instruction that reads it.
fn last_uses(instructions: &[Instruction]) -> HashMap<usize, usize> {
    let mut uses = HashMap::new();
    for (at, instruction) in instructions.iter().enumerate() {
        for operand in instruction.operation.clone().operands() {
            if let Source::Number(value) | Source::Whole(value) = operand.source {
                uses.insert(value, at);
            }
        }
    }
    uses
}
