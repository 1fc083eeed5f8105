//! Laws of parts and sums.

use super::inputs::{KEY, encode, ordinary, round_trip};
use crate::{Codec, Exchange};

/// Checks that the encodings of a tensor's parts make up the encoding of the tensor, if the codec claims
/// so.
pub fn ranges_that_begin_at_a_block_are_encoded_alone(codec: &dyn Codec) {
    if !codec.claims().separable {
        return;
    }
    for (name, values) in ordinary(5 * codec.block() + 77) {
        let (first, second) = values.split_at(2 * codec.block());
        let (mut parts, _) = encode(codec, first, KEY);
        parts.extend(encode(codec, second, KEY).0);
        assert!(
            parts == encode(codec, &values, KEY).0,
            "{codec}: encodes two ranges of {name} values differently than the whole"
        );
    }
}

/// Checks, for [`Exchange::Summable`] and one key, that the sum of two inputs decodes to the sum of their
/// decoded values, and a doubled input to the doubled values.
pub fn summable_codecs_are_linear_but_for_rounding(codec: &dyn Codec) {
    if codec.exchange() != Exchange::Summable {
        return;
    }
    for (name, x) in ordinary(1009) {
        for (other, y) in ordinary(1009) {
            let sum: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
            let all = [&x, &y, &sum].map(|values| round_trip(codec, values, KEY));
            for at in 0..sum.len() {
                let error = (all[0][at] + all[1][at] - all[2][at]).abs();
                let most = (x[at].abs() + y[at].abs()) / 128.0;
                assert!(
                    error <= most,
                    "{codec}: claims that encodings can be summed, but for {name} and {other} values \
                     the sum of element {at} is off by {error:e}, expected at most {most:e}"
                );
            }
        }
        let twice: Vec<f32> = x.iter().map(|x| x * 2.0).collect();
        let decoded = round_trip(codec, &x, KEY);
        let decoded: Vec<u32> = decoded.iter().map(|x| (x * 2.0).to_bits()).collect();
        let found = round_trip(codec, &twice, KEY);
        let found: Vec<u32> = found.iter().map(|x| x.to_bits()).collect();
        assert!(
            found == decoded,
            "{codec}: claims that encodings can be summed, but doubled {name} values do not decode \
             to doubled decoded values"
        );
    }
}
