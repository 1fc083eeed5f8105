//! A sketch of a gradient: few enough numbers for ranks to send each other with a step.

use thinwire_wire::random::Key;

/// Steps from one sketch to the next. A sketch costs a pass over the gradients.
const EVERY: u64 = 4;
/// Counters of a sketch.
const COUNTERS: usize = 32;
/// Number of elements for which one block of random bits has signs.
const SIGNED: usize = 128;
/// Elements that are summed as f32 before they are added as f64.
const SPAN: usize = 1 << 12;
/// Seed of the signs, the same in all jobs.
const SEED: u64 = 0x736b_6574;

/// The squared norm of a vector and a linear sketch of it: 32 counters, each the sum of every 32nd
/// element with a random sign (Alon, Matias and Szegedy, "The Space Complexity of Approximating the
/// Frequency Moments"; one sign per element as in Charikar, Chen and Farach-Colton's count sketch).
///
/// The mean of several ranks' sketches is the sketch of the mean of their vectors. The expected sum of
/// the squared counters is the squared norm of that mean, whichever codec the vectors themselves travel
/// with. The relative deviation of one sketch is 25 %. Signs depend on the step, so the deviation
/// averages out over sketches.
///
/// ```
/// use thinwire_policy::Sketch;
///
/// let mut sketch = Sketch::new(7);
/// sketch.add(0, &[3.0, -4.0]);
/// let row = sketch.row();
/// assert_eq!(row[0], 25.0);
/// assert_eq!(Sketch::squared_norm(&row), 25.0);
/// ```
#[derive(Clone, Debug)]
pub struct Sketch {
    step: u64,
    square: f64,
    counters: [f64; COUNTERS],
}

/// Sums over a span, lane by lane.
struct Sums {
    counters: [f32; COUNTERS],
    squares: [f32; COUNTERS],
}

impl Sums {
    /// Adds a row of elements, each with the sign of its bit of a word. Compilers turn masks of
    /// constant bits into vector instructions, but not shifts by another count in each lane.
    fn add(&mut self, row: &[f32; COUNTERS], word: u32) {
        let sums = self.counters.iter_mut().zip(&mut self.squares);
        for (at, (value, (counter, square))) in row.iter().zip(sums).enumerate() {
            let sign = if word & 1 << at == 0 { 0 } else { 1 << 31 };
            *counter += f32::from_bits(value.to_bits() ^ sign);
            *square += value * value;
        }
    }
}

impl Sketch {
    /// Numbers of a row.
    pub const ROW: usize = 1 + COUNTERS;

    /// Returns whether gradients are sketched in a step; the same on all ranks.
    pub fn is_due(step: u64) -> bool {
        step.is_multiple_of(EVERY)
    }

    /// Returns an empty sketch for a step.
    pub fn new(step: u64) -> Sketch {
        Sketch { step, square: 0.0, counters: [0.0; COUNTERS] }
    }

    /// Adds the gradient of the parameter with the number `parameter`; no two parameters have the same
    /// number.
    pub fn add(&mut self, parameter: usize, values: &[f32]) {
        let key = Key { seed: SEED, step: self.step, tensor: parameter as u32 };
        for (span, values) in values.chunks(SPAN).enumerate() {
            let mut sums = Sums { counters: [0.0; COUNTERS], squares: [0.0; COUNTERS] };
            for (block, values) in values.chunks(SIGNED).enumerate() {
                let words = key.words((span * (SPAN / SIGNED) + block) as u64);
                let (rows, rest) = values.as_chunks::<COUNTERS>();
                rows.iter().zip(words).for_each(|(row, word)| sums.add(row, word));
                if !rest.is_empty() {
                    let mut row = [0.0; COUNTERS];
                    row[..rest.len()].copy_from_slice(rest);
                    sums.add(&row, words[rows.len()]);
                }
            }
            let Sums { counters, squares } = sums;
            let sums = self.counters.iter_mut().zip(counters);
            sums.for_each(|(sum, counter)| *sum += f64::from(counter));
            self.square += squares.iter().copied().map(f64::from).sum::<f64>();
        }
    }

    /// Returns the squared norm, then the counters.
    pub fn row(&self) -> [f32; Sketch::ROW] {
        let mut row = [self.square as f32; Sketch::ROW];
        let counters = row[1..].iter_mut().zip(self.counters);
        counters.for_each(|(to, counter)| *to = counter as f32);
        row
    }

    /// Estimates the squared norm from the counters of a row. Over all choices of signs, the expected
    /// estimate is exact.
    pub fn squared_norm(row: &[f32]) -> f64 {
        row[1..].iter().map(|counter| f64::from(*counter).powi(2)).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row_of(step: u64, values: &[f32]) -> [f32; Sketch::ROW] {
        let mut sketch = Sketch::new(step);
        sketch.add(3, values);
        sketch.row()
    }

    proptest! {
        #[test]
        fn the_mean_of_sketches_is_the_sketch_of_the_mean(
            pairs in prop::collection::vec((-8_i8..8, -8_i8..8), 1..600),
        ) {
            let values = |of: fn(&(i8, i8)) -> i8| -> Vec<f32> {
                pairs.iter().map(|pair| f32::from(of(pair))).collect()
            };
            let (one, other) = (values(|pair| pair.0), values(|pair| pair.1));
            let mean: Vec<f32> = one.iter().zip(&other).map(|(a, b)| (a + b) / 2.0).collect();
            let (rows, of_mean) = ([row_of(5, &one), row_of(5, &other)], row_of(5, &mean));
            for at in 1..Sketch::ROW {
                prop_assert_eq!((rows[0][at] + rows[1][at]) / 2.0, of_mean[at]);
            }
        }
    }

    #[test]
    fn the_squared_norm_is_right_on_average_over_steps() {
        let values: Vec<f32> =
            (0..10_000).map(|at| ((at * 37 % 101) as f32 - 50.0) / 7.0).collect();
        let exact: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
        let steps = 400;
        let told = |step| Sketch::squared_norm(&row_of(step, &values));
        let mean = (0..steps).map(told).sum::<f64>() / f64::from(steps as u32);
        // Four standard deviations of the mean of 400 sketches.
        assert!((mean / exact - 1.0).abs() < 4.0 * 0.25 / 20.0, "{mean} {exact}");
        assert!((f64::from(row_of(1, &values)[0]) / exact - 1.0).abs() < 1e-5);
    }
}
