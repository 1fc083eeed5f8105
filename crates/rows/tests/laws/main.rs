//! Laws of the cache, held for every policy over random traces.

mod answers;
mod bounds;
mod cases;
mod references;
mod staleness;
