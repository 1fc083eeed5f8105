//! Ranks and the world they form.

use std::fmt;

/// The index of a process in its world, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index into a vector of per-rank values.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// The most ranks a world can have.
pub const WORLD_SIZE_MAX: u32 = 4096;

/// One rank's place among all: who I am, and how many we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct World {
    rank: Rank,
    size: u32,
}

impl World {
    /// A world of `size` ranks seen from `rank`.
    ///
    /// # Errors
    /// If `size` is not in `1..=WORLD_SIZE_MAX`, or `rank` is not below it.
    pub fn new(rank: u32, size: u32) -> Result<World, InvalidWorld> {
        if size == 0 || size > WORLD_SIZE_MAX || rank >= size {
            return Err(InvalidWorld { rank, size });
        }
        Ok(World { rank: Rank(rank), size })
    }

    /// The world of one process.
    pub const fn alone() -> World {
        World { rank: Rank(0), size: 1 }
    }

    /// My own rank.
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks there are.
    pub const fn size(&self) -> usize {
        self.size as usize
    }

    /// The rank `offset` places after mine, counted around the circle.
    pub fn after(&self, offset: usize) -> Rank {
        Rank(((self.rank.index() + offset) % self.size()) as u32)
    }

    /// The rank `offset` places before mine, counted around the circle.
    pub fn before(&self, offset: usize) -> Rank {
        self.after(self.size() - offset % self.size())
    }

    /// Every rank, mine included, in order.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.size).map(Rank)
    }

    /// Every rank but mine, in order.
    pub fn peers(&self) -> impl Iterator<Item = Rank> + use<> {
        let me = self.rank;
        self.ranks().filter(move |rank| *rank != me)
    }
}

/// A rank and a size that make no world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidWorld {
    /// The rank that was asked for.
    pub rank: u32,
    /// The size that was asked for.
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

impl std::error::Error for InvalidWorld {}

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
