//! The likeliest class of each image.

use super::GraphModel;
use super::logits::Logits;
use crate::Batch;

impl GraphModel {
    /// Returns how many rows of a batch the model puts in the class that their target names.
    ///
    /// Batch norm takes the statistics of each micro-batch, as in training.
    ///
    /// # Panics
    /// As [`GraphModel::micro_batches`]; or if the batch is text.
    pub fn count_right(&self, values: &[Vec<f32>], batch: &Batch) -> usize {
        let Batch::Images(images) = batch else { panic!("text, expected images") };
        let logits = Logits::new(self, values);
        let likeliest = |row: &[f32]| {
            let better = |best: usize, next: usize| if row[next] > row[best] { next } else { best };
            (0..row.len()).fold(0, better)
        };
        let found = self.micro_batches(batch).into_iter().flat_map(|inputs| {
            let values = logits.of(&inputs);
            let classes = values.rows()[1].max(1);
            values.floats().chunks(classes).map(likeliest).collect::<Vec<_>>()
        });
        found.zip(images.labels()).filter(|(found, label)| *found == *label as usize).count()
    }
}
