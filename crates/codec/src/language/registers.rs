//! Register allocation.
//!
//! The checker gives every value a number of its own. Here values that are not needed at the same
//! time share a register, so that the working set stays small.

use std::collections::HashMap;

use super::program::{Instruction, Operand, Source};

/// Rewrites both sections; returns them with the numbers of registers of f32 and of i32.
pub(crate) fn assign(
    encode: Vec<Instruction>,
    decode: Vec<Instruction>,
) -> (Vec<Instruction>, Vec<Instruction>, (usize, usize)) {
    let (mut numbers, mut ints) = (0, 0);
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
                    Source::Int(value) => *value = banks.1.take(*value),
                    _ => {}
                }
            }
            banks.0.release(at, &uses);
            banks.1.release(at, &uses);
        }
        (numbers, ints) = (numbers.max(banks.0.size), ints.max(banks.1.size));
        instructions
    };
    let (encode, decode) = (section(encode), section(decode));
    (encode, decode, (numbers, ints))
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

    /// Frees the registers that no instruction after `at` reads.
    fn release(&mut self, at: usize, uses: &HashMap<usize, usize>) {
        let free = &mut self.free;
        self.places.retain(|value, register| {
            let needed = uses.get(value).is_some_and(|last| *last > at);
            if !needed {
                free.push(*register);
            }
            needed
        });
        // A map has no order, but equal texts must give equal programs.
        free.sort_unstable();
    }
}

fn rename(operand: &mut Operand, banks: &(Bank, Bank)) {
    match &mut operand.source {
        Source::Number(value) => *value = banks.0.places[value],
        Source::Int(value) => *value = banks.1.places[value],
        _ => {}
    }
}

/// Returns, for each value, the last instruction that reads it.
fn last_uses(instructions: &[Instruction]) -> HashMap<usize, usize> {
    let mut uses = HashMap::new();
    for (at, instruction) in instructions.iter().enumerate() {
        for operand in instruction.operation.clone().operands() {
            if let Source::Number(value) | Source::Int(value) = operand.source {
                uses.insert(value, at);
            }
        }
    }
    uses
}
