//! Phases of a collective: one schedule each, and how values are rearranged after it.

use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::{Codec, Exchange};
use thinwire_schedule::{Schedule, Shape, Summation, preferred};
use thinwire_wire::{Rank, World};

use super::{Encoding, Rearrange};

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
    pub(super) fn all_reduce(world: World, elements: usize, encoding: &Encoding) -> Phase {
        let Encoding { codec, inner, .. } = encoding;
        let summation = summation(codec.exchange(), world, *inner, elements);
        let partitions = summation.partitions(elements);
        let shape = Shape { length: elements, block: codec.block(), partitions };
        Phase::raw(summation.all_reduce(world, &shape), elements, []).encoded(codec)
    }

    /// Returns the phase that sums equal parts, each on its rank, where nothing else stays.
    pub(super) fn reduce_scatter(world: World, elements: usize, encoding: &Encoding) -> Phase {
        let Encoding { codec, inner, .. } = encoding;
        let summation = summation(codec.exchange(), world, *inner, elements);
        let own = summation.chunk(world, elements);
        let after = [Rearrange::Take(own.clone())];
        let schedule = summation.reduce_scatter(world, elements);
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

/// Returns how a plan sums gradients or activations of so many elements over the ranks of a group, `inner`
/// neighbours of which sum them as they are.
pub fn summation(exchange: Exchange, world: World, inner: usize, elements: usize) -> Summation {
    if inner == 1 {
        return preferred(exchange, world, elements).into();
    }
    let units = (world.size() / inner) as u32;
    let unit = World::new(world.rank().0 / inner as u32, units).expect("units are whole");
    let algorithm = preferred(exchange, unit, elements.div_ceil(inner));
    Summation { unit: inner, algorithm }
}
