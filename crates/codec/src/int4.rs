//! Half a byte per element and one scale per 128: 4.25 bits, errors of at most 1/14 of the largest.

use crate::choice::Entry;
use crate::ints;

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "int4",
    usage: "int4[:stochastic]",
    summary: "15 levels, 68 bytes per 128 elements",
    examples: &["int4", "int4:stochastic"],
    parse: ints::parse::<4>,
};
