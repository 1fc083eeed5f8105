//! Two bits per element and one unit per 128: 2.25 bits.
//!
//! The values are ±1/2 and ±3/2 of 1.25 times the mean magnitude of the block. The codec error of
//! normal values is 0.12, as with the best four values (Lloyd, "Least squares quantization in PCM",
//! table 1; Max, "Quantizing for minimum distortion").

use crate::choice::{Entry, without_parameter};
use crate::coded::Coded;
use crate::signs::Signs;

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "int2",
    usage: "int2",
    summary: "4 levels, 36 bytes per 128 elements",
    examples: &["int2"],
    parse: |parameter| without_parameter("int2", parameter, Coded(Signs::<2>)),
};
