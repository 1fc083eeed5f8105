//! Counts: how many batches of passes sampled in advance use each vertex.

/// Weight of the inclusion probability, in uses of a vertex.
const PRIOR_USES: f64 = 4.0;

/// How many batches use each vertex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    counts: Vec<u32>,
    batches: u64,
}

impl Counts {
    /// Creates counts of no batch for the vertices `0..vertices`.
    pub fn new(vertices: u32) -> Counts {
        Counts { counts: vec![0; vertices as usize], batches: 0 }
    }

    /// Counts a batch, which has each of its vertices once.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn add(&mut self, vertices: &[u32]) {
        vertices.iter().for_each(|vertex| self.counts[*vertex as usize] += 1);
        self.batches += 1;
    }

    /// Adds the counts of other batches.
    ///
    /// # Panics
    /// If they have another number of vertices.
    pub fn merge(&mut self, other: &Counts) {
        assert_eq!(self.counts.len(), other.counts.len(), "vertices of the counts");
        let pairs = self.counts.iter_mut().zip(&other.counts);
        pairs.for_each(|(count, other)| *count += other);
        self.batches += other.batches;
    }

    /// Returns the number of batches that used each vertex.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Returns the number of counted batches.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Returns the counts as scores of an [`Order`](super::Order).
    pub fn scores(&self) -> Vec<f64> {
        self.counts.iter().map(|count| f64::from(*count)).collect()
    }
}

/// Returns scores from counts and from [`inclusion`](super::inclusion) probabilities: expected uses per batch.
///
/// The rate at which batches use a vertex has a gamma distribution, whose mean is the probability before
/// anything is counted, with the weight of four uses; the score is its mean afterwards. With few counted
/// batches the probabilities decide, with many the counts.
///
/// # Panics
/// If the lengths differ.
pub fn blend(counts: &Counts, inclusion: &[f64]) -> Vec<f64> {
    assert_eq!(counts.counts.len(), inclusion.len(), "vertices of the counts");
    let batches = counts.batches as f64;
    let pairs = counts.counts.iter().zip(inclusion);
    let mean = |uses, chance| (uses + PRIOR_USES) / (batches + PRIOR_USES / chance);
    pairs.map(|(count, chance)| mean(f64::from(*count), chance)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_outweigh_probabilities_as_they_grow() {
        let chances = [0.5, 0.01, 0.0, 0.3];
        let mut counts = Counts::new(4);
        assert_eq!(blend(&counts, &chances), chances, "nothing is counted");
        counts.add(&[1]);
        let few = blend(&counts, &chances);
        assert!(few[0] > few[1] && few[1] > 0.01);
        (0..99).for_each(|_| counts.add(&[1]));
        let many = blend(&counts, &chances);
        assert!(many[1] > many[0] && many[0] > many[3] && many[3] > many[2]);
        assert_eq!(many[2], 0.0);
    }
}
