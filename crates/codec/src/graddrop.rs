//! Elements that reach a sampled threshold.
//!
//! Aji and Heafield, "Sparse communication for distributed gradient descent" (2017, section 3). If
//! more elements reach the threshold than are sent, they are taken from a random position on.

use crate::choice::Entry;
use crate::crowd::Crowd;
use crate::sampled;

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "graddrop",
    usage: "graddrop:RATIO",
    summary: "what a sampled threshold lets through, RATIO of all",
    examples: &["graddrop:0.01", "graddrop:0.25"],
    parse: |parameter| sampled::parse("graddrop", parameter, Crowd::First),
};
