//! Draws: they select the in-neighbours of a destination.

use std::sync::Arc;

use super::stream::Stream;
use super::weights::Weights;

/// Largest fan-out for which draws are compared one by one; larger ones use a bit set.
const COMPARED_MAX: usize = 32;

/// Largest number of in-neighbours that a destination draws in one hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FanOut {
    /// All in-neighbours, without drawing.
    All,
    /// At most this many in-neighbours.
    Limit(u32),
}

/// Way to draw in-neighbours.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Draw {
    /// Without replacement; every set is equally likely.
    #[default]
    Distinct,
    /// With replacement; every edge is equally likely. A destination that has in-neighbours gets exactly as
    /// many edges as its fan-out.
    Repeated,
    /// Without replacement, one after the other. The probabilities are in proportion to the weights of the
    /// remaining edges (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).
    Weighted(Arc<Weights>),
    /// With replacement, with probabilities in proportion to the weights.
    WeightedRepeated(Arc<Weights>),
}

/// Vertices that are expanded in a hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Frontier {
    /// Every vertex so far. It draws again in each hop, as in DGL: the destinations of a block are the
    /// sources of the previous block.
    #[default]
    All,
    /// Only the vertices that the previous hop added, as in PyG: every vertex draws once.
    New,
}

/// Options of neighbour sampling.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// Fan-out of each hop, beginning with the hop of the seeds.
    pub fan_outs: Vec<FanOut>,
    /// Way to draw.
    pub draw: Draw,
    /// Vertices that are expanded.
    pub frontier: Frontier,
}

impl Sampling {
    /// Creates options with a limit for each hop, beginning with the hop of the seeds, for drawing without
    /// replacement.
    pub fn new(fan_outs: &[u32]) -> Sampling {
        let fan_outs = fan_outs.iter().copied().map(FanOut::Limit).collect();
        Sampling { fan_outs, ..Sampling::default() }
    }

    /// Returns the weights of edges, if draws depend on weights.
    pub(crate) fn weights(&self) -> Option<&[f32]> {
        match &self.draw {
            Draw::Distinct | Draw::Repeated => None,
            Draw::Weighted(weights) | Draw::WeightedRepeated(weights) => Some(weights.values()),
        }
    }
}

/// Edges of a destination: `start..start + degree`.
#[derive(Clone, Copy, Debug)]
pub struct InEdges {
    /// Position of the first edge.
    pub start: u64,
    /// Number of edges.
    pub degree: u32,
}

/// Buffers of draws.
#[derive(Clone, Debug, Default)]
pub struct Drawer {
    /// Bit set of drawn edges, empty between draws.
    bits: Vec<u64>,
    /// Random keys of the edges of one vertex, or cumulative sums of their weights.
    keys: Vec<(f64, u32)>,
}

impl Drawer {
    /// Draws from the edges of a destination, which has at least one, and appends their positions to `edges`.
    #[inline]
    pub fn draw(
        &mut self,
        draw: &Draw,
        fan_out: FanOut,
        of: InEdges,
        stream: &mut Stream,
        edges: &mut Vec<u64>,
    ) {
        let InEdges { start, degree } = of;
        let FanOut::Limit(limit) = fan_out else {
            return edges.extend(start..start + u64::from(degree));
        };
        let range = start as usize..start as usize + degree as usize;
        match draw {
            Draw::Distinct if degree <= limit => edges.extend(start..start + u64::from(degree)),
            Draw::Distinct => self.draw_distinct(of, limit, stream, edges),
            Draw::Repeated => {
                edges.extend((0..limit).map(|_| start + u64::from(stream.below(degree))));
            }
            Draw::Weighted(weights) => {
                self.draw_weighted(&weights.values()[range], limit, stream);
                edges.extend(self.keys.iter().map(|(_, at)| start + u64::from(*at)));
            }
            Draw::WeightedRepeated(weights) => {
                self.add_up(&weights.values()[range]);
                edges.extend((0..self.draws(limit)).map(|_| start + self.draw_by_sum(stream)));
            }
        }
    }

    /// Draws by Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", 1987).
    #[inline]
    fn draw_distinct(
        &mut self,
        of: InEdges,
        count: u32,
        stream: &mut Stream,
        edges: &mut Vec<u64>,
    ) {
        match count as usize {
            0..8 => compare::<8>(of, count, stream, edges),
            8..16 => compare::<16>(of, count, stream, edges),
            16..COMPARED_MAX => compare::<COMPARED_MAX>(of, count, stream, edges),
            _ => self.draw_with_bits(of, count, stream, edges),
        }
    }

    fn draw_with_bits(
        &mut self,
        InEdges { start, degree }: InEdges,
        count: u32,
        stream: &mut Stream,
        edges: &mut Vec<u64>,
    ) {
        let words = degree.div_ceil(u64::BITS) as usize;
        self.bits.resize(words.max(self.bits.len()), 0);
        let place = |at: u32| ((at / u64::BITS) as usize, 1 << (at % u64::BITS));
        let first = edges.len();
        for last in degree - count..degree {
            let drawn = stream.below(last + 1);
            let (word, bit) = place(drawn);
            let drawn = if self.bits[word] & bit == 0 { drawn } else { last };
            let (word, bit) = place(drawn);
            self.bits[word] |= bit;
            edges.push(start + u64::from(drawn));
        }
        for edge in &edges[first..] {
            self.bits[place((edge - start) as u32).0] = 0;
        }
    }

    /// Draws an exponential variable per edge, whose rate is the edge's weight, and leaves the edges
    /// with the smallest values in `keys`.
    fn draw_weighted(&mut self, weights: &[f32], limit: u32, stream: &mut Stream) {
        let positive = (0..).zip(weights).filter(|(_, weight)| **weight > 0.0);
        let keyed = positive.map(|(at, weight)| (-stream.unit().ln() / f64::from(*weight), at));
        self.keys.clear();
        self.keys.extend(keyed);
        let limit = limit as usize;
        if limit < self.keys.len() {
            self.keys.select_nth_unstable_by(limit, |(a, _), (b, _)| a.total_cmp(b));
            self.keys.truncate(limit);
        }
    }

    /// Leaves in `keys` the cumulative sums of the positive weights.
    fn add_up(&mut self, weights: &[f32]) {
        let positive = (0..).zip(weights).filter(|(_, weight)| **weight > 0.0);
        let mut sum = 0.0;
        self.keys.clear();
        self.keys.extend(positive.map(|(at, weight)| {
            sum += f64::from(*weight);
            (sum, at)
        }));
    }

    fn draws(&self, limit: u32) -> u32 {
        if self.keys.is_empty() { 0 } else { limit }
    }

    fn draw_by_sum(&self, stream: &mut Stream) -> u64 {
        let last = self.keys.len() - 1;
        let at = stream.unit() * self.keys[last].0;
        let place = self.keys.partition_point(|(sum, _)| *sum <= at).min(last);
        u64::from(self.keys[place].1)
    }
}

/// Draws `count < N` of the edges. Compares each draw with all earlier ones, by SIMD lanes instead of
/// branches.
#[inline]
fn compare<const N: usize>(
    InEdges { start, degree }: InEdges,
    count: u32,
    stream: &mut Stream,
    edges: &mut Vec<u64>,
) {
    let mut drawn = [u32::MAX; N];
    for (place, last) in (degree - count..degree).enumerate() {
        let at = stream.below(last + 1);
        let taken = drawn.iter().fold(false, |taken, other| taken | (*other == at));
        drawn[place] = if taken { last } else { at };
    }
    edges.extend(drawn[..count as usize].iter().map(|at| start + u64::from(*at)));
}
