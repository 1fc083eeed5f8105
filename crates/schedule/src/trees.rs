//! Sums over weighted trees, for links that differ.
//!
//! Every tree spans all ranks and carries a part of the values in proportion to its weight: partial
//! sums travel up to the root, and the sum travels down as the root encoded it. A rank on a thin link
//! should be a leaf of every tree, so that its values cross the link once in each direction. A thin
//! pair should be an edge of no tree. Trees of depth 1 are a two-shot whose owners have unequal chunks.
//! (Wang et al., "Blink: fast and generic collectives for distributed ML", MLSys 2020, pack spanning
//! trees for the links within a host.)
//!
//! Per rank and tree: one message to its parent and from each child, then the same in reverse. In a tree of depth d
//! a value is encoded d + 1 times on its way to the sum.

use std::fmt;

use thinwire_wire::{Rank, World};

use crate::builder::{Builder, Phase, Span};
use crate::{Schedule, Shape};

/// Bits of a rank in `Trees::parents`.
const BITS: usize = 4;

/// Spanning trees of the ranks of a world, each with the weight of its part of the values.
///
/// Trees are written as `3*0.0.0+1*1.1.1`: weight 3 for the tree in which rank 0 is the parent of all
/// ranks, and weight 1 for the tree in which rank 1 is the parent of all. A root is its own parent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Trees {
    ranks: u8,
    count: u8,
    weights: [u8; Trees::COUNT_MAX],
    /// The parent of each rank, `BITS` bits each.
    parents: [u64; Trees::COUNT_MAX],
}

impl Trees {
    /// The most ranks of a tree.
    pub const RANKS_MAX: usize = 1 << BITS;
    /// The most trees.
    pub const COUNT_MAX: usize = 16;

    /// Returns trees with these weights and the parent of each rank. `None` unless there are 1 to
    /// [`Trees::COUNT_MAX`] trees with positive weights, and each spans the same 1 to
    /// [`Trees::RANKS_MAX`] ranks.
    pub fn new(trees: &[(u8, Vec<usize>)]) -> Option<Trees> {
        let ranks = trees.first()?.1.len();
        let fits = ranks <= Trees::RANKS_MAX && trees.len() <= Trees::COUNT_MAX;
        let spans = |(weight, parents): &(u8, Vec<usize>)| {
            *weight > 0 && parents.len() == ranks && is_tree(parents)
        };
        if !fits || !trees.iter().all(spans) {
            return None;
        }
        let mut all = Trees {
            ranks: ranks as u8,
            count: trees.len() as u8,
            weights: [0; Trees::COUNT_MAX],
            parents: [0; Trees::COUNT_MAX],
        };
        for (index, (weight, parents)) in trees.iter().enumerate() {
            all.weights[index] = *weight;
            all.parents[index] =
                (0..ranks).map(|rank| (parents[rank] as u64) << (BITS * rank)).sum();
        }
        Some(all)
    }

    /// Returns the number of ranks.
    pub const fn ranks(&self) -> usize {
        self.ranks as usize
    }

    /// Returns the number of trees.
    pub const fn count(&self) -> usize {
        self.count as usize
    }

    /// Returns the depth of the deepest tree: the number of edges from its root to the furthest leaf.
    pub fn depth(&self) -> usize {
        let ranks = || 0..self.ranks();
        let depths =
            (0..self.count()).flat_map(|tree| ranks().map(move |rank| self.level(tree, rank)));
        depths.max().unwrap_or(0)
    }

    /// Returns the fraction of all values that each tree carries, and its edges from child to parent.
    pub fn edges(&self) -> impl Iterator<Item = (f64, Vec<(usize, usize)>)> {
        let total: f64 = self.weights.iter().map(|weight| f64::from(*weight)).sum();
        (0..self.count()).map(move |tree| {
            let edge = |rank| (rank, self.parent(tree, rank));
            let edges = (0..self.ranks()).map(edge).filter(|(child, parent)| child != parent);
            (f64::from(self.weights[tree]) / total, edges.collect())
        })
    }

    fn parent(&self, tree: usize, rank: usize) -> usize {
        (self.parents[tree] >> (BITS * rank)) as usize % Trees::RANKS_MAX
    }

    /// Returns the number of edges between a rank and the root.
    fn level(&self, tree: usize, rank: usize) -> usize {
        let above = |&rank: &usize| Some(self.parent(tree, rank)).filter(|parent| *parent != rank);
        std::iter::successors(Some(rank), above).count() - 1
    }

    /// Returns the part of a partition that a tree carries; `None` if it has no elements.
    fn span(&self, shape: &Shape, partition: usize, tree: usize) -> Option<Span> {
        let before = |tree: usize| -> usize {
            self.weights[..tree].iter().map(|weight| usize::from(*weight)).sum()
        };
        Span::new(shape, partition, before(self.count()), before(tree)..before(tree + 1))
    }

    /// Returns the schedule of an all-reduce over the trees.
    pub(crate) fn all_reduce(&self, world: World, shape: &Shape) -> Schedule {
        assert_eq!(world.size(), self.ranks(), "ranks of {self}");
        let mut builder = Builder::default();
        for partition in 0..shape.partitions {
            for tree in 0..self.count() {
                if let Some(span) = self.span(shape, partition, tree) {
                    self.sum(&mut builder, world.rank(), tree, &span);
                }
            }
        }
        builder.finish()
    }

    /// Sums a span over one tree, and sends the sum down again.
    fn sum(&self, builder: &mut Builder, me: Rank, tree: usize, span: &Span) {
        let parent = Rank(self.parent(tree, me.index()) as u32);
        let children = (0..self.ranks())
            .filter(|&rank| rank != me.index() && self.parent(tree, rank) == me.index())
            .map(|rank| Rank(rank as u32));
        let merged = children.clone().fold(None, |merged, child| {
            let part = builder.recv(span, Phase::Reduce, child);
            Some(builder.merge(part, span, merged))
        });
        let encoded = builder.encode(span, merged);
        let (sum, touched) = match parent == me {
            true => (encoded, None),
            false => {
                let sent = builder.send(encoded, span, Phase::Reduce, parent);
                (builder.recv(span, Phase::Gather, parent), Some(sent))
            }
        };
        children.for_each(|child| {
            builder.send(sum, span, Phase::Gather, child);
        });
        builder.decode(sum, span, touched);
    }
}

/// Returns whether following parents leads from every rank to one root, which is its own parent.
fn is_tree(parents: &[usize]) -> bool {
    let root = |rank: usize| {
        let mut at = rank;
        for _ in 0..parents.len() {
            at = *parents.get(at)?;
        }
        (*parents.get(at)? == at).then_some(at)
    };
    let first = root(0);
    first.is_some() && (1..parents.len()).all(|rank| root(rank) == first)
}

impl fmt::Display for Trees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for tree in 0..self.count() {
            let plus = if tree > 0 { "+" } else { "" };
            write!(f, "{plus}{}*", self.weights[tree])?;
            for rank in 0..self.ranks() {
                let dot = if rank > 0 { "." } else { "" };
                write!(f, "{dot}{}", self.parent(tree, rank))?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Trees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Trees {
    /// Parses trees as they are written; `None` for any other text.
    pub fn parse(text: &str) -> Option<Trees> {
        let tree = |text: &str| {
            let (weight, parents) = text.split_once('*')?;
            let parents = parents.split('.').map(|parent| parent.parse().ok());
            Some((weight.parse().ok()?, parents.collect::<Option<Vec<usize>>>()?))
        };
        Trees::new(&text.split('+').map(tree).collect::<Option<Vec<_>>>()?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simulate::{self, Encoding};
    use crate::{Speeds, load_of, verify};

    /// Any trees of 1 to 9 ranks: in the order of their numbers, moved by an offset, each rank hangs below one before it.
    fn some_trees() -> impl Strategy<Value = Trees> {
        let tree = |ranks: usize| {
            (1_u8..=255, 0..ranks, prop::collection::vec(any::<prop::sample::Index>(), ranks))
                .prop_map(move |(weight, offset, above)| {
                    let mut parents = vec![offset; ranks];
                    for place in 1..ranks {
                        let parent = (above[place].index(place) + offset) % ranks;
                        parents[(place + offset) % ranks] = parent;
                    }
                    (weight, parents)
                })
        };
        (1_usize..9)
            .prop_flat_map(move |ranks| prop::collection::vec(tree(ranks), 1..6))
            .prop_map(|trees| Trees::new(&trees).expect("trees"))
    }

    proptest! {
        #[test]
        fn trees_sum_whatever_comes_first(
            trees in some_trees(), length in 0_usize..300, block in 1_usize..9, partitions in 1_usize..4, seed in 0_u64..64,
        ) {
            let shape = Shape { length, block, partitions };
            let world = |rank| World::new(rank, trees.ranks() as u32).unwrap();
            let schedules: Vec<_> =
                (0..trees.ranks() as u32).map(|rank| trees.all_reduce(world(rank), &shape)).collect();
            prop_assert_eq!(verify(&schedules), Ok(()));
            let value = |rank: usize, i: usize| ((rank * 7 + i) % 11) as f32;
            let values = |rank| (0..length).map(|i| value(rank, i)).collect::<Vec<_>>();
            let sums: Vec<f32> =
                (0..length).map(|i| (0..trees.ranks()).map(|rank| value(rank, i)).sum()).collect();
            for encoding in [Encoding::InPlace, Encoding::Through(&<[f32]>::to_vec)] {
                let mut all: Vec<_> = (0..trees.ranks()).map(values).collect();
                prop_assert_eq!(simulate::run(&schedules, &mut all, encoding, seed), Ok(()));
                prop_assert!(all.iter().all(|values| *values == sums));
            }
        }

        #[test]
        fn trees_are_read_as_they_are_written(trees in some_trees()) {
            prop_assert_eq!(Trees::parse(&trees.to_string()), Some(trees));
            let (parts, edges): (Vec<f64>, Vec<_>) = trees.edges().unzip();
            prop_assert!((parts.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assert!(edges.iter().all(|edges| edges.len() == trees.ranks() - 1));
            prop_assert!(trees.depth() < trees.ranks());
        }
    }

    #[test]
    fn what_spans_no_ranks_is_refused() {
        for text in [
            "",
            "1*",
            "0*0.0",
            "1*1.0",
            "1*0.2",
            "1*0.1",
            "256*0.0",
            "1*0.0+1*0.0.0",
            "1*0.0+",
            "x",
        ] {
            assert_eq!(Trees::parse(text), None, "{text}");
        }
        let wide = format!("1*0{}", ".0".repeat(Trees::RANKS_MAX));
        assert!(Trees::parse(&wide).is_none() && Trees::parse(&wide[..wide.len() - 2]).is_some());
    }

    #[test]
    fn a_leaf_sends_and_receives_each_value_once() {
        let trees = Trees::parse("1*0.0.0.0+1*1.1.1.1+1*2.2.2.2").unwrap();
        let shape = Shape { length: 300, block: 1, partitions: 2 };
        let speeds = Speeds {
            latency_s: 0.0,
            bytes_per_s: 1.0,
            encode_per_s: 1.0,
            decode_per_s: 1.0,
            merge_per_s: 1.0,
            task_overhead_s: 0.0,
        };
        let load = |rank| {
            let schedule = trees.all_reduce(World::new(rank, 4).unwrap(), &shape);
            load_of(&schedule, &|elements| 4 * elements, &speeds)
        };
        let loads = [0, 1, 2, 3].map(load);
        assert_eq!(loads.clone().map(|load| load.sent_bytes), [2000, 2000, 2000, 1200]);
        assert_eq!(loads.map(|load| load.received_bytes), [2000, 2000, 2000, 1200]);
    }
}
