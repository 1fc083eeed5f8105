//! The all-reduce by gathering around a circle.
//!
//! Everybody's bytes travel round the circle unchanged, a rank at a time; every rank adds them all
//! up in the order of ranks. The bytes of the direct gather in n-1 steps instead of one, and only
//! ever one message at a time for a rank to receive: for links that lose what comes from many at
//! once.
//!
//! Per rank: n-1 messages in sequence, n-1 times the encoded bytes sent and received.

use thinwire_wire::World;

use crate::builder::{Builder, Phase, Span};
use crate::{Schedule, Shape};

/// Sends everything around the circle, and adds up what comes from all.
pub(crate) fn all_reduce(world: World, shape: &Shape) -> Schedule {
    let mut builder = Builder::default();
    for partition in 0..shape.partitions {
        let copies: Option<Vec<Span>> =
            world.ranks().map(|rank| Span::copy(shape, partition, world, rank)).collect();
        if let Some(copies) = copies {
            circulate(&mut builder, world, &copies);
        }
    }
    builder.finish()
}

/// `copies[r]` is the partition as rank r encoded it.
fn circulate(builder: &mut Builder, world: World, copies: &[Span]) {
    let (next, previous) = (world.after(1), world.before(1));
    let mine = builder.encode(&copies[world.rank().index()], None);
    let mut parts = vec![mine; copies.len()];
    for hop in 0..world.size() - 1 {
        let sent = world.before(hop).index();
        builder.send(parts[sent], &copies[sent], Phase::Gather, next);
        let received = world.before(hop + 1).index();
        parts[received] = builder.recv(&copies[received], Phase::Gather, previous);
    }
    let mut touched = mine.by();
    for (rank, part) in parts.into_iter().enumerate() {
        touched = if rank == 0 {
            builder.decode(part, &copies[rank], Some(touched))
        } else {
            let merge = builder.merge(part, &copies[rank], Some(touched));
            builder.result(merge)
        };
    }
}
