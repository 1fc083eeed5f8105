//! Quartiles of some measurements: they tell a change from noise.

/// Median and quartiles.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Quartiles {
    pub(crate) lower: f64,
    pub(crate) median: f64,
    pub(crate) upper: f64,
}

impl Quartiles {
    /// Of `values`, which are left sorted; zero if there are none.
    pub(crate) fn of(values: &mut [f64]) -> Quartiles {
        values.sort_by(f64::total_cmp);
        let at = |part: usize| values.get(values.len() * part / 4).copied().unwrap_or(0.0);
        Quartiles { lower: at(1), median: at(2), upper: at(3) }
    }

    /// Whether these are larger than `others`, `times` over, and by more than both scatter.
    pub(crate) fn exceeds(&self, others: &Quartiles, times: f64) -> bool {
        self.median > others.median * times && self.lower > others.upper
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_does_not_exceed() {
        let spread = |values: &[f64]| Quartiles::of(&mut values.to_vec());
        let quiet = spread(&[1.0, 1.01, 1.02, 0.99, 0.98, 1.0, 1.0, 1.01]);
        let slower = spread(&[1.1, 1.12, 1.09, 1.1, 1.1, 1.11, 1.1, 1.1]);
        let noisy = spread(&[1.1, 0.9, 1.3, 1.0, 1.5, 0.8, 1.2, 1.0]);
        assert!(slower.exceeds(&quiet, 1.05) && !quiet.exceeds(&slower, 1.05));
        assert!(!noisy.exceeds(&quiet, 1.05) && !slower.exceeds(&quiet, 1.2));
        assert_eq!(spread(&[]), Quartiles::default());
    }
}
