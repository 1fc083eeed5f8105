//! Liveness: a slot is freed directly after its last reader, in the order of one micro-batch.

use std::collections::HashSet;

use crate::{Instruction, Slot};

/// Adds instructions that free slots once they are no longer read, to the passes of a micro-batch (first
/// forward, then backward). Slots in `lasting` are kept.
pub fn insert_frees<K>(phases: &mut [(K, Vec<Instruction>)], lasting: &[Slot]) {
    let lasting: HashSet<Slot> = lasting.iter().copied().collect();
    let mut live = lasting.clone();
    for (_, list) in phases.iter_mut().rev() {
        let mut backwards = Vec::with_capacity(2 * list.len());
        for instruction in std::mem::take(list).into_iter().rev() {
            let (reads, writes) = touched(&instruction);
            let last = reads.iter().chain(&writes).filter(|slot| live.insert(**slot));
            let last: Vec<Slot> = last.copied().collect();
            backwards.extend(last.into_iter().map(|slot| Instruction::Free { slot }));
            writes.iter().filter(|slot| !lasting.contains(slot)).for_each(|slot| {
                live.remove(slot);
            });
            live.extend(reads);
            backwards.push(instruction);
        }
        backwards.reverse();
        *list = backwards;
    }
}

/// Returns the slots that an instruction reads, and those that it writes.
fn touched(instruction: &Instruction) -> (Vec<Slot>, Vec<Slot>) {
    match instruction {
        Instruction::Load { to } | Instruction::Recv { slot: to, .. } => (Vec::new(), vec![*to]),
        Instruction::Compute { inputs, outputs, .. } => (inputs.clone(), outputs.clone()),
        Instruction::Convert(convert) => (vec![convert.from], vec![convert.to]),
        Instruction::Send { slot, .. }
        | Instruction::Gradient { slot, .. }
        | Instruction::Loss { slot }
        | Instruction::Free { slot } => (vec![*slot], Vec::new()),
    }
}
