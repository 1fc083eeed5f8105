//! Numbers of one byte: five bits of exponent, two digits.

use crate::choice::{Entry, without_parameter};
use crate::coded::Coded;
use crate::float8::Float8;

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "e5m2",
    usage: "e5m2",
    summary: "floating-point numbers of one byte, 132 bytes per 128 elements",
    examples: &["e5m2"],
    parse: |parameter| without_parameter("e5m2", parameter, Coded(Float8::<2>)),
};
