//! The choice of a codec, an algorithm and a number of partitions for every bucket, by a cost model of
//! measured links, codecs and gradients, and by trials of real steps.

pub(crate) mod agree;
pub(crate) mod backward;
pub(crate) mod candidates;
pub(crate) mod choose;
pub(crate) mod explain;
pub(crate) mod plan;
pub(crate) mod planner;
pub(crate) mod timeline;
pub(crate) mod trial;
pub(crate) mod trials;
pub(crate) mod watch;
