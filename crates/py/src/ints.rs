//! Whole numbers from Python, where they have any size and sign.
//!
//! They come as i128: PyO3 would raise OverflowError for one that does not fit the type that is meant,
//! and here it is the caller's mistake like any other, in a message that names the argument.

use thinwire_wire::{Rank, World};

use crate::error::Failure;

/// A number as an unsigned one that fits into `T`.
pub(crate) fn to<T: TryFrom<i128>>(name: &str, given: i128) -> Result<T, Failure> {
    T::try_from(given).map_err(|_| {
        let most = u128::MAX >> (128 - 8 * size_of::<T>());
        Failure::invalid(format!("{name} is {given}, expected 0..={most}"))
    })
}

/// A number as a rank of `world`.
pub(crate) fn rank(name: &str, given: i128, world: World) -> Result<Rank, Failure> {
    let rank = u32::try_from(given).ok().map(Rank).filter(|rank| rank.index() < world.size());
    rank.ok_or_else(|| {
        let size = world.size();
        Failure::invalid(format!("{name} is rank {given}, expected one of {size} ranks"))
    })
}
