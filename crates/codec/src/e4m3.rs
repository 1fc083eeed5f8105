//! Numbers of one byte: four bits of exponent, three digits.

use crate::choice::{Entry, without_parameter};
use crate::coded::Coded;
use crate::float8::Float8;

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "e4m3",
    usage: "e4m3",
    summary: "floating-point numbers of one byte, 132 bytes per 128 elements",
    examples: &["e4m3"],
    parse: |parameter| without_parameter("e4m3", parameter, Coded(Float8::<3>)),
};
