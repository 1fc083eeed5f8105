//! The builder of schedules: tasks with their slots, message numbers and dependencies.
//!
//! The algorithms name the work and the values that it must wait for. The builder numbers tasks and
//! slots, makes every task wait for the slot that it reads, and puts the results last.

use std::ops::Range;

use thinwire_wire::{Rank, World};

use crate::{Operation, Schedule, Shape, Slot, Task};

/// A slot, with the task that fills it.
#[derive(Clone, Copy)]
pub(crate) struct Filled {
    slot: Slot,
    by: u32,
}

/// The phase that a message is part of. In each phase and direction, a pair of ranks exchanges at most
/// once the chunks that begin at a place, so phase and place number the message.
#[derive(Clone, Copy)]
pub(crate) enum Phase {
    /// Contributions and partial sums.
    Reduce,
    /// Sums.
    Gather,
}

impl Filled {
    /// Returns the task that fills the slot.
    pub const fn by(self) -> u32 {
        self.by
    }
}

/// Neighbouring chunks of a partition that travel together.
pub(crate) struct Span {
    /// The elements of these chunks, at least one.
    pub range: Range<usize>,
    message: u32,
    parts: u32,
}

impl Span {
    /// Returns some of the `parts` chunks of a partition; `None` if they have no elements.
    pub fn new(
        shape: &Shape,
        partition: usize,
        parts: usize,
        chunks: Range<usize>,
    ) -> Option<Span> {
        let start = shape.chunk(partition, parts, chunks.start).start;
        let end = shape.chunk(partition, parts, chunks.end - 1).end;
        let message = (2 * partition * parts + chunks.start) as u32;
        (start < end).then_some(Span { range: start..end, message, parts: parts as u32 })
    }

    /// Returns one of the `parts` chunks of a partition; `None` if it has no elements.
    pub fn chunk(shape: &Shape, partition: usize, parts: usize, index: usize) -> Option<Span> {
        Span::new(shape, partition, parts, index..index + 1)
    }

    /// Returns a partition in one piece; `None` if it has no elements.
    pub fn whole(shape: &Shape, partition: usize) -> Option<Span> {
        Span::chunk(shape, partition, 1, 0)
    }

    /// Returns a partition in one piece as `rank` encoded it; `None` if it has no elements.
    pub fn copy(shape: &Shape, partition: usize, world: World, rank: Rank) -> Option<Span> {
        let parts = world.size() as u32;
        let message = 2 * partition as u32 * parts + rank.index() as u32;
        Span::whole(shape, partition).map(|whole| Span { message, parts, ..whole })
    }

    const fn message(&self, phase: Phase) -> u32 {
        match phase {
            Phase::Reduce => self.message,
            Phase::Gather => self.message + self.parts,
        }
    }
}

/// A schedule in the making.
#[derive(Default)]
pub(crate) struct Builder {
    tasks: Vec<Task>,
    slots: Vec<usize>,
    raw: usize,
}

impl Builder {
    /// Encodes this rank's values, after the task that wrote them last.
    pub fn encode(&mut self, span: &Span, after: Option<u32>) -> Filled {
        let (range, slot) = (span.range.clone(), self.slot(span.range.len()));
        Filled { slot, by: self.push(Operation::Encode { range, slot }, after.into_iter()) }
    }

    /// Receives an encoding of another rank.
    pub fn recv(&mut self, span: &Span, phase: Phase, from: Rank) -> Filled {
        let (slot, message) = (self.slot(span.range.len()), span.message(phase));
        Filled { slot, by: self.push(Operation::Recv { slot, from, message }, [].into_iter()) }
    }

    /// Sends a slot, as soon as it is filled.
    pub fn send(&mut self, filled: Filled, span: &Span, phase: Phase, to: Rank) -> u32 {
        let (slot, message) = (filled.slot, span.message(phase));
        self.push(Operation::Send { slot, to, message }, [filled.by].into_iter())
    }

    /// Adds a slot to this rank's values, after the task that touched them last.
    pub fn merge(&mut self, filled: Filled, span: &Span, after: Option<u32>) -> u32 {
        let (slot, range) = (filled.slot, span.range.clone());
        self.push(Operation::Merge { slot, range }, [filled.by].into_iter().chain(after))
    }

    /// Sets this rank's values to a slot, after the task that touched them last; this is a result.
    pub fn decode(&mut self, filled: Filled, span: &Span, after: Option<u32>) -> u32 {
        let (slot, range) = (filled.slot, span.range.clone());
        let task =
            self.push(Operation::Decode { slot, range }, [filled.by].into_iter().chain(after));
        self.result(task)
    }

    /// Makes a task a result.
    pub fn result(&mut self, task: u32) -> u32 {
        self.tasks[task as usize].result = true;
        task
    }

    /// Returns the schedule: the tasks in the order in which they were added, but results last, so that
    /// work which other ranks wait for is done first.
    pub fn finish(self) -> Schedule {
        let steps = self.tasks.iter().filter(|task| !task.result).count() as u32;
        let (mut step, mut result) = (0, steps);
        let places: Vec<u32> = self
            .tasks
            .iter()
            .map(|task| {
                let next = if task.result { &mut result } else { &mut step };
                *next += 1;
                *next - 1
            })
            .collect();
        let (results, mut tasks): (Vec<_>, Vec<_>) =
            self.tasks.into_iter().partition(|task| task.result);
        tasks.extend(results);
        for after in tasks.iter_mut().flat_map(|task| &mut task.after) {
            *after = places[*after as usize];
        }
        Schedule { tasks, slots: self.slots, raw: self.raw, origin: 0 }
    }

    /// Does the same as [`Builder::finish`], with this origin.
    pub fn finish_from(self, origin: usize) -> Schedule {
        Schedule { origin, ..self.finish() }
    }

    /// Names the peers of all messages as ranks of another world.
    pub fn renumber(&mut self, rank: impl Fn(Rank) -> Rank) {
        for task in &mut self.tasks {
            if let Operation::Send { to: peer, .. } | Operation::Recv { from: peer, .. } =
                &mut task.operation
            {
                *peer = rank(*peer);
            }
        }
    }

    /// Makes all slots so far raw.
    pub fn raw_until_now(&mut self) {
        self.raw = self.slots.len();
    }

    /// Adds slots of another schedule. Returns the indices of the next task and of the first of these
    /// slots.
    pub fn graft(&mut self, slots: &[usize]) -> (u32, u32) {
        let first = self.slots.len() as u32;
        self.slots.extend(slots);
        (self.tasks.len() as u32, first)
    }

    /// Does the same as [`Builder::finish`], with every merge a result.
    pub fn finish_with_merges_as_results(mut self) -> Schedule {
        for task in &mut self.tasks {
            task.result = matches!(task.operation, Operation::Merge { .. });
        }
        self.finish()
    }

    /// Adds a slot of this many elements.
    pub fn slot(&mut self, elements: usize) -> Slot {
        self.slots.push(elements);
        Slot(self.slots.len() as u32 - 1)
    }

    /// Adds a task.
    pub fn push(&mut self, operation: Operation, after: impl Iterator<Item = u32>) -> u32 {
        let mut after: Vec<u32> = after.collect();
        after.dedup();
        self.tasks.push(Task { operation, after, result: false });
        self.tasks.len() as u32 - 1
    }
}
