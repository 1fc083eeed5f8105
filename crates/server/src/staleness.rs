//! Histogram of staleness: how many steps a worker was ahead of the slowest when its pull was answered.

/// Staleness in steps from which on all answers share one count.
pub const STALENESS_MAX: usize = 16;

/// Number of answers to a worker, by staleness in steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Staleness {
    counts: [u64; STALENESS_MAX + 1],
}

impl Staleness {
    pub(crate) fn record(&mut self, steps: u64) {
        self.counts[steps.min(STALENESS_MAX as u64) as usize] += 1;
    }

    /// Returns the number of answers with a staleness of 0, 1, ... steps; the last count is for
    /// [`STALENESS_MAX`] and more.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_count_has_no_upper_end() {
        let mut staleness = Staleness::default();
        [0, 0, 3, 16, 1 << 40].into_iter().for_each(|steps| staleness.record(steps));
        let counts = staleness.counts();
        assert_eq!((counts[0], counts[3], counts[STALENESS_MAX]), (2, 1, 2));
        assert_eq!(counts.iter().sum::<u64>(), 5);
    }
}
