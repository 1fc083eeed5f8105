//! Phases of a collective: each has one schedule, and rearrangements of the values after it.

use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::{Codec, Exchange};
use thinwire_schedule::{Schedule, Shape, Summation, preferred};
use thinwire_wire::{Rank, World};

use super::{Encoding, Rearrange};

/// One schedule, and the rearrangements of values after it.
#[derive(Clone, Debug)]
pub struct Phase {
    /// The schedule, among the ranks of the group, numbered from 0.
    pub schedule: Schedule,
    /// The number of values that the schedule runs on.
    pub elements: usize,
    /// The codec of the values.
    pub codec: Arc<dyn Codec>,
    /// Whether the error of the codec is kept and sent with the next exchange.
    pub feedback: bool,
    /// For a reduce-scatter, the range of elements that stay on this rank and are not encoded.
    pub own: Option<Range<usize>>,
    /// The rearrangements after the schedule.
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

    /// Returns the phase that sums equal parts, each on its rank, after which only this rank's part is left.
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

    /// Returns the phase with the ranks' numbers in a larger world.
    pub fn among(mut self, members: &[Rank]) -> Phase {
        self.schedule = self.schedule.among(members);
        self
    }

    /// Returns the number of elements of the residual, if there is one.
    pub fn owed(&self) -> Option<usize> {
        self.feedback.then_some(self.elements)
    }
}

/// Returns the way in which a plan sums gradients or activations of this many elements over the ranks of
/// a group. Within units of `inner` neighbours, values are summed raw.
pub fn summation(exchange: Exchange, world: World, inner: usize, elements: usize) -> Summation {
    if inner == 1 {
        return preferred(exchange, world, elements).into();
    }
    let units = (world.size() / inner) as u32;
    let unit = World::new(world.rank().0 / inner as u32, units).expect("units are whole");
    let algorithm = preferred(exchange, unit, elements.div_ceil(inner));
    Summation { unit: inner, algorithm }
}
