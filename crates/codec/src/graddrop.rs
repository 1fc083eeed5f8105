//! What a sampled threshold lets through.
//!
//! Aji and Heafield, "Sparse communication for distributed gradient descent" (2017, section 3). Of
//! more elements than there are places, those from a random one on are sent.

use crate::choice::Entry;
use crate::crowd::Crowd;
use crate::sampled;

/// The line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "graddrop",
    usage: "graddrop:RATIO",
    summary: "what a sampled threshold lets through, RATIO of all",
    examples: &["graddrop:0.01", "graddrop:0.25"],
    parse: |parameter| sampled::parse("graddrop", parameter, Crowd::First),
};
