//! The direct reduce-scatter.
//!
//! Every rank sends each other rank its chunk. The owner adds the contributions to its own values in a
//! fixed order: from the rank before it backwards around the ring. They are likely to arrive in this
//! order, because every rank serves the rank after it first.
//!
//! Per rank: n-1 messages at once, (n-1)/n of the encoded bytes sent and received.

use thinwire_wire::{Rank, World};

use crate::builder::{Builder, Phase, Span};
use crate::{Schedule, Shape};

/// Returns the schedule after which rank r's values hold, in chunk r of every partition, the sum of
/// this chunk over all ranks. Other elements of `values` are undefined.
///
/// Neither a rank's own contribution nor the sum is ever encoded: every merge is a result.
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

/// Returns the chunks that have elements, with their owners, this rank's own last.
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

/// Sends this rank's part of a chunk to its owner or, if this rank is the owner, adds all others' parts
/// to its own. Returns the last task that touches this rank's values.
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
