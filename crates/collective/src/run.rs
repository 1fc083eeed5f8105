//! One execution of a program on one buffer: messages sent and received, and tasks that are ready.

mod compute;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use thinwire_codec::Finite;
use thinwire_device::{
    Batch, Canonicalise, Change, Failure, HostBytes, Pending, Submission, Work, submit,
};
use thinwire_schedule::{Operation, Slot};
use thinwire_wire::{DType, HEADER_BYTES, Header, Kind, Rank, Tag, World};

use self::compute::decoding;
use crate::Buffer;
use crate::buffer::Pool;
use crate::error::{COUNTS, Error, is_call};
use crate::program::{Home, Program};

/// The address of a run, equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The training step or the number of the call.
    pub step: u64,
    /// The bucket within the step; for a plain call, a checksum that identifies the call by its
    /// operation and arguments.
    pub tensor: u32,
    /// The seed of random rounding, the same in the whole job.
    pub seed: u64,
    /// The name of the operation in an error: "all_reduce".
    pub operation: &'static str,
}

impl Address {
    /// Returns the address of an exchange that is counted by itself and not by steps of training;
    /// `count` is below 2^62.
    pub fn counted(count: u64, tensor: u32, operation: &'static str) -> Address {
        Address { step: COUNTS | count, tensor, seed: 0, operation }
    }
}

/// A message of an exchange in which this rank takes part when another rank asks for it, see
/// [`Driver::answer`](crate::Driver::answer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The rank that asks, by its number in the group.
    pub from: Rank,
    /// The count of its exchange, as in [`Address::counted`].
    pub count: u64,
}

/// Time and traffic of a run so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// Time spent encoding.
    pub encode: Duration,
    /// Time spent decoding and merging.
    pub decode: Duration,
    /// Bytes handed to the link, headers included.
    pub sent_bytes: u64,
    /// Bytes received, headers included.
    pub received_bytes: u64,
}

/// A question that a device answers later: whether values that this rank gives are finite.
pub struct Check(Box<dyn FnMut() -> Option<Result<Finite, Failure>> + Send>);

impl Check {
    /// Returns a question; `poll` returns its answer once there is one.
    pub fn new(poll: impl FnMut() -> Option<Result<Finite, Failure>> + Send + 'static) -> Check {
        Check(Box::new(poll))
    }

    /// Removes the questions that have an answer. Returns whether all of these answers report finite
    /// values.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn answered(checks: &mut Vec<Check>) -> Result<Finite, Failure> {
        let (mut finite, mut failure) = (Finite::Yes, None);
        checks.retain_mut(|check| match check.answer() {
            Some(Ok(Finite::Yes)) => false,
            Some(Ok(Finite::No)) => {
                finite = Finite::No;
                false
            }
            Some(Err(error)) => {
                failure = Some(error);
                false
            }
            None => true,
        });
        failure.map_or(Ok(finite), Err)
    }

    /// Returns the answer, once, if there is one.
    ///
    /// # Errors
    /// If the device has failed.
    fn answer(&mut self) -> Option<Result<Finite, Failure>> {
        (self.0)()
    }
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Check")
    }
}

/// One execution of a program on `values`, which are replaced by the result.
///
/// With feedback, the values become the new residual instead, and [`Run::commit`] returns the result.
#[derive(Debug)]
pub struct Run<V> {
    program: Arc<Program>,
    pub(crate) address: Address,
    /// The description of the call, if one was given.
    words: Option<String>,
    world: World,
    values: V,
    residual: Option<V>,
    tasks: Vec<TaskState>,
    /// Work that a device has not done yet, by task.
    running: Vec<(u32, Pending)>,
    ready: BinaryHeap<Reverse<u32>>,
    outbox: Vec<u32>,
    slots: Vec<HostBytes>,
    readers: Vec<u32>,
    left: usize,
    /// Questions about the values that a device has not answered yet: no message leaves before all are
    /// answered.
    checks: Vec<Check>,
    nonfinite: bool,
    pub(crate) bulk: bool,
    times: Times,
}

impl<V: Buffer> Run<V> {
    /// Starts a run in `world`. A program with feedback needs the `residual` that earlier runs have
    /// left.
    ///
    /// # Panics
    /// If `values` or `residual` do not have the program's length, or a residual is missing.
    pub fn new(
        program: Arc<Program>,
        address: Address,
        world: World,
        values: V,
        residual: Option<V>,
    ) -> Run<V> {
        assert!(
            program.fits(&values),
            "values of another length, dtype or memory than the program's"
        );
        assert_eq!(
            residual.is_some(),
            program.feedback,
            "a residual where and only where there is feedback"
        );
        if let Some(residual) = &residual {
            assert!(program.fits(residual), "residual of another length");
        }
        let mut run = Run {
            address,
            words: None,
            world,
            values,
            residual,
            tasks: program.waits.iter().map(|waits| TaskState::Waiting(*waits)).collect(),
            running: Vec::new(),
            ready: BinaryHeap::new(),
            outbox: Vec::new(),
            slots: vec![HostBytes::default(); program.lengths.len()],
            readers: program.readers.clone(),
            left: program.operations.len() - program.deferred.len(),
            checks: Vec::new(),
            nonfinite: false,
            bulk: false,
            times: Times::default(),
            program,
        };
        for task in 0..run.tasks.len() as u32 {
            if run.tasks[task as usize] == TaskState::Waiting(0) {
                run.release(task);
            }
        }
        run
    }

    /// Declares that no rank waits for this run yet: its messages do not hold up those of other runs,
    /// if there is a connection for bulk messages.
    pub fn bulk(mut self) -> Run<V> {
        self.bulk = true;
        self
    }

    /// Describes this plain call, before it begins, by the arguments that should be the same on all
    /// ranks. If a peer's call has another description, the run fails.
    pub fn called(mut self, words: String) -> Run<V> {
        self.address.tensor ^= thinwire_wire::checksum(words.as_bytes());
        self.words = Some(words);
        self
    }

    /// Returns whether everything that has to cross the network has crossed it.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.checks.is_empty()
    }

    /// Lets messages, and the end of the run, wait for the answers to these questions. Peers learn of
    /// values that are not finite as if [`Run::mark_nonfinite`] had been called.
    pub fn check(&mut self, checks: Vec<Check>) {
        self.checks.extend(checks);
    }

    /// Declares that this rank's values have a NaN or an infinity. Codecs find this out themselves; for
    /// a raw exchange, the caller may know it without looking at all values.
    pub fn mark_nonfinite(&mut self) {
        self.nonfinite = true;
    }

    /// Returns whether no rank gave a NaN or an infinity. The answer is final once the run is done, and
    /// then the same on all ranks. Raw exchanges do not look at values, and need
    /// [`Run::mark_nonfinite`].
    pub fn is_finite(&self) -> bool {
        !self.nonfinite
    }

    /// Asks for the largest magnitude of the values, which [`thinwire_device::Done::largest`] returns.
    ///
    /// # Panics
    /// If they are not f32.
    pub fn measure(&mut self, waker: &Waker) -> Submission {
        let elements = 0..self.program.elements;
        submit(Work::Change(self.values.operand(elements), Change::Measure), waker)
    }

    /// Returns the program that runs.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the address of the run.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Returns the values as they are now.
    ///
    /// # Panics
    /// If they are not f32.
    pub fn values(&self) -> &[f32] {
        self.values.values()
    }

    /// Returns time and traffic of the run since the last call.
    pub fn take_times(&mut self) -> Times {
        std::mem::take(&mut self.times)
    }

    /// Returns the values and the residual. Without feedback the values are the result.
    pub fn into_parts(self) -> (V, Option<V>) {
        (self.values, self.residual)
    }

    /// Returns the result of a run with feedback, written over the old residual, and the new residual.
    ///
    /// # Errors
    /// If the bytes that peers sent are not valid encodings.
    ///
    /// # Panics
    /// If the run is not done or has no feedback.
    pub fn commit(mut self) -> Result<(V, V), Error> {
        assert!(self.is_done() && self.program.feedback, "commit of an unfinished run");
        let mut result = self.residual.take().expect("a run with feedback has a residual");
        let program = Arc::clone(&self.program);
        let mut batch = Batch::new();
        for &task in &program.deferred {
            batch.submit(decoding(
                &program,
                &self.slots,
                task,
                &mut result,
                Canonicalise::default(),
            ));
        }
        batch.wait().map_err(|failure| self.failed(failure))?;
        Ok((result, self.values))
    }

    /// Returns the ranks from which messages are still missing.
    pub(crate) fn awaited(&self) -> Vec<Rank> {
        let missing = |task: &u32| self.tasks[*task as usize] != TaskState::Done;
        let arrivals = self.program.arrivals.iter().filter(|(_, task)| missing(task));
        let mut ranks: Vec<Rank> = arrivals.map(|((from, _), _)| *from).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    pub(crate) fn owns(&self, tag: &Tag) -> bool {
        let same = tag.tensor == self.address.tensor || is_call(tag.step);
        same && tag.step == self.address.step
    }

    /// Returns the next message to hand to the link.
    pub(crate) fn next_send(&mut self, epoch: u32) -> Option<(Rank, Header)> {
        if !self.checks.is_empty() {
            return None;
        }
        let task = self.outbox.pop()?;
        let Operation::Send { slot, to, message } = self.program.operations[task as usize] else {
            unreachable!("only sends are put in the outbox");
        };
        let length = self.frame(slot).unwrap_or(self.program.lengths[slot.index()]);
        let tag = Tag { step: self.address.step, tensor: self.address.tensor, message };
        let mut header = Header::new(Kind::Data, epoch, tag, length);
        header.nonfinite = self.nonfinite;
        header.dtype = self.program.wire(slot);
        self.times.sent_bytes += (length + HEADER_BYTES) as u64;
        Some((to, header))
    }

    /// Returns the payload of a message that was handed to the link.
    pub(crate) fn outgoing(&self, to: Rank, message: u32) -> &[u8] {
        let Some(&task) = self.program.departures.get(&(to, message)) else { return &[] };
        let slot = self.slot_of(task);
        match &self.program.homes[slot] {
            Home::Buffer => {
                let length = self.frame(self.program.operations[task as usize].slot());
                let bytes = self.slots[slot].as_slice();
                &bytes[..length.unwrap_or(bytes.len())]
            }
            Home::Tensor(range) => &self.values.bytes()[range.clone()],
        }
    }

    /// Returns the length of the encoding in a slot, if it depends on the values.
    fn frame(&self, slot: Slot) -> Option<usize> {
        let codec = self.program.codec_of(slot);
        codec.is_variable().then(|| codec.frame_len(self.slots[slot.index()].as_slice()))
    }

    pub(crate) fn sent(&mut self, to: Rank, message: u32, pool: &mut Pool) {
        if let Some(&task) = self.program.departures.get(&(to, message)) {
            self.release_slot(task, pool);
            self.finish(task);
        }
    }

    /// Returns the messages that this run expects.
    pub(crate) fn arrivals(&self) -> impl Iterator<Item = (Rank, u32)> {
        self.program.arrivals.keys().copied()
    }

    /// Returns why a message that begins to arrive cannot be taken, if it cannot.
    pub(crate) fn fault(&self, from: Rank, header: &Header) -> Option<Error> {
        let message = header.tag.message;
        if header.tag.tensor != self.address.tensor {
            let (me, words) = (self.world.rank(), self.words.as_deref());
            let words = words.unwrap_or(self.address.operation);
            let text = format!("calls differ: {me} is at {words}, {from} at something else");
            return Some(self.corrupt(Some(from), text));
        }
        let Some(&task) = self.program.arrivals.get(&(from, message)) else {
            let text = format!("{from} sent message {message}, which is not in this schedule");
            return Some(self.corrupt(Some(from), text));
        };
        let (expected, slot) = (self.program.lengths[self.slot_of(task)], self.slot_of(task));
        let is_variable = self.program.codec_of(Slot(slot as u32)).is_variable();
        let found = header.length as usize;
        if found > expected || found < expected && !is_variable {
            let most = if is_variable { "at most " } else { "" };
            let text =
                format!("length mismatch: {from} sent {found} bytes, expected {most}{expected}");
            return Some(self.corrupt(Some(from), text));
        }
        let expected = self.program.wire(self.program.operations[task as usize].slot());
        if header.dtype != expected {
            let name = |dtype: Option<DType>| dtype.map_or("bytes", DType::name);
            let (found, expected) = (name(header.dtype), name(expected));
            let text = format!("dtype mismatch: {from} sent {found}, expected {expected}");
            return Some(self.corrupt(Some(from), text));
        }
        (self.tasks[task as usize] == TaskState::Done).then(|| self.repeated(from, message))
    }

    /// Returns the place of a message that has no fault.
    pub(crate) fn place(&mut self, from: Rank, header: &Header, pool: &mut Pool) -> &mut [u8] {
        let task = self.program.arrivals[&(from, header.tag.message)];
        let slot = self.slot_of(task);
        match &self.program.homes[slot] {
            Home::Tensor(range) => &mut self.values.bytes_mut()[range.clone()],
            Home::Buffer => {
                if self.slots[slot].is_empty() {
                    self.slots[slot] = pool.take(self.program.lengths[slot], self.values.device());
                }
                &mut self.slots[slot].as_mut_slice()[..header.length as usize]
            }
        }
    }

    /// Marks a message as received, once its bytes are in place.
    ///
    /// # Errors
    /// If the message was received before: two connections may have brought it at once.
    pub(crate) fn received(&mut self, from: Rank, header: &Header) -> Result<(), Error> {
        let message = header.tag.message;
        let Some(&task) = self.program.arrivals.get(&(from, message)) else { return Ok(()) };
        if self.tasks[task as usize] == TaskState::Done {
            return Err(self.repeated(from, message));
        }
        let slot = self.program.operations[task as usize].slot();
        if let Some(stated) = self.frame(slot).filter(|stated| *stated != header.length as usize) {
            let found = header.length;
            let text = format!("length mismatch: {from} sent {found} bytes, which state {stated}");
            return Err(self.corrupt(Some(from), text));
        }
        self.nonfinite |= header.nonfinite;
        self.times.received_bytes += header.length as u64 + HEADER_BYTES as u64;
        self.finish(task);
        Ok(())
    }

    fn slot_of(&self, task: u32) -> usize {
        self.program.operations[task as usize].slot().index()
    }

    fn release_slot(&mut self, task: u32, pool: &mut Pool) {
        let slot = self.slot_of(task);
        self.readers[slot] -= 1;
        if self.readers[slot] == 0 {
            pool.put(std::mem::take(&mut self.slots[slot]));
        }
    }

    /// Marks a task done and releases the tasks that waited for it.
    fn finish(&mut self, task: u32) {
        self.tasks[task as usize] = TaskState::Done;
        self.left -= 1;
        let program = Arc::clone(&self.program);
        for &next in &program.dependents[task as usize] {
            let TaskState::Waiting(waits) = &mut self.tasks[next as usize] else {
                unreachable!("a task waits for all before it")
            };
            *waits -= 1;
            if *waits == 0 {
                self.release(next);
            }
        }
    }

    fn release(&mut self, task: u32) {
        match &self.program.operations[task as usize] {
            Operation::Send { .. } => self.outbox.push(task),
            Operation::Recv { .. } => {}
            _ if self.program.deferred.binary_search(&task).is_ok() => {}
            _ => self.ready.push(Reverse(task)),
        }
    }

    fn repeated(&self, from: Rank, message: u32) -> Error {
        self.corrupt(Some(from), format!("{from} sent message {message} twice"))
    }

    /// Returns the error of work that has failed: no peer is to blame for a device.
    fn failed(&self, failure: Failure) -> Error {
        match failure {
            Failure::Corrupt(detail) => self.corrupt(None, detail),
            Failure::Device(detail) => Error::stopped(detail),
        }
    }

    fn corrupt(&self, peer: Option<Rank>, detail: String) -> Error {
        Error::corrupt(self.address.operation, Some(self.address.step), peer, detail)
    }
}

/// State of a task of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskState {
    /// Waits for this number of other tasks; at 0 it is ready, or its message is under way.
    Waiting(u32),
    /// A device computes it.
    Running,
    /// Done.
    Done,
}
