//! Files of graphs, which ranks map into memory and share.
//!
//! A file has a header of fixed size and then whole arrays, in the order of `layout.rs`: the topology, and
//! rows of features, labels, a split, the bounds of parts, weights of edges and types of vertices where the graph has them. All numbers are
//! little-endian, and every array begins at a multiple of 64 bytes. Opening reads the topology once, to
//! check it, and no features; pages are shared by all processes that open the file.

mod layout;
mod map;
mod open;
mod split;
mod write;

pub use layout::{FeatureRows, TYPES_MAX};
pub use open::{NO_LABEL, Store};
pub use split::Split;
pub use write::{Contents, Features, write};
