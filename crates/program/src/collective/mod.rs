//! Collectives of a program: which schedules they run, and what travels.

mod phase;
mod rearrange;
mod transfer;
mod transport;

pub use phase::{Phase, summation};
pub use rearrange::Rearrange;
pub use transfer::{ENCODED, Encoding, Length, RAW, Transfer};
pub use transport::{Transport, outermost};
