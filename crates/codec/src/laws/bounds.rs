//! Laws of the codec error.

use thinwire_wire::random::Key;

use super::inputs::{KEY, decode, encode, extreme, lengths, ordinary, round_trip};
use crate::codec_error::{squared_distance, squared_length};
use crate::{Bound, Codec, Finite};

/// Checks that [`Bound::Contraction`] holds for every input, and that with [`Bound::Mean`] no error is
/// longer than the input.
pub fn the_residual_is_as_much_shorter_as_the_codec_declares(codec: &dyn Codec) {
    for length in lengths(codec) {
        let declared = match codec.bound(length) {
            Bound::Contraction(declared) => declared,
            Bound::Mean(_) => 0.0,
            _ => continue,
        };
        assert!(
            (0.0..=1.0).contains(&declared),
            "{codec}: claims a contraction of {declared} for {length} elements, expected 0 to 1"
        );
        let ordinary = ordinary(length).into_iter().map(|input| (declared, input));
        // Tiny values may be sent as zero.
        let extreme = extreme(length).into_iter().map(|input| (0.0, input));
        for (contraction, (name, values)) in ordinary.chain(extreme) {
            let (bytes, finite) = encode(codec, &values, KEY);
            if finite == Finite::No {
                continue;
            }
            let error = squared_distance(&decode(codec, &bytes, length), &values);
            let whole = squared_length(&values);
            // Scales have 17 digits.
            let most = (1.0 - contraction) * whole * (1.0 + 1e-4) + whole * 1e-9;
            assert!(
                error <= most,
                "{codec}: claims a contraction of {contraction:.4}, but for {length} {name} \
                 values it is {:.4}",
                1.0 - error / whole
            );
        }
    }
}

/// Checks that [`Bound::Variance`] and [`Bound::Mean`] hold for the mean over many seeds.
pub fn the_mean_error_is_as_small_as_the_codec_declares(codec: &dyn Codec) {
    const SEEDS: u64 = 200;
    for length in [1, 9, 65, 300, 1009] {
        let most = match codec.bound(length) {
            Bound::Variance(variance) => variance,
            Bound::Mean(declared) => 1.0 - declared,
            _ => continue,
        };
        for (name, values) in ordinary(length) {
            let errors: Vec<f64> = (0..SEEDS)
                .map(|seed| {
                    squared_distance(&round_trip(codec, &values, Key { seed, ..KEY }), &values)
                })
                .collect();
            let (whole, seeds) = (squared_length(&values), SEEDS as f64);
            let mean = errors.iter().sum::<f64>() / seeds;
            let deviation = match codec.bound(length) {
                // Errors between 0 and `whole` vary most where only these two occur.
                Bound::Mean(_) => whole * (most * (1.0 - most) / seeds).sqrt(),
                _ => errors.iter().map(|x| (x - mean).powi(2)).sum::<f64>().sqrt() / seeds,
            };
            // Scales have 17 digits.
            let limit = most * whole * (1.0 + 1e-4) + whole * 1e-9 + 5.0 * deviation;
            assert!(
                mean <= limit,
                "{codec}: claims a squared error of {most:.4} of the squared length in the mean, \
                 but for {length} {name} values it is {:.4}",
                mean / whole
            );
        }
    }
}

/// Checks, if the codec claims to round to nearest, that every value becomes the nearest of all values in
/// its decoded block. Truncation fails this law.
pub fn rounding_is_to_the_nearest(codec: &dyn Codec) {
    if !codec.claims().nearest {
        return;
    }
    for (name, values) in ordinary(codec.block().max(64)) {
        let decoded = round_trip(codec, &values, KEY);
        for (x, own) in values.iter().zip(&decoded) {
            let best = decoded.iter().map(|other| (x - other).abs()).fold(f32::MAX, f32::min);
            assert!(
                (x - own).abs() <= best * 1.001,
                "{codec}: claims to round to nearest, but for {name} values {x} became {own}, though \
                 another value of its block is nearer by {:e}",
                (x - own).abs() - best
            );
        }
    }
}
