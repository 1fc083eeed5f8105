//! Routes: which schedule carries a bucket, between which ranks and to which of them.

use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_collective::Program;
use thinwire_schedule::{Operation, Schedule, Shape, Summation, Task};
use thinwire_wire::random::Key;
use thinwire_wire::{Rank, World};

/// Where the sum over ranks is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// The whole sum on every rank.
    #[default]
    Whole,
    /// One chunk of the sum on each rank, all equally long. In a flat summation, chunks are in rank
    /// order; in a hierarchical one, they are ordered by the rank's place in its unit, then by unit.
    Shard,
}

/// The ranks that exchange a bucket: all of the job, or a group of them.
#[derive(Clone, Debug)]
pub(crate) struct Ranks {
    /// This rank among those that exchange the bucket.
    pub(crate) world: World,
    /// The ranks of the group by their numbers in the job; empty for all ranks of the job.
    members: Arc<[Rank]>,
}

/// Everything that an exchange must know of a bucket.
#[derive(Clone, Debug)]
pub(crate) struct Route<'a> {
    /// The members of the bucket: their elements in it, and their rows and columns.
    pub(crate) matrices: &'a [(Range<usize>, (usize, usize))],
    pub(crate) elements: usize,
    pub(crate) summation: Summation,
    pub(crate) partitions: usize,
    pub(crate) target: Target,
    pub(crate) ranks: &'a Ranks,
    /// The random numbers from which factors start.
    pub(crate) key: Key,
}

impl Target {
    /// Returns the elements of a bucket whose sum this rank has after a summation.
    pub(crate) fn own(self, elements: usize, world: World, summation: Summation) -> Range<usize> {
        match self {
            Target::Whole => 0..elements,
            Target::Shard => summation.chunk(world, elements),
        }
    }
}

impl Ranks {
    /// Returns all ranks of the job.
    pub(crate) fn all(world: World) -> Ranks {
        Ranks { world, members: Arc::default() }
    }

    /// Returns some ranks of a job, in this order; `None` if this rank is not one of them.
    pub(crate) fn among(members: &[Rank], job: World) -> Option<Ranks> {
        Some(Ranks { world: job.among(members)?, members: members.into() })
    }

    /// Returns the ranks by their numbers in the job, if they are a group of it.
    pub(crate) fn members(&self) -> Option<&Arc<[Rank]>> {
        (!self.members.is_empty()).then_some(&self.members)
    }

    /// Returns the program that sums `length` f32 to all these ranks.
    pub(crate) fn sum(&self, summation: Summation, length: usize) -> Arc<Program> {
        let partitions = summation.partitions(length);
        let schedule = summation.all_reduce(self.world, &Shape { length, block: 1, partitions });
        self.program(schedule, length, thinwire_codec::raw())
    }

    /// Binds a schedule of these ranks, numbered from 0, to a codec.
    fn program(&self, schedule: Schedule, elements: usize, codec: Arc<dyn Codec>) -> Arc<Program> {
        let schedule = match self.members() {
            Some(members) => schedule.among(members),
            None => schedule,
        };
        Arc::new(Program::new(schedule, elements, codec))
    }
}

impl Route<'_> {
    /// Returns the program that carries the bucket by a codec to where its sum is needed.
    pub(crate) fn program(&self, codec: Arc<dyn Codec>) -> Arc<Program> {
        if self.target == Target::Whole {
            return self.program_of_whole(codec);
        }
        let schedule = self.summation.reduce_scatter(self.ranks.world, self.elements);
        self.ranks.program(sharded(schedule), self.elements, codec)
    }

    /// Returns the program that carries the bucket by a codec to all ranks, whatever the target.
    pub(crate) fn program_of_whole(&self, codec: Arc<dyn Codec>) -> Arc<Program> {
        let partitions = self.partitions.clamp(1, self.elements.max(1));
        let shape = Shape { length: self.elements, block: codec.block(), partitions };
        let schedule = self.summation.all_reduce(self.ranks.world, &shape);
        self.ranks.program(schedule, self.elements, codec)
    }
}

/// Orders a reduce-scatter for a bucket that is committed alone: on both levels of it all encodings come
/// before all messages. Each rank hears of the others in messages for its own chunk alone, and these must say
/// whether anything was not finite, in any chunk. A sum within a unit that overflows is heard of only by the
/// ranks with this place in their units; averages of finite gradients never do.
fn sharded(mut schedule: Schedule) -> Schedule {
    let encodes = |task: &Task| matches!(task.operation, Operation::Encode { .. });
    let is_between = |task: &Task| !schedule.is_raw(task.operation.slot());
    let mut order: Vec<usize> = (0..schedule.tasks.len()).collect();
    order.sort_by_key(|&at| (is_between(&schedule.tasks[at]), !encodes(&schedule.tasks[at])));
    let mut places = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, &at)| places[at] = place as u32);
    let mut encoded: [Vec<u32>; 2] = Default::default();
    let mut tasks = Vec::with_capacity(order.len());
    for (place, &at) in order.iter().enumerate() {
        let mut task = schedule.tasks[at].clone();
        let of_level = &mut encoded[usize::from(is_between(&task))];
        match task.operation {
            Operation::Send { .. } => task.after.clone_from(of_level),
            _ => task.after.iter_mut().for_each(|after| *after = places[*after as usize]),
        }
        if encodes(&task) {
            of_level.push(place as u32);
        }
        tasks.push(task);
    }
    schedule.tasks = tasks;
    schedule
}
