//! The default algorithm and number of partitions for a tensor.

use thinwire_wire::{Exchange, World};

use crate::Algorithm;

/// Raw tensors are cut so that no partition is larger than this many bytes.
const PARTITION_BYTES: usize = 4 << 20;

/// From this many elements on, the ring's fewer flows beat two-shot's fewer steps.
const RING_ELEMENTS_MIN: usize = 1 << 14;

/// Returns whether an algorithm can carry encodings that are combined by `exchange`. Encodings that
/// cannot be summed cannot be encoded again at every hop.
pub fn carries(algorithm: Algorithm, exchange: Exchange) -> bool {
    use Algorithm::{Gather, Halving, Ring, RingGather, Trees, TwoShot};
    match algorithm {
        Gather | RingGather => true,
        TwoShot => exchange != Exchange::Gather,
        Trees(trees) if trees.depth() < 2 => exchange != Exchange::Gather,
        Ring | Halving | Trees(_) => exchange == Exchange::Summable,
    }
}

/// Chooses the algorithm for encodings that can travel by several.
///
/// Between two ranks, encodings that cannot be summed are gathered: that is the same number of bytes as
/// with two-shot, in one step instead of two and with one rounding less. Raw values and casts travel by
/// two-shot if there are two ranks or the tensor is small, because its few steps matter then; otherwise
/// they travel by the ring. With two-shot, several ranks send to one at the same time, and switches with
/// short queues then drop packets: on shaped links of four ranks, it took 1.1 to 1.2 times as long.
pub fn preferred(exchange: Exchange, world: World, elements: usize) -> Algorithm {
    match exchange {
        Exchange::Gather => Algorithm::Gather,
        Exchange::TwoShot if world.size() == 2 => Algorithm::Gather,
        Exchange::TwoShot => Algorithm::TwoShot,
        Exchange::Summable if world.size() <= 2 || elements < RING_ELEMENTS_MIN => {
            Algorithm::TwoShot
        }
        Exchange::Summable => Algorithm::Ring,
    }
}

/// Returns the number of partitions into which a raw tensor of `elements` elements is divided.
pub fn partitions(elements: usize) -> usize {
    (elements * 4).div_ceil(PARTITION_BYTES).max(1)
}
