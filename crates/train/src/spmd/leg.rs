//! Legs: one schedule of a collective, and what becomes of the values after it.

use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_collective::Program;
use thinwire_collective::operations::{partitions, preferred};
use thinwire_schedule::{self as schedule, Operation, Schedule, Shape};
use thinwire_wire::{Rank, World};

use super::reform::Reform;
use super::wires;

/// One schedule, and what becomes of the values after it.
#[derive(Clone, Debug)]
pub struct Leg {
    /// What is sent, by the ranks of the group, numbered from 0.
    pub schedule: Schedule,
    /// How many values it runs on.
    pub elements: usize,
    /// What they are encoded with.
    pub codec: Arc<dyn Codec>,
    /// Whether what the codec loses is kept and sent along the next time.
    pub feedback: bool,
    /// Of a reduce-scatter, the elements that stay here: nobody encodes them.
    pub own: Option<Range<usize>>,
    /// What is done afterwards.
    pub after: Vec<Reform>,
}

impl Leg {
    /// A schedule that encodes nothing.
    pub(super) fn raw(schedule: Schedule, elements: usize, after: impl Into<Vec<Reform>>) -> Leg {
        let (codec, own, after) = (thinwire_codec::raw(), None, after.into());
        Leg { schedule, elements, codec, feedback: false, own, after }
    }

    /// A sum of all ranks' values.
    pub(super) fn all_reduce(world: World, elements: usize, codec: &Arc<dyn Codec>) -> Leg {
        let partitions = partitions(elements);
        let shape = Shape { length: elements, block: codec.block(), partitions };
        let algorithm = preferred(codec.exchange(), world, elements);
        let schedule = schedule::all_reduce(algorithm, world, &shape);
        Leg::raw(schedule, elements, []).encoded(codec)
    }

    /// Sums of equal parts, each to its rank, where nothing else stays.
    pub(super) fn reduce_scatter(world: World, elements: usize, codec: &Arc<dyn Codec>) -> Leg {
        let shape = Shape { length: elements, block: 1, partitions: 1 };
        let own = shape.chunk(0, world.size(), world.rank().index());
        let schedule = schedule::reduce_scatter(world, &shape);
        let after = [Reform::Take(own.clone())];
        Leg { own: Some(own), ..Leg::raw(schedule, elements, after).encoded(codec) }
    }

    /// The same encoded, with feedback if the codec needs it.
    fn encoded(self, codec: &Arc<dyn Codec>) -> Leg {
        Leg { codec: Arc::clone(codec), feedback: codec.needs_feedback(), ..self }
    }

    /// The same among other ranks, whose numbers are given.
    pub(super) fn among(mut self, members: &[Rank]) -> Leg {
        renumber(&mut self.schedule, members);
        self
    }

    /// How many elements a residual is kept of.
    pub fn owed(&self) -> Option<usize> {
        self.feedback.then_some(self.elements)
    }

    /// The leg as what the ranks of the whole job that are the group's can run.
    pub(super) fn bound(self, members: &[Rank]) -> wires::Leg {
        let Leg { schedule, elements, codec, feedback, own, after } = self.among(members);
        let program = match feedback {
            true => Program::new(schedule, elements, codec),
            false => Program::plain(schedule, elements, codec),
        };
        wires::Leg { program: Arc::new(program), own, after }
    }
}

/// Names the peers of a schedule as the ranks of a larger world.
fn renumber(schedule: &mut Schedule, members: &[Rank]) {
    for task in &mut schedule.tasks {
        match &mut task.operation {
            Operation::Send { to: peer, .. } | Operation::Recv { from: peer, .. } => {
                *peer = members[peer.index()];
            }
            Operation::Encode { .. } | Operation::Merge { .. } | Operation::Decode { .. } => {}
        }
    }
}
