//! The direct all-gather.
//!
//! Every rank encodes its chunk once, sends the bytes to all others, and decodes them itself.
//!
//! Per rank: n-1 messages at once, (n-1)/n of the encoded bytes sent and received.

use thinwire_wire::{Rank, World};

use crate::builder::{Builder, Phase, Span};
use crate::reduce_scatter::chunks;
use crate::{Schedule, Shape};

/// Returns the schedule after which chunk r of every partition is, on every rank, the chunk that rank r
/// had before, bit for bit the same on all ranks.
///
/// # Panics
/// If `shape.block` or `shape.partitions` is 0.
pub fn all_gather(world: World, shape: &Shape) -> Schedule {
    let mut builder = Builder::default();
    for partition in 0..shape.partitions {
        for (owner, span) in chunks(world, shape, partition) {
            spread(&mut builder, world, owner, &span, None);
        }
    }
    builder.finish()
}

/// Sends this rank's chunk to all others or, if it belongs to another rank, receives it, once `after`
/// is done, the last task that touched this rank's values.
pub(crate) fn spread(
    builder: &mut Builder,
    world: World,
    owner: Rank,
    span: &Span,
    after: Option<u32>,
) {
    if owner != world.rank() {
        let encoded = builder.recv(span, Phase::Gather, owner);
        builder.decode(encoded, span, after);
        return;
    }
    let encoded = builder.encode(span, after);
    for offset in 1..world.size() {
        builder.send(encoded, span, Phase::Gather, world.after(offset));
    }
    builder.decode(encoded, span, None);
}
