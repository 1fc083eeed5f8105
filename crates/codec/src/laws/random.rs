//! Laws of random rounding.

use thinwire_wire::random::Key;

use super::inputs::{KEY, normal, ordinary, round_trip};
use crate::codec_error::squared_distance;
use crate::{Bound, Codec};

/// Largest error of a mean, in standard errors.
const SURE: f64 = 5.0;

/// Returns whether a codec claims to be unbiased over random numbers.
fn is_unbiased(codec: &dyn Codec) -> bool {
    matches!(codec.bound(1), Bound::Variance(_))
}

/// Checks that decoded values, averaged over seeds, are the original ones, for every element and for the
/// sum of all.
pub fn random_rounding_is_right_in_the_mean(codec: &dyn Codec) {
    let (rounds, length) = (3000, 300);
    for (name, values) in ordinary(length).into_iter().filter(|_| is_unbiased(codec)) {
        let (mut sum, mut squares) = (vec![0.0f64; length], vec![0.0f64; length]);
        let mut largest = 0.0f64;
        for seed in 0..rounds {
            let decoded = round_trip(codec, &values, Key { seed, ..KEY });
            for at in 0..length {
                let error = f64::from(decoded[at]) - f64::from(values[at]);
                sum[at] += error;
                squares[at] += error * error;
                largest = largest.max(error.abs());
            }
        }
        // Scales have 17 digits; and of a rare event there may be none, or one too many.
        let digits = |x: &f32| 1e-5 * f64::from(x.abs()) * rounds as f64;
        let rest: Vec<f64> = values.iter().map(|x| digits(x) + largest).collect();
        for at in 0..length {
            let z = sum[at].abs() / (squares[at].sqrt() + rest[at] + f64::MIN_POSITIVE);
            assert!(
                z < SURE,
                "{codec}: claims to be unbiased, but the mean of {rounds} encodings differs from \
                 element {at} of {length} {name} values by {z:.1} standard errors (at most {SURE} \
                 expected)"
            );
        }
        let deviation = squares.iter().sum::<f64>().sqrt() + rest.iter().sum::<f64>();
        let z = sum.iter().sum::<f64>().abs() / deviation;
        assert!(
            z < SURE,
            "{codec}: claims to be unbiased, but the mean of {rounds} encodings differs from the sum \
             of {length} {name} values by {z:.1} standard errors (at most {SURE} expected)"
        );
    }
}

/// Checks that the mean of 16 encodings has a sixteenth of the squared error of one encoding, as with
/// independent random numbers.
pub fn ranks_steps_and_tensors_round_independently(codec: &dyn Codec) {
    let length = 4096;
    let values = normal(length);
    let keys: [fn(u32) -> Key; 4] = [
        |rank| KEY.for_rank(rank),
        |step| Key { step: u64::from(step), ..KEY },
        |tensor| Key { tensor, ..KEY },
        |seed| Key { seed: u64::from(seed), ..KEY },
    ];
    for key in keys.into_iter().filter(|_| is_unbiased(codec)) {
        let (mut mean, mut alone) = (vec![0.0; length], 0.0);
        for rank in 0..16 {
            let decoded = round_trip(codec, &values, key(rank));
            alone += squared_distance(&decoded, &values) / 16.0;
            mean.iter_mut().zip(&decoded).for_each(|(sum, x)| *sum += x / 16.0);
        }
        let gain = alone / squared_distance(&mean, &values);
        assert!(
            (12.0..21.0).contains(&gain),
            "{codec}: the mean of 16 encodings is off by 1/{gain:.1} of the squared error of one, \
             expected 1/16: their random numbers are not independent"
        );
    }
}

/// Checks that the errors of neighbouring elements, of groups and of blocks are not correlated.
pub fn elements_round_independently(codec: &dyn Codec) {
    if !is_unbiased(codec) {
        return;
    }
    let mut values = vec![0.123_45f32; 8192];
    values.iter_mut().step_by(codec.block()).for_each(|x| *x = 1.0);
    let decoded = round_trip(codec, &values, KEY);
    let error = |at: usize| f64::from(decoded[at]) - f64::from(values[at]);
    for distance in [1, 2, 3, 4, 8, 16, 17, 32, 64, 128, 256, 512] {
        let (mut product, mut square) = (0.0, 0.0);
        for at in 0..values.len() - distance {
            product += error(at) * error(at + distance);
            square += error(at) * error(at);
        }
        let correlation = product / square;
        // Rounding up and down are not equally likely, but the mean error is zero.
        assert!(
            correlation.abs() < SURE / 90.0,
            "{codec}: errors of elements {distance} apart are correlated by {correlation:.3}, \
             expected at most {:.3}",
            SURE / 90.0
        );
    }
}
