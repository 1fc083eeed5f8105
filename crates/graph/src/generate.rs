//! Generators of graphs.
//!
//! Every edge is a pure function of the seed and its number, so a graph is the same for any number of
//! threads.

mod attachment;
mod blocks;
mod rmat;

pub use attachment::barabasi_albert;
pub use blocks::Blocks;
pub use rmat::Rmat;

use thinwire_wire::random::Key;

/// Returns a number in `[0, 1)` with 53 random bits; `draw` numbers the draws of a key.
fn uniform(key: Key, draw: u64) -> f64 {
    let [low, high, ..] = key.words(draw);
    ((u64::from(low) | u64::from(high) << 32) >> 11) as f64 / (1_u64 << 53) as f64
}
