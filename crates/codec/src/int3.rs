//! Three bits per element and one scale per 128: 3.25 bits, off by at most 1/6 of the largest.

use crate::choice::Entry;
use crate::ints;

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "int3",
    usage: "int3[:stochastic]",
    summary: "7 levels, 52 bytes per 128 elements",
    examples: &["int3", "int3:stochastic"],
    parse: ints::parse::<3>,
};
