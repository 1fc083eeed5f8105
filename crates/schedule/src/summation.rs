//! Sums over all ranks, flat or in two levels.
//!
//! A flat sum treats all ranks alike; a hierarchical one first sums within units of neighbouring ranks.
//! Code that runs, prices or names a sum takes a [`Summation`] and need not know which kind it is.

use std::fmt;
use std::str::FromStr;

use thinwire_wire::Exchange;

use crate::{Algorithm, UnknownAlgorithm, carries, partitions};

/// Trees have this many partitions for each partition of another sum.
const TREES_FACTOR: usize = 4;

/// A sum over all ranks, named as `ring` or as `hierarchical:2:ring`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Summation {
    /// The number of ranks in a unit: ranks 0 to `unit` − 1 are the first unit. 1 in a flat sum.
    pub unit: usize,
    /// The flat algorithm that carries the encodings: among all ranks, or between units in a
    /// hierarchical sum.
    pub algorithm: Algorithm,
}

impl Summation {
    /// Returns whether this sum can carry encodings that are combined by `exchange`.
    pub fn carries(self, exchange: Exchange) -> bool {
        carries(self.algorithm, exchange)
    }

    /// Returns whether this number of ranks divides into units, and the algorithm suits the number of
    /// units.
    pub const fn divides(self, world_size: usize) -> bool {
        self.unit > 0
            && world_size.is_multiple_of(self.unit)
            && self.algorithm.suits(world_size / self.unit)
    }

    /// Checks that the sum can run on this number of ranks.
    ///
    /// # Errors
    /// A line with the sum and both numbers of ranks.
    pub fn check(self, world_size: usize) -> Result<(), String> {
        if self.divides(world_size) {
            return Ok(());
        }
        let expected = match self.algorithm {
            Algorithm::Trees(trees) => (trees.ranks() * self.unit).to_string(),
            _ => format!("a multiple of {}", self.unit),
        };
        Err(format!("algorithm {self} with {world_size} ranks, expected {expected}"))
    }

    /// Returns the largest number of elements, of `length`, that one rank sums with ranks of other
    /// units; in a flat sum, this is `length`. Partitions divide these elements.
    pub const fn part(self, length: usize) -> usize {
        length.div_ceil(self.unit)
    }

    /// Returns the usual number of partitions of `length` elements. Trees have more than other sums, because the last
    /// partition of a slow rank returns alone, after all others.
    pub fn partitions(self, length: usize) -> usize {
        let usual = partitions(self.part(length));
        match self.algorithm {
            Algorithm::Trees(_) => TREES_FACTOR * usual,
            _ => usual,
        }
    }
}

impl From<Algorithm> for Summation {
    fn from(algorithm: Algorithm) -> Summation {
        Summation { unit: 1, algorithm }
    }
}

impl fmt::Display for Summation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit {
            1 => self.algorithm.fmt(f),
            unit => write!(f, "hierarchical:{unit}:{}", self.algorithm),
        }
    }
}

/// Writes the text from which fingerprints of saved plans are made; it must not change.
impl fmt::Debug for Summation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summation { unit, algorithm } = self;
        match unit {
            1 => algorithm.fmt(f),
            _ => {
                f.debug_struct("Hierarchy").field("unit", unit).field("between", algorithm).finish()
            }
        }
    }
}

impl FromStr for Summation {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Summation, UnknownAlgorithm> {
        let Some(units) = name.strip_prefix("hierarchical:") else {
            return name.parse().map(Algorithm::into);
        };
        let unknown = || UnknownAlgorithm(name.to_owned());
        let (unit, algorithm) = units.split_once(':').ok_or_else(unknown)?;
        let unit = unit.parse().ok().filter(|unit| *unit > 0).ok_or_else(unknown)?;
        Ok(Summation { unit, algorithm: algorithm.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        let hierarchies = Algorithm::ALL.map(|algorithm| Summation { unit: 2, algorithm });
        for summation in Algorithm::ALL.map(Summation::from).into_iter().chain(hierarchies) {
            assert_eq!(summation.to_string().parse(), Ok(summation));
        }
        for unknown in ["star", "hierarchical", "hierarchical:0:ring", "hierarchical:2:star"] {
            assert!(unknown.parse::<Summation>().is_err(), "{unknown}");
        }
    }

    #[test]
    fn fingerprints_of_saved_plans_stay_valid() {
        let found = [1, 2].map(|unit| Summation { unit, algorithm: Algorithm::TwoShot });
        assert_eq!(format!("{found:?}"), "[TwoShot, Hierarchy { unit: 2, between: TwoShot }]");
    }

    #[test]
    fn units_must_divide_the_ranks() {
        let of = |unit| Summation { unit, algorithm: Algorithm::Ring };
        assert!(of(2).divides(4) && !of(3).divides(4) && !of(0).divides(4));
        assert!(Summation::from(Algorithm::Ring).divides(7));
        assert_eq!(of(2).check(4), Ok(()));
        let error = "algorithm hierarchical:2:ring with 3 ranks, expected a multiple of 2";
        assert_eq!(of(2).check(3), Err(error.to_owned()));
        let trees: Summation = "hierarchical:2:trees:1*0.0".parse().unwrap();
        assert!(trees.divides(4) && !trees.divides(2) && !trees.divides(3));
        let error = "algorithm hierarchical:2:trees:1*0.0 with 6 ranks, expected 4";
        assert_eq!(trees.check(6), Err(error.to_owned()));
        assert_eq!((of(2).part(7), Summation::from(Algorithm::Ring).part(7)), (4, 7));
    }
}
