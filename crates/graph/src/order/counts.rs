//! Counts: how many batches of passes sampled in advance use each vertex.

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

/// Returns scores from counts and from [`inclusion`](super::inclusion) probabilities: the mean number of uses
/// per batch, given that `strength` batches with the expected number of uses had been counted before.
///
/// With few counted batches the probabilities decide, with many the counts.
///
/// # Panics
/// If the lengths differ.
pub fn blend(counts: &Counts, inclusion: &[f64]) -> Vec<f64> {
    assert_eq!(counts.counts.len(), inclusion.len(), "vertices of the counts");
    let batches = counts.batches as f64;
    let score = |(count, chance): (&u32, &f64)| {
        (f64::from(*count) + 0.5).ln() + (chance * batches).ln()
    };
    counts.counts.iter().zip(inclusion).map(score).collect()
}
