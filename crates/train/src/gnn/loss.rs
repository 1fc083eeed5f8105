//! Cross-entropy of the outputs of seeds, and the number of right predictions.

use std::ops::AddAssign;

use super::matrix::Matrix;

/// Sums over seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Sum of the cross-entropies, in nats.
    pub loss: f64,
    /// Number of seeds whose largest output is the output of their label.
    pub right: u64,
    /// Number of seeds.
    pub seeds: u64,
}

impl Figures {
    /// Returns the mean loss; NaN without seeds.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.seeds as f64
    }

    /// Returns the share of seeds that are predicted correctly; NaN without seeds.
    pub fn accuracy(&self) -> f64 {
        self.right as f64 / self.seeds as f64
    }

    /// Returns the figures as numbers that f32 can represent exactly: the loss, and each count in two halves.
    pub(super) fn to_row(self) -> [f32; 5] {
        let high = |count: u64| (count >> 20) as f32;
        let low = |count: u64| (count & 0xf_ffff) as f32;
        [self.loss as f32, high(self.right), low(self.right), high(self.seeds), low(self.seeds)]
    }

    /// Returns the figures of such a row.
    pub(super) fn from_row([loss, right, right_low, seeds, seeds_low]: [f32; 5]) -> Figures {
        let count = |high: f32, low: f32| ((high as u64) << 20) + low as u64;
        let (right, seeds) = (count(right, right_low), count(seeds, seeds_low));
        Figures { loss: f64::from(loss), right, seeds }
    }
}

impl AddAssign for Figures {
    fn add_assign(&mut self, other: Figures) {
        self.loss += other.loss;
        self.right += other.right;
        self.seeds += other.seeds;
    }
}

/// Replaces outputs by the gradient of their mean loss: `(softmax - label) / seeds`.
///
/// # Panics
/// If the numbers of labels and rows differ, or a label is not a column.
pub fn cross_entropy(outputs: &mut Matrix, labels: &[u32]) -> Figures {
    assert_eq!(outputs.rows(), labels.len(), "labels of the outputs");
    let mut figures = Figures::default();
    for (row, label) in labels.iter().map(|label| *label as usize).enumerate() {
        let row = outputs.row_mut(row);
        let largest = row.iter().copied().fold(f32::MIN, f32::max);
        // A row that is not finite has no place at which the maximum is.
        let place = row.iter().position(|value| *value == largest);
        let chosen = row[label] - largest;
        row.iter_mut().for_each(|value| *value = (*value - largest).exp());
        let total: f32 = row.iter().sum();
        row.iter_mut().for_each(|value| *value /= total * labels.len() as f32);
        row[label] -= 1.0 / labels.len() as f32;
        let loss = f64::from(total.ln() - chosen);
        figures += Figures { loss, right: u64::from(place == Some(label)), seeds: 1 };
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_f32_does_not_hold_travel_whole() {
        for right in [0, 1, (1 << 20) - 1, 1 << 20, (1 << 24) + 1, (1 << 32) - 1] {
            let figures = Figures { loss: 1.5, right, seeds: right + 3 };
            assert_eq!(Figures::from_row(figures.to_row()), figures);
        }
    }

    #[test]
    fn equal_outputs_lose_the_logarithm_of_the_classes() {
        let mut outputs = Matrix::new(4, vec![2.0; 8]);
        let figures = cross_entropy(&mut outputs, &[0, 3]);
        assert!((figures.mean_loss() - 4.0_f64.ln()).abs() < 1e-6);
        assert_eq!((figures.right, figures.accuracy()), (1, 0.5));
        assert_eq!(outputs.row(1), [0.125, 0.125, 0.125, -0.375]);
    }
}
