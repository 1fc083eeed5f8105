//! Phases of a collective: one schedule each, and how values are rearranged after it.

use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_schedule::{self as schedule, Schedule, Shape, partitions, preferred};
use thinwire_wire::{Rank, World};

use super::Rearrange;

/// One schedule, and how values are rearranged after it.
#[derive(Clone, Debug)]
pub struct Phase {
    /// The schedule, among the ranks of the group, numbered from 0.
    pub schedule: Schedule,
    /// The number of values that it runs on.
    pub elements: usize,
    /// The codec of the values.
    pub codec: Arc<dyn Codec>,
    /// Whether what the codec loses is kept and sent along the next time.
    pub feedback: bool,
    /// Of a reduce-scatter, the elements that stay here: nobody encodes them.
    pub own: Option<Range<usize>>,
    /// The rearrangements after it.
    pub after: Vec<Rearrange>,
}

impl Phase {
    /// Returns the phase of a schedule that encodes nothing.
    pub(super) fn raw(
        schedule: Schedule,
        elements: usize,
        after: impl Into<Vec<Rearrange>>,
    ) -> Phase {
        let (codec, own, after) = (thinwire_codec::raw(), None, after.into());
        Phase { schedule, elements, codec, feedback: false, own, after }
    }

    /// Returns the phase that sums all ranks' values.
    pub(super) fn all_reduce(world: World, elements: usize, codec: &Arc<dyn Codec>) -> Phase {
        let partitions = partitions(elements);
        let shape = Shape { length: elements, block: codec.block(), partitions };
        let algorithm = preferred(codec.exchange(), world, elements);
        let schedule = schedule::all_reduce(algorithm, world, &shape);
        Phase::raw(schedule, elements, []).encoded(codec)
    }

    /// Returns the phase that sums equal parts, each on its rank, where nothing else stays.
    pub(super) fn reduce_scatter(world: World, elements: usize, codec: &Arc<dyn Codec>) -> Phase {
        let shape = Shape { length: elements, block: 1, partitions: 1 };
        let own = shape.chunk(0, world.size(), world.rank().index());
        let schedule = schedule::reduce_scatter(world, &shape);
        let after = [Rearrange::Take(own.clone())];
        Phase { own: Some(own), ..Phase::raw(schedule, elements, after).encoded(codec) }
    }

    /// Returns the phase with its values encoded, with feedback if the codec needs it.
    fn encoded(self, codec: &Arc<dyn Codec>) -> Phase {
        Phase { codec: Arc::clone(codec), feedback: codec.needs_feedback(), ..self }
    }

    /// Returns the phase among these ranks of a larger world.
    pub fn among(mut self, members: &[Rank]) -> Phase {
        self.schedule = self.schedule.among(members);
        self
    }

    /// Returns the number of elements of the residual, if one is kept.
    pub fn owed(&self) -> Option<usize> {
        self.feedback.then_some(self.elements)
    }
}
