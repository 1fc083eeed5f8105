//! The broadcast along a binomial tree.
//!
//! Counted from the root, rank r receives from the rank whose number is r without its lowest set
//! bit, and sends to those that differ from it in one lower bit, the largest subtree first. The
//! root encodes once and decodes what it sent; the bytes are forwarded unchanged.
//!
//! Per rank: ceil(log2 n) messages in sequence; the root sends the encoded bytes this many times.

use thinwire_wire::{Rank, World};

use crate::builder::{Builder, Phase, Span};
use crate::{Schedule, Shape};

/// Returns the schedule after which every rank has the values that `root` had before, bit for bit the
/// same on all ranks.
///
/// # Panics
/// If `root` is not in `world`, or `shape.block` or `shape.partitions` is 0.
pub fn broadcast(root: Rank, world: World, shape: &Shape) -> Schedule {
    assert!(root.index() < world.size(), "{root} in a world of {}", world.size());
    let mut builder = Builder::default();
    for span in (0..shape.partitions).filter_map(|partition| Span::whole(shape, partition)) {
        pass_on(&mut builder, root, world, &span);
    }
    builder.finish()
}

fn pass_on(builder: &mut Builder, root: Rank, world: World, span: &Span) {
    let size = world.size();
    let place = (world.rank().index() + size - root.index()) % size;
    let reach = if place == 0 { size.next_power_of_two() } else { place & place.wrapping_neg() };
    let encoded = if place == 0 {
        builder.encode(span, None)
    } else {
        builder.recv(span, Phase::Gather, world.before(reach))
    };
    let offsets = (0..reach.ilog2()).rev().map(|bit| 1 << bit);
    for offset in offsets.filter(|offset| place + offset < size) {
        builder.send(encoded, span, Phase::Gather, world.after(offset));
    }
    builder.decode(encoded, span, None);
}
