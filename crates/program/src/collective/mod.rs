//! Collectives of a program: their schedules, and the encodings of their values.

mod phase;
mod rearrange;
mod transfer;
mod transport;

pub use phase::{Phase, summation};
pub use rearrange::Rearrange;
pub use transfer::{ENCODED, Encoding, Length, RAW, Transfer};
pub use transport::{Transport, outermost};
