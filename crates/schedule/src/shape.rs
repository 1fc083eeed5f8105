//! The division of a tensor into partitions and chunks.
//!
//! A tensor is divided into partitions, which are synchronised independently of each other, and every
//! partition into chunks, one per rank. Law: the pieces are in order, do not overlap, cover everything,
//! and begin at multiples of the block; their lengths differ by at most a block.

use std::ops::Range;

/// The length of a tensor, and the cuts of its synchronisation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The number of elements.
    pub length: usize,
    /// The codec's block: every cut is at a multiple of this many elements. At least 1.
    pub block: usize,
    /// The number of independent sub-schedules that can be pipelined. At least 1.
    pub partitions: usize,
}

impl Shape {
    /// Returns the elements of one partition; empty if there are more partitions than blocks.
    ///
    /// # Panics
    /// If `block` or `partitions` is 0, or `index` is not below `partitions`.
    pub fn partition(&self, index: usize) -> Range<usize> {
        split(0..self.length, self.block, self.partitions, index)
    }

    /// Returns the elements of one of `parts` chunks of a partition; empty if there are more chunks
    /// than blocks. Collectives make one chunk per rank, and chunk r belongs to rank r.
    ///
    /// # Panics
    /// As [`Shape::partition`], or if `parts` is not above `index`.
    pub fn chunk(&self, partition: usize, parts: usize, index: usize) -> Range<usize> {
        split(self.partition(partition), self.block, parts, index)
    }
}

fn split(range: Range<usize>, block: usize, parts: usize, index: usize) -> Range<usize> {
    assert!(block > 0 && index < parts, "part {index} of {parts} in blocks of {block} elements");
    let blocks = range.len().div_ceil(block);
    let cut = |part: usize| range.end.min(range.start + part * blocks / parts * block);
    cut(index)..cut(index + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_tile_the_values_at_block_boundaries(
            length in 0_usize..5000, block in 1_usize..300, partitions in 1_usize..6, parts in 1_usize..18,
        ) {
            let shape = Shape { length, block, partitions };
            let mut end = 0;
            for partition in 0..partitions {
                let blocks: Vec<_> = (0..parts)
                    .map(|index| {
                        let chunk = shape.chunk(partition, parts, index);
                        prop_assert_eq!(chunk.start, end);
                        prop_assert!(chunk.start.is_multiple_of(block) || chunk.start == length);
                        end = chunk.end;
                        Ok(chunk.len().div_ceil(block))
                    })
                    .collect::<Result<_, _>>()?;
                prop_assert_eq!(end, shape.partition(partition).end);
                prop_assert!(blocks.iter().max() <= blocks.iter().min().map(|least| least + 1).as_ref());
            }
            prop_assert_eq!(end, length);
        }
    }
}
