//! The all-reduce by gathering.
//!
//! Everybody encodes its values once and sends them to everybody; every rank adds them all up in
//! the order of ranks, its own bytes in their place among them, so that all get the same sum. For
//! codecs whose encodings cannot be summed, and for what is so small that one step is worth its
//! bytes.
//!
//! Per rank: n-1 messages at once, n-1 times the encoded bytes sent and received.

use thinwire_wire::World;

use crate::builder::{Builder, Phase, Span};
use crate::{Schedule, Shape};

/// Sends everything to every rank, and adds up what comes from all.
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
