//! Measurements by all ranks together: what links and codecs can do.

pub(crate) mod codecs;
pub(crate) mod link;
pub(crate) mod median;
pub(crate) mod pairs;
pub(crate) mod processor;
pub(crate) mod samples;
pub(crate) mod units;
