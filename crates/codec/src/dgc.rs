//! Largest of the elements that reach a sampled threshold.
//!
//! Lin et al., "Deep gradient compression: Reducing the communication bandwidth for distributed
//! training" (2017, section 3.1 and appendix C): if more elements reach the threshold than are sent,
//! the largest are taken. Momentum correction is not part of a codec.

use crate::choice::Entry;
use crate::crowd::Crowd;
use crate::sampled;

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "dgc",
    usage: "dgc:RATIO",
    summary: "the largest of what a sampled threshold lets through, RATIO of all",
    examples: &["dgc:0.01", "dgc:0.25"],
    parse: |parameter| sampled::parse("dgc", parameter, Crowd::Largest),
};
