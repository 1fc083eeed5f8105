//! The ring all-reduce.
//!
//! Chunk c starts at rank c + 1 and travels once around the ring; every rank adds its own part and
//! encodes the new partial sum. Rank c is the last: it encodes the sum once more, and those bytes
//! travel on, unchanged, to all ranks. (Patarasuk and Yuan, "Bandwidth optimal all-reduce
//! algorithms for clusters of workstations", section 3.)
//!
//! Per rank: 2(n-1) messages one after the other, 2(n-1)/n of the encoded bytes sent and received.

use thinwire_wire::World;

use crate::builder::{Builder, Phase, Span};
use crate::{Schedule, Shape};

/// Sums by a ring of all ranks.
pub(crate) fn all_reduce(world: World, shape: &Shape) -> Schedule {
    let mut builder = Builder::default();
    for partition in 0..shape.partitions {
        for hops in 0..world.size() {
            let chunk = world.before(hops + 1).index();
            if let Some(span) = Span::chunk(shape, partition, world.size(), chunk) {
                travel(&mut builder, world, hops, &span);
            }
        }
    }
    builder.finish()
}

/// Adds this rank's part in the travels of the chunk that has made `hops` hops when it reaches this
/// rank first.
fn travel(builder: &mut Builder, world: World, hops: usize, span: &Span) {
    let (previous, next, last) = (world.before(1), world.after(1), world.size() - 1);
    let summed = (hops > 0).then(|| {
        let partial = builder.recv(span, Phase::Reduce, previous);
        builder.merge(partial, span, None)
    });
    let encoded = builder.encode(span, summed);
    if hops == last {
        if world.size() > 1 {
            builder.send(encoded, span, Phase::Gather, next);
        }
        builder.decode(encoded, span, None);
        return;
    }
    let sent = builder.send(encoded, span, Phase::Reduce, next);
    let sum = builder.recv(span, Phase::Gather, previous);
    if hops + 1 < last {
        builder.send(sum, span, Phase::Gather, next);
    }
    builder.decode(sum, span, Some(sent));
}
