//! The all-reduce by gathering.
//!
//! Every rank encodes its values once and sends them to all others. Every rank adds up all encodings in
//! the order of ranks, its own in its place among them, so all ranks get the same sum. It is for codecs
//! whose encodings cannot be summed, and for tensors so small that a single step is worth the
//! additional bytes.
//!
//! Per rank: n-1 messages at once, n-1 times the encoded bytes sent and received.

use thinwire_wire::World;

use crate::builder::{Builder, Phase, Span};
use crate::{Schedule, Shape};

/// Sends everything to every rank, and adds up the encodings of all ranks.
pub(crate) fn all_reduce(world: World, shape: &Shape) -> Schedule {
    let mut builder = Builder::default();
    for span in (0..shape.partitions).filter_map(|partition| Span::whole(shape, partition)) {
        exchange(&mut builder, world, &span);
    }
    builder.finish()
}

fn exchange(builder: &mut Builder, world: World, span: &Span) {
    let mine = builder.encode(span, None);
    for offset in 1..world.size() {
        builder.send(mine, span, Phase::Gather, world.after(offset));
    }
    let mut touched = Some(mine.by());
    for rank in world.ranks() {
        let part =
            if rank == world.rank() { mine } else { builder.recv(span, Phase::Gather, rank) };
        touched = Some(if rank.index() == 0 {
            builder.decode(part, span, touched)
        } else {
            let merge = builder.merge(part, span, touched);
            builder.result(merge)
        });
    }
}
