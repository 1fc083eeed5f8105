//! Sums over all ranks, flat or in two levels.
//!
//! A flat [`Algorithm`] treats all ranks alike; a [`Hierarchy`] sums within units of neighbouring ranks
//! first. Whoever runs, prices or names a sum takes a [`Summation`] and need not know which it is.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use thinwire_wire::{Exchange, World};

use crate::{
    Algorithm, Hierarchy, Schedule, Shape, UnknownAlgorithm, all_reduce, carries, reduce_scatter,
};

/// A sum over all ranks, named as `ring` or as `hierarchical:2:ring`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Summation {
    /// All ranks take part alike.
    Flat(Algorithm),
    /// Ranks are grouped in units of neighbours.
    Hierarchical(Hierarchy),
}

impl Summation {
    /// Returns the number of ranks in a unit: 1 for a flat algorithm.
    pub const fn unit(self) -> usize {
        match self {
            Summation::Flat(_) => 1,
            Summation::Hierarchical(hierarchy) => hierarchy.unit,
        }
    }

    /// Returns the flat algorithm by which encodings travel, between units where there are any.
    pub const fn algorithm(self) -> Algorithm {
        match self {
            Summation::Flat(algorithm) => algorithm,
            Summation::Hierarchical(hierarchy) => hierarchy.between,
        }
    }

    /// Whether encodings that are brought together by `exchange` can travel so.
    pub fn carries(self, exchange: Exchange) -> bool {
        carries(self.algorithm(), exchange)
    }

    /// Whether a number of ranks divides into units.
    pub const fn divides(self, world_size: usize) -> bool {
        self.unit() > 0 && world_size.is_multiple_of(self.unit())
    }

    /// Returns the elements that one rank of a unit sums with those of the other units, of `length`
    /// elements: all of them in a flat sum. Partitions divide this part.
    pub const fn part(self, length: usize) -> usize {
        length.div_ceil(self.unit())
    }

    /// Returns the schedule after which `values` of every rank hold, bit for bit the same, the sum of what
    /// the ranks held before.
    ///
    /// # Panics
    /// If the world does not divide into units, or `shape.block` or `shape.partitions` is 0.
    pub fn all_reduce(self, world: World, shape: &Shape) -> Schedule {
        match self {
            Summation::Flat(algorithm) => all_reduce(algorithm, world, shape),
            Summation::Hierarchical(hierarchy) => hierarchy.all_reduce(world, shape),
        }
    }

    /// Returns the schedule after which this rank's values hold, in its [`Summation::chunk`], the sum of what
    /// all ranks held there before: a direct one, within units and between them, whatever the algorithm.
    ///
    /// # Panics
    /// If the world does not divide into units.
    pub fn reduce_scatter(self, world: World, length: usize) -> Schedule {
        match self {
            Summation::Flat(_) => reduce_scatter(world, &plain(length)),
            Summation::Hierarchical(hierarchy) => hierarchy.reduce_scatter(world, length),
        }
    }

    /// Returns the elements whose sum this rank has after a reduce-scatter.
    ///
    /// # Panics
    /// If the world does not divide into units.
    pub fn chunk(self, world: World, length: usize) -> Range<usize> {
        match self {
            Summation::Flat(_) => plain(length).chunk(0, world.size(), world.rank().index()),
            Summation::Hierarchical(hierarchy) => hierarchy.chunk(world, length),
        }
    }
}

/// The shape of a reduce-scatter, which no block cuts.
const fn plain(length: usize) -> Shape {
    Shape { length, block: 1, partitions: 1 }
}

impl From<Algorithm> for Summation {
    fn from(algorithm: Algorithm) -> Summation {
        Summation::Flat(algorithm)
    }
}

impl From<Hierarchy> for Summation {
    fn from(hierarchy: Hierarchy) -> Summation {
        Summation::Hierarchical(hierarchy)
    }
}

impl fmt::Display for Summation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Summation::Flat(algorithm) => algorithm.fmt(f),
            Summation::Hierarchical(hierarchy) => hierarchy.fmt(f),
        }
    }
}

/// As the algorithm itself: fingerprints of saved plans are made of it.
impl fmt::Debug for Summation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Summation::Flat(algorithm) => algorithm.fmt(f),
            Summation::Hierarchical(hierarchy) => hierarchy.fmt(f),
        }
    }
}

impl FromStr for Summation {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Summation, UnknownAlgorithm> {
        match name.starts_with("hierarchical:") {
            true => name.parse().map(Summation::Hierarchical),
            false => name.parse().map(Summation::Flat),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        let hierarchies =
            Algorithm::ALL.map(|between| Summation::from(Hierarchy { unit: 2, between }));
        for summation in Algorithm::ALL.map(Summation::from).into_iter().chain(hierarchies) {
            assert_eq!(summation.to_string().parse(), Ok(summation));
        }
        for unknown in ["star", "hierarchical", "hierarchical:0:ring", "hierarchical:2:star"] {
            assert!(unknown.parse::<Summation>().is_err(), "{unknown}");
        }
    }

    #[test]
    fn units_must_divide_the_ranks() {
        let of = |unit| Summation::from(Hierarchy { unit, between: Algorithm::Ring });
        assert!(of(2).divides(4) && !of(3).divides(4) && !of(0).divides(4));
        assert!(Summation::from(Algorithm::Ring).divides(7));
        assert_eq!((of(2).part(7), Summation::from(Algorithm::Ring).part(7)), (4, 7));
    }
}
