//! Rounding of gradients to the formats of their tables.
//!
//! Under `async` and `bounded`, pushes are rounded stochastically, which is unbiased. Under `sync`, pushes of
//! all rows of a shard have error feedback (Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech
//! 2014), and pushes of some rows are rounded stochastically. Random numbers are counter-based: a repeated
//! push has the same bytes. Law of error feedback: sent + residual = gradient + previous residual.

use std::collections::BTreeMap;

use thinwire_member::Id;
use thinwire_rows::Format;
use thinwire_wire::random::Key;

use crate::values::Values;
use crate::write::Part;

/// Rule by which a part of a push is rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Format of the table.
    pub format: Format,
    /// Values per row.
    pub width: usize,
    /// Whether the rounding error is added to the next push.
    pub feeds_back: bool,
}

/// Rounding of a worker's pushes, with its residuals.
#[derive(Debug)]
pub struct Rounding {
    seed: u64,
    /// Residuals, by shard and table.
    residuals: BTreeMap<(u32, u32), Vec<f32>>,
}

impl Rounding {
    /// Creates a rounding without residuals. The rounding errors of two clients are independent.
    pub fn new(client: Id) -> Rounding {
        Rounding { seed: client.0, residuals: BTreeMap::new() }
    }

    /// Rounds a part of push `number` to a shard. The values must be finite and within the format's range.
    pub fn round(&mut self, shard: u32, number: u64, rule: Rule, part: &mut Part) {
        if rule.format == Format::F32 {
            return;
        }
        let values = std::mem::replace(&mut part.gradient, Vec::new().into());
        let values = values.into_f32(part.rows.len());
        let mut bytes = vec![0; part.rows.len() * rule.format.width(rule.width)];
        if rule.feeds_back {
            let residual = self.residuals.entry((shard, part.table)).or_default();
            residual.resize(values.len(), 0.0);
            feed_back(rule, values, residual, &mut bytes);
        } else {
            let key = Key { seed: self.seed, step: number, tensor: part.table };
            unbiased(rule, key, &part.rows, &values, &mut bytes);
        }
        let rounded = Values::from_bytes(rule.format, &bytes);
        part.gradient = rounded.expect("rows have a whole number of items");
    }
}

/// Writes the rounded sum of gradient and residual to `bytes`, and the rounding error to `residual`.
fn feed_back(rule: Rule, mut values: Vec<f32>, residual: &mut [f32], bytes: &mut [u8]) {
    let Rule { format, width, .. } = rule;
    values.iter_mut().zip(&*residual).for_each(|(value, lost)| *value += lost);
    let rows = bytes.chunks_exact_mut(format.width(width)).zip(values.chunks_exact_mut(width));
    for ((row, values), residual) in rows.zip(residual.chunks_exact_mut(width)) {
        residual.copy_from_slice(values);
        // Together with the residual a value may exceed the format; what is cut off stays in the residual.
        let most = format.max();
        values.iter_mut().for_each(|value| *value = value.clamp(-most, most));
        format.encode(values, row);
        format.decode(row, width, values);
        residual.iter_mut().zip(&*values).for_each(|(whole, sent)| *whole -= sent);
    }
}

fn unbiased(rule: Rule, key: Key, rows: &[u64], values: &[f32], bytes: &mut [u8]) {
    let Rule { format, width, .. } = rule;
    let encoded = bytes.chunks_exact_mut(format.width(width)).zip(values.chunks_exact(width));
    for (row, (bytes, values)) in rows.iter().zip(encoded) {
        format.encode_unbiased(values, key, row * width as u64, bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WIDTH: usize = 3;

    /// Returns the values of a push as the server decodes them.
    fn sent(rounding: &mut Rounding, number: u64, rule: Rule, values: &[f32]) -> Vec<f32> {
        let rows: Vec<u64> = (0..(values.len() / WIDTH) as u64).collect();
        let count = rows.len();
        let mut part = Part { table: 0, rows, gradient: values.to_vec().into() };
        rounding.round(2, number, rule, &mut part);
        assert_eq!(part.gradient.format(), rule.format);
        part.gradient.into_f32(count)
    }

    fn rule(format: Format, feeds_back: bool) -> Rule {
        Rule { format, width: WIDTH, feeds_back }
    }

    proptest! {
        #[test]
        fn what_a_push_loses_comes_with_the_next_ones(
            pushes in prop::collection::vec(prop::collection::vec(-1.0_f32..1.0, 6), 1..30)
        ) {
            for format in Format::ALL {
                let mut rounding = Rounding::new(Id(5));
                let (mut given, mut arrived) = (vec![0.0; 6], vec![0.0; 6]);
                for (number, values) in (1..).zip(&pushes) {
                    let sent = sent(&mut rounding, number, rule(format, true), values);
                    given.iter_mut().zip(values).for_each(|(sum, x)| *sum += f64::from(*x));
                    arrived.iter_mut().zip(sent).for_each(|(sum, x)| *sum += f64::from(x));
                }
                // The sums differ by one rounding error, however many pushes were made.
                for (given, arrived) in given.iter().zip(arrived) {
                    prop_assert!((given - arrived).abs() <= 1.1 / 127.0, "{}: {} {}", format, given, arrived);
                }
            }
        }
    }

    #[test]
    fn without_feedback_sums_are_right_on_average() {
        let (values, count) = ([0.3, -0.011, 0.5, 0.07, 0.2, -0.123], 4000);
        for format in [Format::F16, Format::Int8] {
            let (mut one, mut other) = (Rounding::new(Id(5)), Rounding::new(Id(6)));
            let (mut sums, mut products) = ([0.0; 6], 0.0);
            for number in 0..count {
                let a = sent(&mut one, number, rule(format, false), &values);
                let b = sent(&mut other, number, rule(format, false), &values);
                sums.iter_mut().zip(&a).for_each(|(sum, x)| *sum += f64::from(*x));
                products += f64::from((a[1] - values[1]) * (b[1] - values[1]));
            }
            for (sum, value) in sums.iter().zip(values) {
                let error = (sum / count as f64 - f64::from(value)).abs();
                assert!(error < 1.5e-4, "{format}: {error}");
            }
            assert!((products / count as f64).abs() < 1e-6, "{format}: errors of two workers");
        }
    }
}
