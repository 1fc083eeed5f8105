//! Encodings, merges and decodings of a run, one at a time.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use thinwire_codec::{Finite, Input, Write};
use thinwire_schedule::{Operation, Slot};
use thinwire_wire::random::Key;

use super::{Address, Run};
use crate::Buffer;
use crate::buffer::Pool;
use crate::error::{CALLS, Error, is_call};
use crate::program::{Home, Program};

impl<V: Buffer> Run<V> {
    /// Encodes, merges or decodes once, if something is ready for it.
    pub(crate) fn compute(&mut self, pool: &mut Pool) -> Result<bool, Error> {
        let Some(Reverse(task)) = self.ready.pop() else { return Ok(false) };
        let begin = Instant::now();
        let program = Arc::clone(&self.program);
        let operation = &program.operations[task as usize];
        if let Operation::Encode { range, slot } = operation {
            self.encode(range.clone(), *slot, pool);
            self.times.encode += begin.elapsed();
        } else {
            self.canonicalise(&program.first_merges, task);
            decode(&program, &self.slots, operation, &mut self.values)
                .map_err(|error| self.corrupt(None, error.to_string()))?;
            self.canonicalise(&program.last_merges, task);
            self.times.decode += begin.elapsed();
            self.release_slot(task, pool);
        }
        self.finish(task);
        Ok(true)
    }

    /// Lets the codec canonicalise the values of a merge, if it is one of `merges`.
    fn canonicalise(&mut self, merges: &[bool], task: u32) {
        let operation = &self.program.operations[task as usize];
        if let (Operation::Merge { range, .. }, true) = (operation, merges[task as usize]) {
            self.program.codec().canonicalise(&mut self.values.values_mut()[range.clone()]);
        }
    }

    fn encode(&mut self, range: Range<usize>, slot: Slot, pool: &mut Pool) {
        if self.program.homes[slot.index()] != Home::Buffer {
            return;
        }
        let mut bytes = pool.take(self.program.lengths[slot.index()]);
        let key = self.key(range.start);
        let values = &mut self.values.values_mut()[range.clone()];
        let input = match &self.residual {
            Some(residual) => Input::Feedback { values, residual: &residual.values()[range] },
            None => Input::Plain(values),
        };
        let finite = self.program.codec_of(slot).encode(input, key, &mut bytes);
        self.nonfinite |= finite == Finite::No;
        self.slots[slot.index()] = bytes;
    }

    /// The random numbers of the range that begins at element `start`: independent between ranks,
    /// unless the codec wants the same for all, and between the ranges of one tensor, whose elements
    /// an encoder counts from zero.
    fn key(&self, start: usize) -> Key {
        let Address { step, tensor, seed, .. } = self.address;
        // Where nothing is drawn, a range may lie before the origin.
        let start = start.wrapping_sub(self.program.origin);
        // The number of a call finds its messages; its seed alone says what is drawn.
        let step = if is_call(step) { CALLS | seed } else { step };
        let seed = seed ^ (start as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let key = Key { seed, step, tensor };
        if self.program.codec().shares_randomness() {
            return key;
        }
        key.for_rank(self.world.rank().0)
    }
}

/// Carries out a merge or a decode on `values`.
pub(super) fn decode(
    program: &Program,
    slots: &[Vec<u8>],
    operation: &Operation,
    values: &mut impl Buffer,
) -> Result<(), thinwire_codec::Error> {
    let (slot, range, write) = match operation {
        Operation::Merge { slot, range } => (*slot, range, Write::Add),
        Operation::Decode { slot, range } => (*slot, range, Write::Set),
        _ => unreachable!("only merges and decodes write values"),
    };
    match &program.homes[slot.index()] {
        Home::Tensor(_) => Ok(()),
        Home::Buffer => {
            let values = &mut values.values_mut()[range.clone()];
            let (codec, bytes) = (program.codec_of(slot), &slots[slot.index()]);
            codec.decode(&bytes[..codec.frame_len(bytes)], write, values)
        }
    }
}
