//! Sums of ranks that are grouped in units, such as the ranks of a machine.
//!
//! A unit consists of neighbouring ranks, [`Summation::unit`] of them. Every rank has a place in its
//! unit, and owns the part of the values with the number of this place.
//!
//! 1. Within a unit: a direct reduce-scatter. Contributions are not encoded.
//! 2. Between units: for each part, its owners (one in every unit) sum it by a flat algorithm. They
//!    send encodings.
//! 3. Within a unit: each owner forwards, unchanged, the encodings from which it decodes its sums, so
//!    that every rank decodes the same bytes.
//!
//! The codec encodes an element at most once, on the rank that owns it, so error feedback works as in
//! flat schedules. A reduce-scatter has no third step. With units of one rank, the schedules are the
//! flat ones. (Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", section 4,
//! sum gradients in these three steps.)
//!
//! Per rank, with u ranks in a unit and m units: (u−1)/u of the raw bytes within the unit, 1/u of the
//! bytes of the flat algorithm among m ranks between units, and (u−1)/u of the encoded bytes (m times
//! as many if encodings are gathered) within the unit.

use std::ops::Range;

use thinwire_wire::{Rank, World};

use crate::builder::Builder;
use crate::reduce_scatter::{chunks, contribute};
use crate::{Operation, Schedule, Shape, Slot, Summation, Task, all_reduce, reduce_scatter};

impl Summation {
    /// Returns the schedule after which `values` of every rank hold the sum of all ranks' earlier values,
    /// bit for bit the same on all ranks. `shape.block` and `shape.partitions` apply to the part of each
    /// place.
    ///
    /// # Panics
    /// If the world does not divide into units, or `shape.block` or `shape.partitions` is 0.
    pub fn all_reduce(self, world: World, shape: &Shape) -> Schedule {
        if self.unit == 1 {
            // Units of one rank have no steps within them.
            return all_reduce(self.algorithm, world, shape);
        }
        let place = Place::new(self.unit, world);
        let mut builder = Builder::default();
        let touched = place.scatter(&mut builder, shape.length);
        for owner in place.mates().chain([place.inner.rank()]) {
            let part = place.part(shape.length, owner);
            let cut = Shape { length: part.len(), ..shape.clone() };
            let flat = Part {
                schedule: all_reduce(self.algorithm, place.outer, &cut),
                start: part.start,
                touched: touched[owner.index()],
            };
            match owner == place.inner.rank() {
                true => place.reduce_and_forward(&mut builder, &flat),
                false => place.receive(&mut builder, &flat, owner),
            }
        }
        builder.finish_from(place.part(shape.length, place.inner.rank()).start)
    }

    /// Returns the schedule after which this rank's values hold, in its [`Summation::chunk`], the sum
    /// of this chunk over all ranks. Other elements of `values` are undefined.
    ///
    /// # Panics
    /// If the world does not divide into units.
    pub fn reduce_scatter(self, world: World, length: usize) -> Schedule {
        let place = Place::new(self.unit, world);
        let mut builder = Builder::default();
        let touched = place.scatter(&mut builder, length);
        let me = place.inner.rank();
        let part = place.part(length, me);
        let cut = Shape { length: part.len(), block: 1, partitions: 1 };
        let schedule = reduce_scatter(place.outer, &cut);
        let flat = Part { schedule, start: part.start, touched: touched[me.index()] };
        place.reduce(&mut builder, &flat);
        builder.finish_from(part.start)
    }

    /// Returns the size of the units into which `near` divides a world: neighbouring ranks, the same
    /// number in each unit, that are near to all ranks of their own unit and to no others. `None` if
    /// there are no such units, only one, or one for each rank.
    pub fn unit_of(world_size: usize, near: impl Fn(usize, usize) -> bool) -> Option<usize> {
        let unit = (1..world_size).find(|rank| !near(0, *rank))?;
        let ranks = || 0..world_size;
        let alike =
            |from: usize, to: usize| from == to || near(from, to) == (from / unit == to / unit);
        let divides = unit > 1 && world_size.is_multiple_of(unit);
        (divides && ranks().all(|from| ranks().all(|to| alike(from, to)))).then_some(unit)
    }

    /// Returns the elements that a rank sums in a reduce-scatter. The values are divided into one part
    /// for each place, and each part into one chunk for each unit. Chunks are ordered by place, then by
    /// unit.
    ///
    /// # Panics
    /// If the world does not divide into units.
    pub fn chunk(self, world: World, length: usize) -> Range<usize> {
        let place = Place::new(self.unit, world);
        let part = place.part(length, place.inner.rank());
        let cut = Shape { length: part.len(), block: 1, partitions: 1 };
        let chunk = cut.chunk(0, place.outer.size(), place.outer.rank().index());
        part.start + chunk.start..part.start + chunk.end
    }
}

/// The flat schedule among the owners of a part, one of them in each unit.
struct Part {
    schedule: Schedule,
    /// The first element of the part.
    start: usize,
    /// The last task within the unit that touches this rank's values of it.
    touched: Option<u32>,
}

impl Part {
    /// Returns the tasks from which the result is decoded, with their indices.
    fn results(&self) -> impl Iterator<Item = (u32, &Task)> {
        (0..).zip(&self.schedule.tasks).filter(|(_, task)| task.result)
    }

    /// Returns an operation of the flat schedule in another slot, on the elements of the part.
    fn moved(&self, operation: &Operation, slot: Slot) -> Operation {
        let shift = |range: &Range<usize>| self.start + range.start..self.start + range.end;
        match operation {
            Operation::Encode { range, .. } => Operation::Encode { range: shift(range), slot },
            Operation::Merge { range, .. } => Operation::Merge { slot, range: shift(range) },
            Operation::Decode { range, .. } => Operation::Decode { slot, range: shift(range) },
            Operation::Send { to, message, .. } => {
                Operation::Send { slot, to: *to, message: *message }
            }
            Operation::Recv { from, message, .. } => {
                Operation::Recv { slot, from: *from, message: *message }
            }
        }
    }
}

/// A rank's place in its unit, and the unit's place among the units.
struct Place {
    inner: World,
    outer: World,
}

impl Place {
    fn new(unit: usize, world: World) -> Place {
        let (rank, size) = (world.rank().index(), world.size());
        assert!(unit > 0 && size.is_multiple_of(unit), "{size} ranks in units of {unit}");
        let world = |rank: usize, size: usize| {
            World::new(rank as u32, size as u32).expect("a rank below the number of ranks")
        };
        Place { inner: world(rank % unit, unit), outer: world(rank / unit, size / unit) }
    }

    /// Returns the other ranks of the unit, in the order in which they are served.
    fn mates(&self) -> impl Iterator<Item = Rank> {
        (1..self.inner.size()).map(|offset| self.inner.after(offset))
    }

    /// Returns the rank at a place of this unit.
    fn mate(&self, at: Rank) -> Rank {
        Rank(self.outer.rank().0 * self.inner.size() as u32 + at.0)
    }

    /// Returns the rank at this place of another unit.
    fn across(&self, unit: Rank) -> Rank {
        Rank(unit.0 * self.inner.size() as u32 + self.inner.rank().0)
    }

    fn part(&self, length: usize, at: Rank) -> Range<usize> {
        Shape { length, block: 1, partitions: 1 }.chunk(0, self.inner.size(), at.index())
    }

    /// Sums within the unit, each part on its owner. Returns, for each place, the last task that
    /// touches this rank's values of its part.
    fn scatter(&self, builder: &mut Builder, length: usize) -> Vec<Option<u32>> {
        let shape = Shape { length, block: 1, partitions: 1 };
        let mut touched = vec![None; self.inner.size()];
        for (owner, span) in chunks(self.inner, &shape, 0) {
            touched[owner.index()] = contribute(builder, self.inner, owner, &span);
        }
        builder.renumber(|at| self.mate(at));
        builder.raw_until_now();
        touched
    }

    /// Runs the flat schedule with the owners of the same part in the other units. Returns the indices of
    /// its first task and of its first slot.
    fn reduce(&self, builder: &mut Builder, part: &Part) -> (u32, u32) {
        let (task, slot) = builder.graft(&part.schedule.slots);
        for Task { operation, after, result } in &part.schedule.tasks {
            let moved = part.moved(operation, Slot(slot + operation.slot().0));
            let within = part.touched.filter(|_| operation.range().is_some());
            let after = after.iter().map(|after| task + after).chain(within);
            let index = builder.push(self.between(moved), after);
            if *result {
                builder.result(index);
            }
        }
        (task, slot)
    }

    fn between(&self, mut operation: Operation) -> Operation {
        if let Operation::Send { to: peer, .. } | Operation::Recv { from: peer, .. } =
            &mut operation
        {
            *peer = self.across(*peer);
        }
        operation
    }

    /// Returns the number of a forwarded message. Contributions within a unit are numbered by the part.
    fn message(&self, number: usize) -> u32 {
        (self.inner.size() + number) as u32
    }

    fn reduce_and_forward(&self, builder: &mut Builder, part: &Part) {
        let (first_task, first_slot) = self.reduce(builder, part);
        for (number, (_, result)) in part.results().enumerate() {
            let slot = result.operation.slot();
            let fills = |task: &Task| task.operation.fills() && task.operation.slot() == slot;
            let filled = part.schedule.tasks.iter().position(fills).expect("a slot is filled");
            for mate in self.mates() {
                let (slot, to) = (Slot(first_slot + slot.0), self.mate(mate));
                let send = Operation::Send { slot, to, message: self.message(number) };
                builder.push(send, [first_task + filled as u32].into_iter());
            }
        }
    }

    /// Receives the encodings from which the owner of a part decodes its sums, and decodes them in the
    /// same order.
    fn receive(&self, builder: &mut Builder, part: &Part, owner: Rank) {
        let mut copies: Vec<(u32, u32)> = Vec::new();
        for (number, (index, result)) in part.results().enumerate() {
            let slot = builder.slot(part.schedule.slots[result.operation.slot().index()]);
            let (from, message) = (self.mate(owner), self.message(number));
            let received = builder.push(Operation::Recv { slot, from, message }, [].into_iter());
            let before = copies.iter().filter(|(original, _)| result.after.contains(original));
            let before: Vec<u32> = before.map(|(_, copy)| *copy).collect();
            // The first decoding must not overwrite a contribution that has not been sent yet.
            let contributed = part.touched.filter(|_| before.is_empty());
            let after = [received].into_iter().chain(before).chain(contributed);
            let copy = builder.push(part.moved(&result.operation, slot), after);
            copies.push((index, builder.result(copy)));
        }
    }
}
