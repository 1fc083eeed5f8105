//! IEEE 754 binary16, rounded to nearest, ties to even; above 65504 a step is not finite.

use crate::cast::CastCodec;
use crate::choice::{Entry, without_parameter};
use crate::kernel::F16;

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "f16",
    usage: "f16",
    summary: "IEEE half precision, 2 bytes per element",
    examples: &["f16"],
    parse: |parameter| without_parameter("f16", parameter, CastCodec(F16)),
};
