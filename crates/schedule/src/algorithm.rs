//! The algorithms that sum values over all ranks.

use std::fmt;
use std::str::FromStr;

use thinwire_wire::World;

use crate::trees::Trees;
use crate::{Schedule, Shape, gather, halving, ring, ring_gather, two_shot};

/// An algorithm of an all-reduce. docs/algorithms.md compares steps and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Partial sums travel around a ring, and then the complete sums: the fewest bytes, the most
    /// steps.
    Ring,
    /// In each step, partners halve the range that they sum, at ever shorter distances: few bytes, few
    /// steps.
    Halving,
    /// Every rank sums one chunk, which all others send to it: two steps, every value encoded twice.
    TwoShot,
    /// Every rank sends all of its values to all others: one step, every value encoded once.
    Gather,
    /// Like gather, but the values travel around a ring.
    RingGather,
    /// Partial sums travel up weighted trees, and sums travel down: for links of unequal rates.
    Trees(Trees),
}

impl Algorithm {
    /// Every algorithm that has no parameters.
    pub const ALL: [Algorithm; 5] = [
        Algorithm::Ring,
        Algorithm::Halving,
        Algorithm::TwoShot,
        Algorithm::Gather,
        Algorithm::RingGather,
    ];

    /// Returns whether every rank decodes the encodings of all ranks.
    pub const fn gathers(self) -> bool {
        matches!(self, Algorithm::Gather | Algorithm::RingGather)
    }

    /// Returns the algorithm's name as users write it, without its parameters.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Ring => "ring",
            Algorithm::Halving => "halving",
            Algorithm::TwoShot => "two-shot",
            Algorithm::Gather => "gather",
            Algorithm::RingGather => "ring-gather",
            Algorithm::Trees(_) => "trees",
        }
    }

    /// Returns whether the algorithm is for this number of ranks.
    pub const fn suits(self, world_size: usize) -> bool {
        match self {
            Algorithm::Trees(trees) => trees.ranks() == world_size,
            _ => true,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Algorithm::Trees(trees) => write!(f, "{}:{trees}", self.name()),
            _ => f.pad(self.name()),
        }
    }
}

/// A text that names neither a flat algorithm nor a hierarchical one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown algorithm '{0}', expected {known}, trees:WEIGHT*PARENTS+… or hierarchical:UNIT:ALGORITHM",
    known = Algorithm::ALL.map(Algorithm::name).join(", ")
)]
pub struct UnknownAlgorithm(pub String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        if let Some(trees) = name.strip_prefix("trees:") {
            let trees = Trees::parse(trees).map(Algorithm::Trees);
            return trees.ok_or_else(|| UnknownAlgorithm(name.to_owned()));
        }
        Algorithm::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

/// Returns the schedule after which `values` of every rank hold the sum of all ranks' earlier values, bit
/// for bit the same on all ranks.
///
/// A world of one rank still encodes and decodes, so that a lossy codec has the same errors there as
/// elsewhere.
///
/// # Panics
/// If `shape.block` or `shape.partitions` is 0, or if trees are of another number of ranks.
pub fn all_reduce(algorithm: Algorithm, world: World, shape: &Shape) -> Schedule {
    match algorithm {
        Algorithm::Ring => ring::all_reduce(world, shape),
        Algorithm::Halving => halving::all_reduce(world, shape),
        Algorithm::TwoShot => two_shot::all_reduce(world, shape),
        Algorithm::Gather => gather::all_reduce(world, shape),
        Algorithm::RingGather => ring_gather::all_reduce(world, shape),
        Algorithm::Trees(trees) => trees.all_reduce(world, shape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        let trees = "trees:2*0.0.0+1*1.1.0".parse::<Algorithm>().unwrap();
        assert_eq!(trees.to_string().parse(), Ok(trees));
        assert!(trees.suits(3) && !trees.suits(2) && Algorithm::Ring.suits(2));
        let error = "star".parse::<Algorithm>().unwrap_err().to_string();
        let expected = "unknown algorithm 'star', expected ring, halving, two-shot, gather, ring-gather, \
                        trees:WEIGHT*PARENTS+… or hierarchical:UNIT:ALGORITHM";
        assert_eq!(error, expected);
    }
}
