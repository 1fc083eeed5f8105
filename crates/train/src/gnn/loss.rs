//! Cross-entropy of the outputs of seeds, and how many of them are right.

use std::ops::AddAssign;

use super::matrix::Matrix;

/// Figures of seeds, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Sum of the cross-entropies, in nats.
    pub loss: f64,
    /// Seeds whose largest output is that of their label.
    pub right: u64,
    /// Seeds.
    pub seeds: u64,
}

impl Figures {
    /// Returns the mean loss; not a number without seeds.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.seeds as f64
    }

    /// Returns the share of seeds that are right; not a number without seeds.
    pub fn accuracy(&self) -> f64 {
        self.right as f64 / self.seeds as f64
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
/// If there are not as many labels as rows, or a label is no column.
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
