//! Packing of trees into links that differ: the trees and weights that sum in the least time.
//!
//! A byte on a tree crosses each of its edges once in each direction. So it loads each rank by the
//! number of the rank's edges divided by the rank's rate, and each pair with an edge by 1 divided by
//! the pair's rate. The time of all bytes is the largest load. Finding the weighted trees with the
//! least time is a fractional packing problem. Its prices determine the tree that is added next: the
//! one of least price, a minimum spanning tree, since the price of a tree is a sum over its edges.
//! (Garg and Könemann, "Faster and simpler algorithms for multicommodity flow and other fractional
//! packing problems", 1998; Blink packs trees in a similar way.)

use std::collections::BTreeMap;

use crate::Trees;

/// Step of the prices while trees are searched. The time of a packing exceeds the least time by at most
/// about twice this fraction.
const COARSE: f64 = 0.05;
/// Step of the prices while the trees that were found are weighted.
const FINE: f64 = 0.02;
/// Fraction of all values below which a tree is left out.
const PART_MIN: f64 = 0.01;
/// Weight of the heaviest tree. It has many divisors, so that equal parts are exact.
const WEIGHT_MAX: f64 = 240.0;

/// Rates between the ranks of a world, in bytes per second, the same in both directions.
///
/// The rate of a rank with all others together is the rate of its fastest pair.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// By rank.
    ranks: Vec<f64>,
    /// By first rank, then by second rank.
    pairs: Vec<f64>,
}

/// The parent of each rank.
type Parents = Vec<usize>;

/// Seconds for each byte on a tree: those of each rank, then those of each pair.
type Loads = Vec<f64>;

impl Rates {
    /// Returns the rates of `ranks` ranks, at least 2; `pair` returns the positive rate between two of
    /// them, the lower one first.
    pub fn new(ranks: usize, pair: impl Fn(usize, usize) -> f64) -> Rates {
        let rate = |at: usize| {
            let (from, to) = (at / ranks, at % ranks);
            if from == to { 0.0 } else { pair(from.min(to), from.max(to)) }
        };
        let pairs: Vec<f64> = (0..ranks * ranks).map(rate).collect();
        let fastest = |row: &[f64]| row.iter().copied().fold(0.0, f64::max);
        Rates { ranks: pairs.chunks(ranks).map(fastest).collect(), pairs }
    }

    /// Returns the number of ranks.
    pub const fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the rate between two ranks.
    pub fn pair(&self, from: usize, to: usize) -> f64 {
        self.pairs[from * self.ranks() + to]
    }

    /// Returns the rate of a rank with all others together.
    pub fn rank(&self, rank: usize) -> f64 {
        self.ranks[rank]
    }

    /// Returns a lower bound on the seconds per byte of any all-reduce: each rank sends its values and receives the
    /// sums, and all ranks together send 2(n − 1) times the values.
    pub fn bound(&self) -> f64 {
        let slowest = self.ranks.iter().copied().fold(f64::INFINITY, f64::min);
        let all: f64 = self.ranks.iter().sum();
        (1.0 / slowest).max(2.0 * (self.ranks() - 1) as f64 / all)
    }

    /// Returns the seconds per byte of a sum over `trees` if nothing but the wire takes time.
    pub fn seconds(&self, trees: &Trees) -> f64 {
        let mut loads = vec![0.0; self.resources()];
        for (part, edges) in trees.edges() {
            self.loads(&edges).iter().zip(&mut loads).for_each(|(load, sum)| *sum += part * load);
        }
        loads.into_iter().fold(0.0, f64::max)
    }

    /// Returns trees of depth 1 with the weights that take the least time, to within a few percent: a
    /// two-shot with unequal chunks. `None` for more than [`Trees::RANKS_MAX`] ranks.
    pub fn stars(&self) -> Option<Trees> {
        let stars = (0..self.ranks()).map(|root| vec![root; self.ranks()]).collect();
        self.weighted(stars)
    }

    /// Returns the trees of any depth that take the least time, to within a few percent; they never
    /// take longer than [`Rates::stars`]. `None` for more than [`Trees::RANKS_MAX`] ranks.
    pub fn trees(&self) -> Option<Trees> {
        self.stars_and_trees().map(|[_, trees]| trees)
    }

    /// Returns [`Rates::stars`], then [`Rates::trees`].
    pub fn stars_and_trees(&self) -> Option<[Trees; 2]> {
        let stars = self.stars()?;
        let mut found: Vec<(f64, Parents)> = self.pack(COARSE, |prices| self.cheapest(prices));
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        found.truncate(Trees::COUNT_MAX);
        let deep = self.weighted(found.into_iter().map(|(_, parents)| parents).collect())?;
        let is_faster = self.seconds(&deep) < self.seconds(&stars);
        Some([stars, if is_faster { deep } else { stars }])
    }

    /// Gives trees the weights that take the least time, and leaves out trees that carry next to
    /// nothing.
    fn weighted(&self, trees: Vec<Parents>) -> Option<Trees> {
        let loads: Vec<Loads> = trees.iter().map(|parents| self.loads(&edges(parents))).collect();
        let price = |loads: &Loads, prices: &[f64]| -> f64 {
            loads.iter().zip(prices).map(|(load, price)| load * price).sum()
        };
        let packed = self.pack(FINE, |prices| {
            let by_price = (0..trees.len())
                .min_by(|&a, &b| price(&loads[a], prices).total_cmp(&price(&loads[b], prices)));
            trees[by_price.expect("a tree")].clone()
        });
        let most = packed.iter().map(|(amount, _)| *amount).fold(0.0, f64::max);
        let all: f64 = packed.iter().map(|(amount, _)| amount).sum();
        let kept = packed.into_iter().filter(|(amount, _)| *amount >= PART_MIN * all);
        let weights =
            kept.map(|(amount, parents)| ((amount / most * WEIGHT_MAX).round() as u8, parents));
        Trees::new(&weights.collect::<Vec<_>>())
    }

    /// Packs the trees that `cheapest` returns for prices of all ranks and pairs. Returns the amount that each carries.
    fn pack(&self, step: f64, cheapest: impl Fn(&[f64]) -> Parents) -> Vec<(f64, Parents)> {
        let resources = self.resources();
        let enough = (resources as f64).ln() / step;
        let (mut loads, mut amounts) = (vec![0.0; resources], BTreeMap::<Parents, f64>::new());
        let mut most = 0.0_f64;
        while most < enough {
            let prices: Vec<f64> = loads.iter().map(|load| (step * (load - most)).exp()).collect();
            let parents = cheapest(&prices);
            let own = self.loads(&edges(&parents));
            let amount = 1.0 / own.iter().copied().fold(0.0, f64::max);
            for (load, own) in loads.iter_mut().zip(own) {
                *load += amount * own;
                most = most.max(*load);
            }
            // The first trees do not count, since prices were hardly different yet when they were chosen.
            if most > enough / 2.0 {
                *amounts.entry(parents).or_default() += amount;
            }
        }
        amounts.into_iter().map(|(parents, amount)| (amount, parents)).collect()
    }

    const fn resources(&self) -> usize {
        self.ranks() + self.ranks() * self.ranks()
    }

    fn loads(&self, edges: &[(usize, usize)]) -> Loads {
        let mut loads = vec![0.0; self.resources()];
        for &(child, parent) in edges {
            loads[child] += 1.0 / self.rank(child);
            loads[parent] += 1.0 / self.rank(parent);
            let (low, high) = (child.min(parent), child.max(parent));
            loads[self.ranks() + low * self.ranks() + high] += 1.0 / self.pair(low, high);
        }
        loads
    }

    /// Returns the spanning tree of least price, by Prim's algorithm, with the root at its middle.
    fn cheapest(&self, prices: &[f64]) -> Parents {
        let of_rank: Vec<f64> =
            (0..self.ranks()).map(|rank| prices[rank] / self.rank(rank)).collect();
        let price = |a: usize, b: usize| {
            let (low, high) = (a.min(b), a.max(b));
            of_rank[a]
                + of_rank[b]
                + prices[self.ranks() + low * self.ranks() + high] / self.pair(a, b)
        };
        // For each rank outside of the tree, the rank in the tree that is nearest to it.
        let mut nearest = vec![0; self.ranks()];
        let mut outside: Vec<usize> = (1..self.ranks()).collect();
        while !outside.is_empty() {
            let next = (0..outside.len()).min_by(|&a, &b| {
                let price = |at: usize| price(outside[at], nearest[outside[at]]);
                price(a).total_cmp(&price(b))
            });
            let rank = outside.swap_remove(next.expect("a rank outside"));
            for &other in &outside {
                if price(other, rank) < price(other, nearest[other]) {
                    nearest[other] = rank;
                }
            }
        }
        from_the_middle(&nearest)
    }
}

/// Returns the edges of a tree, from child to parent.
fn edges(parents: &[usize]) -> Vec<(usize, usize)> {
    let all = parents.iter().copied().enumerate();
    all.filter(|(child, parent)| child != parent).collect()
}

/// Returns the same tree with the root that makes it least deep.
fn from_the_middle(parents: &[usize]) -> Parents {
    let edges = edges(parents);
    let rooted = |root: usize| {
        let (mut parents, mut level) = (vec![usize::MAX; parents.len()], vec![root]);
        parents[root] = root;
        let mut depth = 0;
        loop {
            let below: Vec<(usize, usize)> = (edges.iter().flat_map(|&(a, b)| [(a, b), (b, a)]))
                .filter(|(to, from)| parents[*to] == usize::MAX && level.contains(from))
                .collect();
            if below.is_empty() {
                return (depth, parents);
            }
            below.iter().for_each(|(to, from)| parents[*to] = *from);
            level = below.into_iter().map(|(to, _)| to).collect();
            depth += 1;
        }
    };
    let all = (0..parents.len()).map(rooted);
    all.min_by_key(|(depth, _)| *depth).expect("a tree has a rank").1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns ranks with these rates; a pair has the rate of its slower rank.
    fn of_ranks(rates: &[f64]) -> Rates {
        Rates::new(rates.len(), |low, high| rates[low].min(rates[high]))
    }

    #[test]
    fn a_slow_rank_is_a_leaf() {
        let rates = of_ranks(&[4.0, 4.0, 1.0, 4.0]);
        let trees = rates.trees().unwrap();
        assert_eq!(rates.bound(), 1.0);
        assert!(rates.seconds(&trees) < 1.02, "{trees}");
        assert!(trees.edges().all(|(_, edges)| edges.iter().all(|(_, parent)| *parent != 2)));
        let equal = Trees::parse("1*0.0.0.0+1*1.1.1.1+1*2.2.2.2+1*3.3.3.3").unwrap();
        assert!((rates.seconds(&equal) - 1.5).abs() < 1e-9);
    }

    #[test]
    fn equal_links_have_equal_shares() {
        for ranks in [3, 4, 8, 16] {
            let rates = of_ranks(&vec![1.0; ranks]);
            let stars = rates.stars().unwrap();
            assert_eq!(stars.count(), ranks);
            assert!(rates.seconds(&stars) < 1.02 * rates.bound(), "{stars}");
        }
    }

    #[test]
    fn a_thin_pair_is_left_out() {
        // Any star uses one of the thin diagonals of a square; chains along its sides use none.
        let rates = Rates::new(4, |low, high| if high - low == 2 { 0.01 } else { 1.0 });
        let (trees, stars) = (rates.trees().unwrap(), rates.stars().unwrap());
        assert!(rates.seconds(&trees) < 1.05 * rates.bound(), "{trees}");
        assert!(rates.seconds(&stars) > 10.0 * rates.bound() && stars.depth() == 1);
        // One thin pair is avoided by stars, too.
        let rates = Rates::new(4, |low, high| if (low, high) == (1, 2) { 0.01 } else { 1.0 });
        assert!(rates.seconds(&rates.stars().unwrap()) < 1.4 * rates.bound());
    }

    proptest! {
        #[test]
        // Twice the coarse step of prices.
        fn where_ranks_alone_differ_the_bound_is_reached(rates in prop::collection::vec(1.0_f64..100.0, 3..9)) {
            let rates = of_ranks(&rates);
            let [trees, stars] = [rates.trees(), rates.stars()].map(Option::unwrap);
            let times = [trees, stars].map(|trees| rates.seconds(&trees) / rates.bound());
            prop_assert!(times.iter().all(|times| (0.999..1.1).contains(times)), "{:?} {} {}", times, trees, stars);
        }

        #[test]
        fn deeper_trees_take_no_longer_than_stars(
            ranks in 3_usize..8, rates in prop::collection::vec(1.0_f64..100.0, 64),
        ) {
            let rates = Rates::new(ranks, |low, high| rates[low * 8 + high]);
            let (trees, stars) = (rates.trees().unwrap(), rates.stars().unwrap());
            prop_assert!(rates.seconds(&trees) <= rates.seconds(&stars), "{} {}", trees, stars);
            prop_assert!(rates.seconds(&trees) >= 0.999 * rates.bound());
        }
    }
}
