//! A schedule bound to a codec, ready to be run any number of times.
//!
//! Everything that does not change from step to step is worked out here once: encoded lengths, who
//! waits for whom, which message belongs to which task, and which slots need no buffer because a
//! raw codec lets the link read and write the tensor itself.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_schedule::{Operation, Schedule, Task};
use thinwire_wire::{DType, Rank};

use crate::Buffer;
use crate::buffer::element_bytes;

/// Where the bytes of a slot are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// In a buffer of the slot's own.
    Buffer,
    /// In the tensor itself: these bytes, as they are.
    Tensor(Range<usize>),
}

/// A schedule with its codec.
#[derive(Debug)]
pub struct Program {
    pub(crate) operations: Vec<Operation>,
    pub(crate) codec: Arc<dyn Codec>,
    /// The dtype of messages; none for encodings and bytes.
    pub(crate) wire: Option<DType>,
    /// The dtype of the tensor.
    pub(crate) dtype: Option<DType>,
    /// The values become the residual, and results wait for [`crate::Run::commit`].
    pub(crate) feedback: bool,
    /// For each task, how many others it waits for.
    pub(crate) waits: Vec<u32>,
    /// For each task, those that wait for it.
    pub(crate) dependents: Vec<Vec<u32>>,
    /// For each slot, its length in bytes.
    pub(crate) lengths: Vec<usize>,
    /// For each slot, where its bytes are.
    pub(crate) homes: Vec<Home>,
    /// For each slot, how many tasks read it.
    pub(crate) readers: Vec<u32>,
    pub(crate) arrivals: HashMap<(Rank, u32), u32>,
    pub(crate) departures: HashMap<(Rank, u32), u32>,
    /// For each task, whether it is a merge into values that no task before it has touched.
    pub(crate) first_merges: Vec<bool>,
    /// For each task, whether it is a merge into values that no task after it touches.
    pub(crate) last_merges: Vec<bool>,
    /// The tasks that write the result and are left for [`crate::Run::commit`].
    pub(crate) deferred: Vec<u32>,
    pub(crate) elements: usize,
}

impl Program {
    /// Binds `schedule`, over `elements` values, to `codec`; with feedback where the codec needs it.
    pub fn new(schedule: Schedule, elements: usize, codec: Arc<dyn Codec>) -> Program {
        let feedback = codec.needs_feedback();
        Program::bound(schedule, elements, codec, feedback)
    }

    /// Binds `schedule`, over `elements` of `dtype` (bytes if there is none), to no codec: elements of
    /// any type are moved as they are.
    ///
    /// # Panics
    /// If the schedule sums.
    pub fn moving(schedule: Schedule, elements: usize, dtype: Option<DType>) -> Program {
        let merges = |task: &Task| matches!(task.operation, Operation::Merge { .. });
        assert!(!schedule.tasks.iter().any(merges), "a schedule that sums needs a codec");
        let bytes = element_bytes(dtype);
        let lengths = schedule.slots.iter().map(|count| count * bytes).collect();
        let homes = homes(&schedule, bytes);
        let program = Program::bound(schedule, elements, thinwire_codec::raw(), false);
        Program { wire: dtype, dtype, lengths, homes, ..program }
    }

    /// The same without feedback whatever the codec: what it loses is lost.
    pub fn plain(schedule: Schedule, elements: usize, codec: Arc<dyn Codec>) -> Program {
        Program::bound(schedule, elements, codec, false)
    }

    fn bound(
        schedule: Schedule,
        elements: usize,
        codec: Arc<dyn Codec>,
        feedback: bool,
    ) -> Program {
        let tasks = &schedule.tasks;
        let early = |task: &Task| {
            matches!(task.operation, Operation::Recv { .. }) && !task.after.is_empty()
        };
        assert!(!tasks.iter().any(early), "a receive waits for nothing but its message");
        let mut program = Program {
            feedback,
            waits: tasks.iter().map(|task| task.after.len() as u32).collect(),
            dependents: vec![Vec::new(); tasks.len()],
            lengths: schedule.slots.iter().map(|&count| codec.encoded_len(count)).collect(),
            homes: match codec.is_raw() {
                true => homes(&schedule, size_of::<f32>()),
                false => vec![Home::Buffer; schedule.slots.len()],
            },
            wire: codec.dtype(),
            dtype: Some(DType::F32),
            readers: vec![0; schedule.slots.len()],
            arrivals: HashMap::new(),
            departures: HashMap::new(),
            first_merges: first_merges(tasks.iter()),
            last_merges: last_merges(tasks),
            deferred: Vec::new(),
            operations: tasks.iter().map(|task| task.operation.clone()).collect(),
            codec,
            elements,
        };
        for (index, task) in tasks.iter().enumerate() {
            for &before in &task.after {
                program.dependents[before as usize].push(index as u32);
            }
            program.wire_up(index as u32, feedback && task.result);
        }
        program
    }

    fn wire_up(&mut self, index: u32, deferred: bool) {
        if deferred {
            self.deferred.push(index);
        }
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

    /// The codec that this program encodes with.
    pub fn codec(&self) -> &Arc<dyn Codec> {
        &self.codec
    }

    /// How many values it runs on.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Whether `buffer` is what it runs on.
    pub(crate) fn fits(&self, buffer: &impl Buffer) -> bool {
        buffer.dtype() == self.dtype && buffer.elements() == self.elements
    }

    /// Whether it turns its values into the new residual and leaves the result for a commit.
    pub fn feedback(&self) -> bool {
        self.feedback
    }

    /// Payload bytes that this rank sends in one run.
    pub fn sent_bytes(&self) -> u64 {
        let sent = |operation: &Operation| match operation {
            Operation::Send { slot, .. } => self.lengths[slot.0 as usize] as u64,
            _ => 0,
        };
        self.operations.iter().map(sent).sum()
    }
}

/// Which merges are the first to touch their values, as the tasks come.
fn first_merges<'a>(tasks: impl Iterator<Item = &'a Task>) -> Vec<bool> {
    // Tasks touch the same chunk or different ones, so where it begins says which.
    let mut touched = HashSet::new();
    let first = |task: &'a Task| {
        let (Operation::Encode { range, .. }
        | Operation::Merge { range, .. }
        | Operation::Decode { range, .. }) = &task.operation
        else {
            return false;
        };
        touched.insert(range.start) && matches!(task.operation, Operation::Merge { .. })
    };
    tasks.map(first).collect()
}

/// Which merges are the last to touch their values.
fn last_merges(tasks: &[Task]) -> Vec<bool> {
    let mut merges = first_merges(tasks.iter().rev());
    merges.reverse();
    merges
}

/// Where each slot lives if elements, of so many bytes, travel as they are: in the tensor itself where
/// the schedule allows it, except where a slot is received to be added.
fn homes(schedule: &Schedule, element_bytes: usize) -> Vec<Home> {
    let mut homes = vec![Home::Buffer; schedule.slots.len()];
    if !schedule.in_place() {
        return homes;
    }
    for task in &schedule.tasks {
        if let Operation::Encode { range, slot } | Operation::Decode { slot, range } =
            &task.operation
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
