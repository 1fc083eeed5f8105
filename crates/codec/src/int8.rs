//! One byte per element and one scale per 256: 8.125 bits, errors of at most 1/254 of the largest.

use crate::choice::Entry;
use crate::ints;

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "int8",
    usage: "int8[:stochastic]",
    summary: "255 levels, 260 bytes per 256 elements",
    examples: &["int8", "int8:stochastic"],
    parse: ints::parse::<8>,
};
