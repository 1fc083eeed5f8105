//! Encodings, merges and decodings of a run, each submitted to the device where the values lie.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use thinwire_codec::{Finite, Write};
use thinwire_device::{Canonicalise, Decoding, Done, Encoding, Submission, Work, submit};
use thinwire_schedule::Operation;
use thinwire_wire::random::Key;

use super::{Address, Check, Run, TaskState};
use crate::Buffer;
use crate::buffer::Pool;
use crate::error::{CALLS, Error, is_call};
use crate::program::{Home, Program};

impl<V: Buffer> Run<V> {
    /// Takes back work that a device has done, and submits one task if one is ready. Returns whether any
    /// task was done or submitted; `waker` is woken when submitted work is done.
    pub(crate) fn compute(&mut self, pool: &mut Pool, waker: &Waker) -> Result<bool, Error> {
        let collected = self.collect(pool)?;
        let Some(Reverse(task)) = self.ready.pop() else { return Ok(collected) };
        let program = Arc::clone(&self.program);
        let operation = &program.operations[task as usize];
        if program.homes[operation.slot().index()] != Home::Buffer {
            // The link reads and writes the values themselves.
            if !matches!(operation, Operation::Encode { .. }) {
                self.release_slot(task, pool);
            }
            self.finish(task);
            return Ok(true);
        }
        let work = match operation {
            Operation::Encode { range, slot } => Work::Encode(Encoding {
                codec: program.codec_of(*slot),
                residual: self.residual.as_ref().map(|residual| residual.source(range.clone())),
                key: self.key(range.start),
                to: pool.take(program.lengths[slot.index()], self.values.device()),
                values: self.values.operand(range.clone()),
            }),
            _ => self.decoding(&program, task),
        };
        match submit(work, waker) {
            Submission::Done(done) => self.computed(task, done, pool)?,
            Submission::Pending(pending) => {
                self.tasks[task as usize] = TaskState::Running;
                self.running.push((task, pending));
            }
        }
        Ok(true)
    }

    /// Returns whether a device has work of this run.
    pub(crate) fn is_computing(&self) -> bool {
        !self.running.is_empty() || !self.checks.is_empty()
    }

    /// Finishes the tasks whose work is done, and takes in the answers of the device. Returns whether there
    /// were any.
    fn collect(&mut self, pool: &mut Pool) -> Result<bool, Error> {
        let unanswered = self.checks.len();
        let finite = Check::answered(&mut self.checks).map_err(|failure| self.failed(failure))?;
        self.nonfinite |= finite == Finite::No;
        let answered = self.checks.len() < unanswered;
        let mut ended = Vec::new();
        self.running.retain_mut(|(task, pending)| match pending.poll() {
            Some(done) => {
                ended.push((*task, done));
                false
            }
            None => true,
        });
        let any = answered || !ended.is_empty();
        ended.into_iter().try_for_each(|(task, done)| self.computed(task, done, pool))?;
        Ok(any)
    }

    /// Takes in the result of a task, and releases those that waited for it.
    fn computed(&mut self, task: u32, done: Done, pool: &mut Pool) -> Result<(), Error> {
        let Done { finite, bytes, busy, failure, .. } = done;
        if let Some(failure) = failure {
            return Err(self.failed(failure));
        }
        if let Operation::Encode { slot, .. } = self.program.operations[task as usize] {
            // Where values in host memory are sent as they are, nobody looks at them either.
            self.nonfinite |= finite == Finite::No && !self.program.is_unseen(slot);
            self.slots[slot.index()] = bytes;
            self.times.encode += busy;
        } else {
            // The pool takes bytes back that nobody else has.
            drop(bytes);
            self.times.decode += busy;
            self.release_slot(task, pool);
        }
        self.finish(task);
        Ok(())
    }

    /// Returns the work of a merge or a decode over the values.
    fn decoding<'a>(&'a mut self, program: &'a Program, task: u32) -> Work<'a> {
        let canonicalise = Canonicalise {
            before: program.first_merges[task as usize],
            after: program.last_merges[task as usize],
        };
        decoding(program, &self.slots, task, &mut self.values, canonicalise)
    }

    /// Returns the random numbers of the range that begins at element `start`. They are independent
    /// between ranks, unless the codec wants the same for all, and between the ranges of one tensor,
    /// whose elements an encoder counts from zero.
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

/// Returns the work of a merge or a decode whose slot has a buffer of its own.
pub(super) fn decoding<'a>(
    program: &'a Program,
    slots: &[thinwire_device::HostBytes],
    task: u32,
    values: &'a mut impl Buffer,
    canonicalise: Canonicalise,
) -> Work<'a> {
    let (slot, range, write): (_, Range<usize>, _) = match &program.operations[task as usize] {
        Operation::Merge { slot, range } => (*slot, range.clone(), Write::Add),
        Operation::Decode { slot, range } => (*slot, range.clone(), Write::Set),
        _ => unreachable!("only merges and decodes write values"),
    };
    let (codec, from) = (program.codec_of(slot), slots[slot.index()].clone());
    Work::Decode(Decoding { codec, from, to: values.operand(range), write, canonicalise })
}
