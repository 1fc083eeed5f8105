//! Ranks, the world that they form, and the ways in which their encodings are combined.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Index of a process in its world, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rank(pub u32);

impl Rank {
    /// Returns the rank as an index into a vector of values per rank.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// Largest number of ranks of a world.
pub const WORLD_SIZE_MAX: u32 = 4096;

/// Rank of a process and the number of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct World {
    rank: Rank,
    size: u32,
}

impl World {
    /// Returns a world of `size` ranks as `rank` sees it.
    ///
    /// # Errors
    /// If `size` is not in `1..=WORLD_SIZE_MAX`, or `rank` is not below it.
    pub fn new(rank: u32, size: u32) -> Result<World, InvalidWorld> {
        if size == 0 || size > WORLD_SIZE_MAX || rank >= size {
            return Err(InvalidWorld { rank, size });
        }
        Ok(World { rank: Rank(rank), size })
    }

    /// Returns the world of a single process.
    pub const fn alone() -> World {
        World { rank: Rank(0), size: 1 }
    }

    /// Returns this process's rank.
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the number of ranks.
    pub const fn size(&self) -> usize {
        self.size as usize
    }

    /// Returns the world of `members`, which are ranks of this world, as this rank sees it; `None` if
    /// this rank is not one of them.
    pub fn among(&self, members: &[Rank]) -> Option<World> {
        let at = members.iter().position(|member| *member == self.rank)?;
        World::new(at as u32, members.len() as u32).ok()
    }

    /// Returns the rank `offset` places after this one, counted around the ring.
    pub fn after(&self, offset: usize) -> Rank {
        Rank(((self.rank.index() + offset) % self.size()) as u32)
    }

    /// Returns the rank `offset` places before this one, counted around the ring.
    pub fn before(&self, offset: usize) -> Rank {
        self.after(self.size() - offset % self.size())
    }

    /// Returns every rank, including this one, in order.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.size).map(Rank)
    }

    /// Returns every rank except this one, in order.
    pub fn peers(&self) -> impl Iterator<Item = Rank> + use<> {
        let me = self.rank;
        self.ranks().filter(move |rank| *rank != me)
    }
}

/// Way in which the encodings of several ranks may be combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// Partial sums are encoded again at every hop, since the codec is linear up to rounding.
    Summable,
    /// Every rank encodes once for the owner of a chunk, and the owner encodes the sum once more.
    TwoShot,
    /// Every rank sends its encoding to all ranks, which merge all encodings in the order of ranks.
    Gather,
}

/// Error for a rank and a number of ranks that do not make a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct InvalidWorld {
    /// Requested rank.
    pub rank: u32,
    /// Requested size.
    pub size: u32,
}

impl fmt::Display for InvalidWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InvalidWorld { rank, size } = self;
        if *size == 0 || *size > WORLD_SIZE_MAX {
            write!(f, "world size {size} is not in 1..={WORLD_SIZE_MAX}")
        } else {
            write!(f, "rank {rank} is not in a world of {size}, expected 0..={}", size - 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_wrap_around() {
        let world = World::new(4, 5).unwrap();
        assert_eq!(world.after(1), Rank(0));
        assert_eq!(world.before(5), Rank(4));
        assert_eq!(world.before(6), Rank(3));
        assert_eq!(world.peers().count(), 4);
    }

    #[test]
    fn impossible_worlds_are_refused() {
        assert!(World::new(0, 0).is_err());
        assert!(World::new(0, WORLD_SIZE_MAX + 1).is_err());
        let error = World::new(4, 4).unwrap_err().to_string();
        assert_eq!(error, "rank 4 is not in a world of 4, expected 0..=3");
    }
}
