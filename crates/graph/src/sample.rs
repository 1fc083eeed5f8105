//! Neighbour sampling: from the vertices of a mini-batch to the blocks on which a graph neural network
//! computes.
//!
//! Hamilton et al., "Inductive Representation Learning on Large Graphs" (NeurIPS 2017, section 3.1). A batch
//! of seeds is expanded hop by hop: every destination draws some of its in-neighbours, which are the
//! destinations of the next hop. Laws:
//!
//! 1. A sample is a pure function of graph, [`Sampling`], seeds and [`Key`](thinwire_wire::random::Key), so it
//!    is the same on every rank and for any number of threads.
//! 2. Without replacement, the number of a destination's edges is the smaller of its degree and its
//!    fan-out. The edges are all different, and every such set is equally likely.
//! 3. Vertices are numbered by their first occurrence, seeds first. So the destinations of every hop are
//!    a range of one list, and the sources begin with the destinations.

mod block;
mod draw;
mod numbering;
mod sampler;
mod stream;
mod weights;

pub use block::{Block, Sample};
pub use draw::{Draw, FanOut, Frontier, Sampling};
pub use sampler::Sampler;
pub use weights::Weights;
pub(crate) use weights::is_weight;
