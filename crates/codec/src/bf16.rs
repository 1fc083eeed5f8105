//! The upper half of an f32, rounded to nearest, ties to even.

use crate::cast::CastCodec;
use crate::choice::{Entry, without_parameter};
use crate::kernel::BF16;

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "bf16",
    usage: "bf16",
    summary: "the upper half of an f32, 2 bytes per element",
    examples: &["bf16"],
    parse: |parameter| without_parameter("bf16", parameter, CastCodec(BF16)),
};
