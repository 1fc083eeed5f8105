//! No compression: f32 as they are, little-endian; decoding gives back the same bits.

use crate::cast::CastCodec;
use crate::choice::{Entry, without_parameter};
use crate::kernel::F32;

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "none",
    usage: "none",
    summary: "f32 as they are, 4 bytes per element",
    examples: &["none"],
    parse: |parameter| without_parameter("none", parameter, CastCodec(F32)),
};
