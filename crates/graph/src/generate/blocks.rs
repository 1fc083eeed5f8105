//! Stochastic block model (Holland, Laskey and Leinhardt, "Stochastic blockmodels: First steps", 1983).

use rayon::prelude::*;
use thinwire_wire::random::Key;

use super::uniform;
use crate::adjacency::Adjacency;
use crate::error::Error;

/// Number of standard deviations beyond which the normal density counts as 0.
const TAIL: f64 = 9.0;
/// Steps of a numeric integral.
const STEPS: u32 = 4000;

/// Vertices in blocks of equal size. Two vertices of the same block have an edge with one probability,
/// and two vertices of different blocks with another. The block of a vertex is its label, and its
/// features are a vector for the block plus noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blocks {
    /// Number of vertices.
    pub vertices: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// Expected number of neighbours in a vertex's own block.
    pub degree_within: f64,
    /// Expected number of neighbours in all other blocks together.
    pub degree_between: f64,
    /// Standard deviation of features.
    pub noise: f32,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Blocks {
    /// Generates the graph; every edge has both directions, and there are no loops.
    ///
    /// # Errors
    /// If there are no blocks, more blocks than vertices, or degrees that are impossible with this number of
    /// vertices.
    pub fn graph(&self) -> Result<Adjacency, Error> {
        let (within, between) = self.chances()?;
        let edges: Vec<(u32, u32)> = (0..self.vertices)
            .into_par_iter()
            .flat_map_iter(|vertex| {
                let own = self.label(vertex);
                (0..self.blocks).flat_map(move |block| {
                    let chance = if block == own { within } else { between };
                    self.earlier(vertex, block, chance).map(move |other| (other, vertex))
                })
            })
            .collect();
        Ok(Adjacency::from_edges(self.vertices, &edges)?.symmetrized())
    }

    /// Returns the block of a vertex.
    pub fn label(&self, vertex: u32) -> u32 {
        vertex % self.blocks
    }

    /// Writes the features of a vertex: 1 in the column of its block and 0 in the others, plus noise.
    pub fn features(&self, vertex: u32, columns: &mut [f32]) {
        let key = Key { seed: self.seed, step: u64::from(vertex), tensor: 3 };
        for (column, value) in (0..).zip(columns) {
            let centre = if column == u64::from(self.label(vertex)) { 1.0 } else { 0.0 };
            *value = centre + self.noise * key.normal(column);
        }
    }

    /// Returns the best possible accuracy without edges, from features with `columns` columns: the
    /// probability that the vertex's own column is the largest. If no column exceeds 1/2, the vertex is
    /// assigned to one of the blocks without a column. Edges can only increase the accuracy, since a mean
    /// over neighbours of the same block has less noise.
    pub fn accuracy_of_features(&self, columns: u32) -> f64 {
        let (noise, blocks) = (f64::from(self.noise), f64::from(self.blocks));
        let known = columns.min(self.blocks);
        // Noise of the own column above which it is chosen before blocks without a column.
        let (others, least) = match known < self.blocks {
            true => (1.0, -0.5 / noise),
            false => (0.0, -TAIL),
        };
        let unknown = others * distribution(0.5 / noise).powi(known as i32);
        let seen =
            f64::from(known) * largest(1.0 / noise, f64::from(known) - 1.0, least.max(-TAIL));
        (seen + unknown) / blocks
    }

    /// Returns the probabilities of an edge within a block and between blocks.
    fn chances(&self) -> Result<(f64, f64), Error> {
        let (vertices, blocks) = (self.vertices, self.blocks);
        if blocks == 0 || blocks > vertices {
            return Err(Error::value(format!(
                "{blocks} blocks of {vertices} vertices, expected at least one block, and at \
                 least one vertex in each"
            )));
        }
        let size = f64::from(vertices) / f64::from(blocks);
        let chance = |degree: f64, others: f64| match others > 0.0 {
            true => degree / others,
            false => degree,
        };
        let within = chance(self.degree_within, size - 1.0);
        let between = chance(self.degree_between, f64::from(vertices) - size);
        for (name, degree, chance) in
            [("within", self.degree_within, within), ("between", self.degree_between, between)]
        {
            if !(0.0..=1.0).contains(&chance) {
                return Err(Error::value(format!(
                    "{degree} neighbours {name} blocks of {size} vertices, expected at least 0 \
                     and no more than there are such vertices"
                )));
            }
        }
        Ok((within, between))
    }

    /// Draws the vertices of a block that are earlier than `vertex` and have an edge to it, by the gaps
    /// between them (Batagelj and Brandes, "Efficient generation of large random networks", 2005).
    fn earlier(&self, vertex: u32, block: u32, chance: f64) -> impl Iterator<Item = u32> {
        let blocks = self.blocks;
        let key = Key { seed: self.seed, step: u64::from(vertex), tensor: 4 + block };
        let (mut next, mut draw) = (0.0, 0);
        std::iter::from_fn(move || {
            let gap = match chance {
                chance if chance <= 0.0 => return None,
                chance if chance >= 1.0 => 0.0,
                chance => ((1.0 - uniform(key, draw)).ln() / (1.0 - chance).ln()).floor(),
            };
            draw += 1;
            next += gap;
            let other = next * f64::from(blocks) + f64::from(block);
            next += 1.0;
            (other < f64::from(vertex)).then_some(other as u32)
        })
    }
}

/// Returns the probability that a normal number is above `least` and, after adding `distance`, above `others`
/// other normal numbers: the integral of `density(x) * distribution(x + distance)^others`.
fn largest(distance: f64, others: f64, least: f64) -> f64 {
    let width = (TAIL - least) / f64::from(STEPS);
    let (mut total, mut below, mut at) = (0.0, distribution(least + distance), least + distance);
    for step in 0..STEPS {
        let x = least + (f64::from(step) + 0.5) * width;
        // x ascends, so the distribution is summed once along the way.
        while at < (x + distance).min(TAIL) {
            below += density(at + width / 2.0) * width;
            at += width;
        }
        total += density(x) * below.min(1.0).powf(others) * width;
    }
    total
}

/// Returns the probability that a normal number is below `x`.
fn distribution(x: f64) -> f64 {
    let end = x.clamp(-TAIL, TAIL);
    let width = (end + TAIL) / f64::from(STEPS);
    (0..STEPS).map(|step| density(-TAIL + (f64::from(step) + 0.5) * width) * width).sum()
}

fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: Blocks = Blocks {
        vertices: 3000,
        blocks: 4,
        degree_within: 12.0,
        degree_between: 3.0,
        noise: 0.8,
        seed: 5,
    };

    #[test]
    fn degrees_are_as_asked_for() {
        let graph = BLOCKS.graph().unwrap();
        assert_eq!(graph, BLOCKS.graph().unwrap());
        let is_within = |(a, b): &(u32, u32)| BLOCKS.label(*a) == BLOCKS.label(*b);
        let within = graph.pairs().filter(is_within).count() as f64 / 3000.0;
        let between = graph.edges() as f64 / 3000.0 - within;
        assert!((within - 12.0).abs() < 0.4 && (between - 3.0).abs() < 0.2, "{within} {between}");
        assert!(graph.pairs().all(|(a, b)| a != b));
    }

    /// Returns the share of vertices whose largest column is the column of their label; `values` fills
    /// the columns.
    fn accuracy(values: impl Fn(u32, &mut [f32])) -> f64 {
        let is_right = |vertex: &u32| {
            let mut columns = [0.0; 4];
            values(*vertex, &mut columns);
            let own = columns[BLOCKS.label(*vertex) as usize];
            columns.iter().all(|value| *value <= own)
        };
        (0..3000).filter(is_right).count() as f64 / 3000.0
    }

    #[test]
    fn features_reach_their_optimum_and_neighbours_exceed_it() {
        let optimum = BLOCKS.accuracy_of_features(4);
        let alone = accuracy(|vertex, columns| BLOCKS.features(vertex, columns));
        assert!((alone - optimum).abs() < 0.03, "{alone} {optimum}");
        let graph = BLOCKS.graph().unwrap();
        let together = accuracy(|vertex, columns| {
            let mut row = [0.0; 4];
            for other in graph.neighbors(vertex).iter().chain([&vertex]) {
                BLOCKS.features(*other, &mut row);
                columns.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
        });
        assert!(together > optimum + 0.1, "{together} {optimum}");
    }

    #[test]
    fn optima_of_two_blocks_are_the_normal_distributions() {
        // P(x_own > x_other) for a distance of 1 is distribution(1 / (noise * sqrt 2)).
        let of = |noise: f32| Blocks { blocks: 2, noise, ..BLOCKS }.accuracy_of_features(2);
        assert!((of(std::f32::consts::FRAC_1_SQRT_2) - 0.841_345).abs() < 1e-3);
        assert!((of(1e6) - 0.5).abs() < 1e-2 && (of(0.0) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn blocks_without_a_column_are_told_by_small_columns() {
        for columns in 0..4 {
            let optimum = BLOCKS.accuracy_of_features(columns);
            let is_right = |vertex: &u32| {
                let mut row = [0.5; 4];
                BLOCKS.features(*vertex, &mut row[..columns as usize]);
                let place = (0..4).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
                place as u32 == BLOCKS.label(*vertex)
            };
            let found = (0..3000).filter(is_right).count() as f64 / 3000.0;
            assert!((found - optimum).abs() < 0.03, "{columns}: {found} {optimum}");
            let silent = Blocks { noise: 0.0, ..BLOCKS }.accuracy_of_features(columns);
            assert!((silent - f64::from(columns + 1) / 4.0).abs() < 1e-6, "{columns}: {silent}");
        }
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let message = |blocks: Blocks| blocks.graph().unwrap_err().to_string();
        assert_eq!(
            message(Blocks { blocks: 0, ..BLOCKS }),
            "0 blocks of 3000 vertices, expected at least one block, and at least one vertex in each"
        );
        assert_eq!(
            message(Blocks { degree_within: 750.0, ..BLOCKS }),
            "750 neighbours within blocks of 750 vertices, expected at least 0 and no more than \
             there are such vertices"
        );
        assert!(Blocks { degree_between: f64::NAN, ..BLOCKS }.graph().is_err());
    }
}
