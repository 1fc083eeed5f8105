//! The all-reduce by gathering around a ring.
//!
//! The encodings of all ranks travel around the ring unchanged, one rank at a time; every rank adds up
//! all of them in the order of ranks. These are the bytes of the direct gather, in n-1 steps instead of
//! one. A rank never receives more than one message at a time, which suits links that lose packets when
//! many ranks send at once.
//!
//! Per rank: n-1 messages in sequence, n-1 times the encoded bytes sent and received.

use thinwire_wire::World;

use crate::builder::{Builder, Phase, Span};
use crate::{Schedule, Shape};

/// Sends everything around the ring, and adds up the encodings of all ranks.
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

/// Sends this rank's copy around the ring and adds up all of them; `copies[r]` is the partition as rank
/// r encoded it.
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
