//! Two bits per element and one unit per 128: 2.25 bits.
//!
//! The values are ±1/2 and ±3/2 of 1.25 times the mean magnitude of the block. The codec error of
//! normal values is 0.12, as with the best four values (Lloyd, "Least squares quantization in PCM",
//! table 1; Max, "Quantizing for minimum distortion").

use crate::choice::{Entry, without_parameter};
use crate::kernel::Int2;
use crate::signs::SignCodec;

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "int2",
    usage: "int2",
    summary: "4 levels, 36 bytes per 128 elements",
    examples: &["int2"],
    parse: |parameter| without_parameter("int2", parameter, SignCodec::<Int2>::new(contraction)),
};

/// Returns a lower bound on the part of the squared length that is sent of a block of `n` elements.
///
/// Let the mean magnitude be 1. Of `y²` with a magnitude `y` the convex `g(y) = max(5/4 y - 25/64, 15/4 y - 225/64)` is sent. In
/// the mean over the block that is at least `g(1) = 55/64`, and the mean of `y²` is at most `n`.
/// From four elements on there is more: `g(y) - δ y² >= 25/64 (y - 1)` from 0 to `n` with the `δ`
/// below. One nonzero element attains this ratio, so no larger bound holds.
fn contraction(n: usize) -> f64 {
    let n = n.max(1) as f64;
    if n < 4.0 { 55.0 / 64.0 / n } else { (215.0 / 64.0 - 25.0 / 8.0 / n) / n }
}
