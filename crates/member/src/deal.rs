//! Rows of a step's batch, divided over the ranks of an epoch.
//!
//! Law: the parts are consecutive, contain every row once, and differ by at most one row in length. They
//! depend only on the batch and the number of ranks. So when fewer ranks repeat a step, the step has the
//! same rows as before, at the same position in the data.

use std::ops::Range;

use thinwire_wire::World;

/// Returns one rank's part of the rows `position..position + batch` of the data. Ranks with smaller numbers
/// have the longer parts. With fewer rows than ranks, some parts are empty.
pub fn deal(batch: usize, position: u64, world: World) -> Range<u64> {
    let (least, longer) = (batch / world.size(), batch % world.size());
    let start = |rank: usize| position + (rank * least + rank.min(longer)) as u64;
    start(world.rank().index())..start(world.rank().index() + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(batch: usize, position: u64, ranks: u32) -> Vec<Range<u64>> {
        (0..ranks).map(|rank| deal(batch, position, World::new(rank, ranks).unwrap())).collect()
    }

    #[test]
    fn a_batch_of_510_goes_to_four_and_to_three() {
        assert_eq!(parts(510, 0, 4), [0..128, 128..256, 256..383, 383..510]);
        assert_eq!(parts(510, 5100, 3), [5100..5270, 5270..5440, 5440..5610]);
    }

    proptest! {
        #[test]
        fn every_row_is_dealt_once_and_parts_are_even(
            batch in 0..2000_usize, position in 0..1_u64 << 40, ranks in 1..70_u32
        ) {
            let parts = parts(batch, position, ranks);
            let rows: Vec<u64> = parts.iter().cloned().flatten().collect();
            prop_assert!(rows.iter().copied().eq(position..position + batch as u64));
            let lengths = || parts.iter().map(|part| part.end - part.start);
            prop_assert!(lengths().max().unwrap() - lengths().min().unwrap() <= 1);
        }
    }
}
