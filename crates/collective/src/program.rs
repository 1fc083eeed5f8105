//! A schedule bound to a codec, ready to be run any number of times.
//!
//! Everything that does not change from step to step is computed here once: encoded lengths, the tasks
//! that each task waits for, the message of each task, and the slots that need no buffer because a raw
//! codec lets the link read and write the tensor itself.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_schedule::{Operation, Schedule, Slot, Task};
use thinwire_wire::{DType, HEADER_BYTES, Rank};

use crate::Buffer;
use crate::buffer::element_bytes;

/// Place of the bytes of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// In a buffer of the slot's own.
    Buffer,
    /// In the tensor itself: these bytes, as they are.
    Tensor(Range<usize>),
}

/// A schedule with its codec.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) operations: Vec<Operation>,
    codec: Arc<dyn Codec>,
    /// The codec of raw slots.
    plain: Arc<dyn Codec>,
    /// The first `raw` slots are raw.
    raw: usize,
    /// The element from which random numbers are counted.
    pub(crate) origin: usize,
    /// The dtype of messages; `None` for encodings and bytes.
    wire: Option<DType>,
    /// The dtype of the tensor.
    pub(crate) dtype: Option<DType>,
    /// Whether the values become the residual, and results wait for [`crate::Run::commit`].
    pub(crate) feedback: bool,
    /// For each task, how many others it waits for.
    pub(crate) waits: Vec<u32>,
    /// For each task, those that wait for it.
    pub(crate) dependents: Vec<Vec<u32>>,
    /// For each slot, its length in bytes; for a codec of variable length, the largest one.
    pub(crate) lengths: Vec<usize>,
    /// For each slot, the length to expect.
    expected: Vec<usize>,
    /// For each slot, where its bytes are.
    pub(crate) homes: Vec<Home>,
    /// For each slot of a program for a device, whether its bytes would be in the tensor; else empty.
    unseen: Vec<bool>,
    /// For each slot, how many tasks read it.
    pub(crate) readers: Vec<u32>,
    pub(crate) arrivals: HashMap<(Rank, u32), u32>,
    pub(crate) departures: HashMap<(Rank, u32), u32>,
    /// For each task, whether it is a merge into values that no task before it has touched.
    pub(crate) first_merges: Vec<bool>,
    /// For each task, whether it is a merge into values that no task after it touches.
    pub(crate) last_merges: Vec<bool>,
    /// The tasks that write the result, which are left for [`crate::Run::commit`].
    pub(crate) deferred: Vec<u32>,
    pub(crate) elements: usize,
}

impl Program {
    /// Binds `schedule`, over `elements` values, to `codec`; with feedback if the codec needs it.
    pub fn new(schedule: Schedule, elements: usize, codec: Arc<dyn Codec>) -> Program {
        if !codec.needs_feedback() {
            return Program::plain(schedule, elements, codec);
        }
        let tasks = (0..).zip(&schedule.tasks);
        let deferred = tasks.filter(|(_, task)| task.result).map(|(index, _)| index).collect();
        let program = Program::plain(schedule, elements, codec);
        // Every element that is encoded is read together with its residual.
        let homes = vec![Home::Buffer; program.homes.len()];
        Program { feedback: true, deferred, homes, ..program }
    }

    /// Returns the program for values in the memory of a device: every message has bytes of its own in
    /// host memory, even if the codec sends the values as they are.
    #[must_use]
    pub fn on_device(&self) -> Program {
        let unseen = self.homes.iter().map(|home| *home != Home::Buffer).collect();
        let homes = vec![Home::Buffer; self.homes.len()];
        Program { homes, unseen, ..self.clone() }
    }

    /// Returns whether the values of a slot would, in host memory, be sent from the tensor without
    /// being looked at.
    pub(crate) fn is_unseen(&self, slot: Slot) -> bool {
        self.unseen.get(slot.index()) == Some(&true)
    }

    /// Binds `schedule`, over `elements` of `dtype` (`None` for bytes), to no codec: elements of any
    /// type are moved as they are.
    ///
    /// # Panics
    /// If the schedule sums.
    pub fn moving(schedule: Schedule, elements: usize, dtype: Option<DType>) -> Program {
        let merges = |task: &Task| matches!(task.operation, Operation::Merge { .. });
        assert!(!schedule.tasks.iter().any(merges), "a schedule that sums needs a codec");
        let bytes = element_bytes(dtype);
        let lengths: Vec<usize> = schedule.slots.iter().map(|count| count * bytes).collect();
        let homes = homes(&schedule, bytes, |_| true);
        let program = Program::plain(schedule, elements, thinwire_codec::raw());
        Program { wire: dtype, dtype, expected: lengths.clone(), lengths, homes, ..program }
    }

    /// Binds `schedule` without feedback, whatever the codec: the codec error is lost.
    pub fn plain(schedule: Schedule, elements: usize, codec: Arc<dyn Codec>) -> Program {
        let tasks = &schedule.tasks;
        let early = |task: &Task| {
            matches!(task.operation, Operation::Recv { .. }) && !task.after.is_empty()
        };
        assert!(!tasks.iter().any(early), "a receive waits for nothing but its message");
        let mut program = Program {
            feedback: false,
            waits: tasks.iter().map(|task| task.after.len() as u32).collect(),
            dependents: vec![Vec::new(); tasks.len()],
            lengths: schedule.bytes(&|count| codec.encoded_len(count)),
            expected: schedule.bytes(&|count| codec.expected_len(count)),
            homes: homes(&schedule, size_of::<f32>(), |slot| {
                codec.is_raw() || schedule.is_raw(slot)
            }),
            unseen: Vec::new(),
            plain: thinwire_codec::raw(),
            raw: schedule.raw,
            origin: schedule.origin,
            wire: codec.dtype(),
            dtype: Some(DType::F32),
            readers: vec![0; schedule.slots.len()],
            arrivals: HashMap::new(),
            departures: HashMap::new(),
            first_merges: first_merges(&schedule, tasks.iter()),
            last_merges: last_merges(&schedule),
            deferred: Vec::new(),
            operations: tasks.iter().map(|task| task.operation.clone()).collect(),
            codec,
            elements,
        };
        for (index, task) in tasks.iter().enumerate() {
            for &before in &task.after {
                program.dependents[before as usize].push(index as u32);
            }
            program.wire_up(index as u32);
        }
        program
    }

    fn wire_up(&mut self, index: u32) {
        match &self.operations[index as usize] {
            Operation::Send { slot, to, message } => {
                self.readers[slot.0 as usize] += 1;
                self.departures.insert((*to, *message), index);
            }
            Operation::Recv { from, message, .. } => {
                self.arrivals.insert((*from, *message), index);
            }
            Operation::Merge { slot, .. } | Operation::Decode { slot, .. } => {
                self.readers[slot.0 as usize] += 1;
            }
            Operation::Encode { .. } => {}
        }
    }

    /// Returns the codec that this program encodes with.
    pub fn codec(&self) -> &Arc<dyn Codec> {
        &self.codec
    }

    /// Returns the codec of one slot.
    pub(crate) fn codec_of(&self, slot: Slot) -> &Arc<dyn Codec> {
        if slot.index() < self.raw { &self.plain } else { &self.codec }
    }

    /// Returns the dtype of a slot on the wire; `None` for encodings and bytes.
    pub(crate) fn wire(&self, slot: Slot) -> Option<DType> {
        if slot.index() < self.raw { self.plain.dtype() } else { self.wire }
    }

    /// Returns the number of values that the program runs on.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Returns whether the program can run on `buffer`.
    pub(crate) fn fits(&self, buffer: &impl Buffer) -> bool {
        let in_place = self.homes.iter().any(|home| *home != Home::Buffer);
        let is_reachable = !in_place || buffer.device().is_none();
        buffer.dtype() == self.dtype && buffer.elements() == self.elements && is_reachable
    }

    /// Returns whether a run turns its values into the new residual and leaves the result for a commit.
    pub fn feedback(&self) -> bool {
        self.feedback
    }

    /// Returns the bytes that this rank sends in one run, headers included; for a codec of variable
    /// length, the expected number.
    pub fn sent_bytes(&self) -> u64 {
        let sent = |operation: &Operation| match operation {
            Operation::Send { slot, .. } => (self.expected[slot.index()] + HEADER_BYTES) as u64,
            _ => 0,
        };
        self.operations.iter().map(sent).sum()
    }
}

/// Returns, for each task in this order, whether it is a merge of an encoding into values that no task
/// before it has encoded, merged or decoded.
fn first_merges<'a>(schedule: &Schedule, tasks: impl Iterator<Item = &'a Task>) -> Vec<bool> {
    // Tasks touch the same chunk or different ones, so where it begins says which.
    let mut touched = HashSet::new();
    let first = |task: &'a Task| {
        let Some(range) = task.operation.range() else { return false };
        // Sums within a unit are not the codec's.
        !schedule.is_raw(task.operation.slot())
            && touched.insert(range.start)
            && matches!(task.operation, Operation::Merge { .. })
    };
    tasks.map(first).collect()
}

/// Returns, for each task, whether it is a merge of an encoding into values that no task after it touches.
fn last_merges(schedule: &Schedule) -> Vec<bool> {
    let mut merges = first_merges(schedule, schedule.tasks.iter().rev());
    merges.reverse();
    merges
}

/// Returns the place of each slot. It is the tensor itself if the slot is `plain` in elements of
/// `element_bytes` bytes and the schedule allows it, except for slots that are received to be added.
fn homes(schedule: &Schedule, element_bytes: usize, plain: impl Fn(Slot) -> bool) -> Vec<Home> {
    let mut homes = vec![Home::Buffer; schedule.slots.len()];
    if !schedule.in_place() {
        return homes;
    }
    for task in &schedule.tasks {
        if let Operation::Encode { range, slot } | Operation::Decode { slot, range } =
            &task.operation
            && plain(*slot)
        {
            let bytes = range.start * element_bytes..range.end * element_bytes;
            homes[slot.index()] = Home::Tensor(bytes);
        }
    }
    for task in &schedule.tasks {
        if let Operation::Merge { slot, .. } = &task.operation {
            homes[slot.0 as usize] = Home::Buffer;
        }
    }
    homes
}
