//! The sharded two-shot all-reduce.
//!
//! A direct reduce-scatter in f32, then a direct all-gather of the sums, each encoded once: a value
//! is rounded twice on its way, whatever the number of ranks.
//!
//! Per rank: two rounds of n-1 messages at once, 2(n-1)/n of the encoded bytes sent and received.

use thinwire_wire::World;

use crate::all_gather::spread;
use crate::builder::Builder;
use crate::reduce_scatter::{chunks, contribute};
use crate::{Schedule, Shape};

/// Sums by a reduce-scatter, then an all-gather.
pub(crate) fn all_reduce(world: World, shape: &Shape) -> Schedule {
    let mut builder = Builder::default();
    for partition in 0..shape.partitions {
        for (owner, span) in chunks(world, shape, partition) {
            let touched = contribute(&mut builder, world, owner, &span);
            spread(&mut builder, world, owner, &span, touched);
        }
    }
    builder.finish()
}
