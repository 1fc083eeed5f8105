//! One bit per element and one mean magnitude per 128: 1.25 bits.
//!
//! Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed
//! training of speech DNNs" (2014), with the scale of Karimireddy et al., "Error feedback fixes SignSGD
//! and other gradient compression schemes", section 4. Zero counts as positive, and a block of zeros
//! is decoded to zeros.

use crate::choice::{Entry, without_parameter};
use crate::coded::Coded;
use crate::signs::Signs;

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "onebit",
    usage: "onebit",
    summary: "the sign and a mean magnitude, 20 bytes per 128 elements",
    examples: &["onebit"],
    parse: |parameter| without_parameter("onebit", parameter, Coded(Signs::<1>)),
};
