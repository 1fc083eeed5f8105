//! Rearrangements of a rank's values before and after a schedule.

use std::ops::Range;

use thinwire_model::Reduction;

/// A rearrangement of values.
#[derive(Clone, Debug, PartialEq)]
pub enum Rearrange {
    /// `[outer, parts, inner]` becomes `[parts, outer, inner]`.
    Split {
        /// The number of elements before the dimension.
        outer: usize,
        /// The number of parts of the dimension.
        parts: usize,
    },
    /// `[parts, outer, inner]` becomes `[outer, parts, inner]`.
    Join {
        /// The number of elements before the dimension.
        outer: usize,
        /// The number of parts of the dimension.
        parts: usize,
    },
    /// Only these elements are kept.
    Take(Range<usize>),
    /// All elements are moved into a larger buffer.
    Place {
        /// The index at which the elements begin in the buffer.
        start: usize,
        /// The length of the buffer.
        length: usize,
        /// The value of all other elements.
        rest: f32,
    },
    /// Elements are copied to a position after them.
    Copy {
        /// The elements to copy.
        from: Range<usize>,
        /// The index at which the copy begins.
        to: usize,
    },
    /// Equal parts are combined into one.
    Fold {
        /// The number of parts.
        parts: usize,
        /// The reduction that combines the parts.
        reduction: Reduction,
    },
}

impl Rearrange {
    /// Returns the rearranged values.
    pub fn apply(&self, values: Vec<f32>) -> Vec<f32> {
        match self {
            Rearrange::Split { outer, parts } => swap(values, *outer, *parts),
            Rearrange::Join { outer, parts } => swap(values, *parts, *outer),
            Rearrange::Take(range) => values[range.clone()].to_vec(),
            Rearrange::Place { start, length, rest } => {
                let mut all = vec![*rest; *length];
                all[*start..start + values.len()].copy_from_slice(&values);
                all
            }
            Rearrange::Copy { from, to } => {
                let mut values = values;
                values.copy_within(from.clone(), *to);
                values
            }
            Rearrange::Fold { parts, reduction } => fold(&values, *parts, *reduction),
        }
    }
}

/// Turns `[a, b, rest]` into `[b, a, rest]`.
fn swap(values: Vec<f32>, a: usize, b: usize) -> Vec<f32> {
    if a == 1 || b == 1 || values.is_empty() {
        return values;
    }
    let rest = values.len() / (a * b);
    let mut swapped = Vec::with_capacity(values.len());
    for j in 0..b {
        for i in 0..a {
            swapped.extend_from_slice(&values[(i * b + j) * rest..][..rest]);
        }
    }
    swapped
}

fn fold(values: &[f32], parts: usize, reduction: Reduction) -> Vec<f32> {
    let length = values.len() / parts;
    let combined = |place: usize| {
        let parts = (0..parts).map(|part| f64::from(values[part * length + place]));
        parts.fold(reduction.identity(), |a, b| reduction.combine(a, b)) as f32
    };
    (0..length).map(combined).collect()
}
