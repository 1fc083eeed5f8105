//! The direct reduce-scatter.
//!
//! Everybody sends every rank its chunk; the rank adds the contributions to its own values in a
//! fixed order, from the rank before it backwards around the circle, in which they are likely to
//! arrive because everybody serves the rank after it first.
//!
//! Per rank: n-1 messages at once, (n-1)/n of the encoded bytes sent and received.

use thinwire_wire::{Rank, World};

use crate::builder::{Builder, Phase, Span};
use crate::{Schedule, Shape};

/// Returns the schedule after which rank r's values hold, in chunk r of every partition, the sum of what
/// all ranks held there before. Other elements of `values` are what the codec left there.
///
/// A rank's own contribution is never encoded, and nor is the sum: every merge is a result.
///
/// # Panics
/// If `shape.block` or `shape.partitions` is 0.
pub fn reduce_scatter(world: World, shape: &Shape) -> Schedule {
    let mut builder = Builder::default();
    for partition in 0..shape.partitions {
        for (owner, span) in chunks(world, shape, partition) {
            contribute(&mut builder, world, owner, &span);
        }
    }
    builder.finish_with_merges_as_results()
}

/// The chunks that have elements, with their owners, mine last.
pub(crate) fn chunks(
    world: World,
    shape: &Shape,
    partition: usize,
) -> impl Iterator<Item = (Rank, Span)> {
    (1..=world.size()).filter_map(move |offset| {
        let owner = world.after(offset);
        let span = Span::chunk(shape, partition, world.size(), owner.index())?;
        Some((owner, span))
    })
}

/// Sends my part of a chunk to its owner or, if that is me, adds all others' parts to mine. Gives
/// the last task that touches my values.
pub(crate) fn contribute(
    builder: &mut Builder,
    world: World,
    owner: Rank,
    span: &Span,
) -> Option<u32> {
    if owner != world.rank() {
        let encoded = builder.encode(span, None);
        return Some(builder.send(encoded, span, Phase::Reduce, owner));
    }
    (1..world.size()).fold(None, |merged, offset| {
        let part = builder.recv(span, Phase::Reduce, world.before(offset));
        Some(builder.merge(part, span, merged))
    })
}
