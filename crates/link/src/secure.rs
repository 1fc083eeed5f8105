//! Proof of the job token, and encryption.
//!
//! Every connection, between ranks and to stores, begins the same way: with a [`preamble`] in clear,
//! then a Noise handshake (`NNpsk0`, Perrin's "The Noise Protocol Framework", section 9), whose
//! pre-shared key is made of the job's [`Token`]. Nothing else that an unauthenticated peer sends is
//! parsed. There is no I/O here, only bytes in and bytes out.

mod handshake;
mod preamble;
mod session;
mod token;

#[cfg(test)]
pub(crate) use handshake::tests;
pub use handshake::{Handshake, Role};
pub use preamble::{PREAMBLE_BYTES, Preamble};
pub use session::{RECORD_BYTES_MAX, RECORD_PLAIN_BYTES_MAX, Session, take_record};
pub use token::Token;
