//! Updates of the rows of a table that have a gradient.
//!
//! Every row counts its own updates, and its count is the number of the step. Bias corrections therefore
//! do not depend on when other rows were touched or on the server that a row lies on, and a table whose
//! rows all have a gradient in each step is updated as one dense tensor.

use crate::{Optimizer, Step};

/// Rows with their state and the number of their updates.
#[derive(Debug)]
pub struct Rows<'a> {
    /// Values per row.
    pub width: usize,
    /// Values, row by row.
    pub values: &'a mut [f32],
    /// State, row by row: [`Rule::slots`](crate::Rule::slots) times as long as `values`.
    pub state: &'a mut [f32],
    /// Number of updates of each row.
    pub updates: &'a mut [u32],
}

impl Optimizer {
    /// Updates the rows at `places`; `gradient` has a row for each place. A place that occurs twice is
    /// updated twice.
    ///
    /// # Panics
    /// If a place is beyond the rows or a length does not fit.
    pub fn update_rows(&self, rows: &mut Rows<'_>, places: &[u32], gradient: &[f32]) {
        let (width, slots) = (rows.width, self.rule.slots() * rows.width);
        assert_eq!(gradient.len(), places.len() * width, "gradient of another length");
        for (at, place) in places.iter().map(|place| *place as usize).enumerate() {
            rows.updates[place] = rows.updates[place].saturating_add(1);
            let step = Step {
                number: u64::from(rows.updates[place]),
                learning_rate: self.learning_rate,
                gradient_scale: 1.0,
            };
            let values = &mut rows.values[place * width..][..width];
            let state = &mut rows.state[place * slots..][..slots];
            self.rule.update(values, &gradient[at * width..][..width], state, step);
        }
    }
}
