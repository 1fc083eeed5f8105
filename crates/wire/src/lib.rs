//! Vocabulary of messages between ranks.
//!
//! A [`Rank`] in a [`World`] sends a frame, a [`Header`] and its payload, under a [`Tag`] that names
//! the step, the tensor and the message. No I/O, no threads, no clock.
//!
//! ```
//! use thinwire_wire::{Header, Kind, Tag, HEADER_BYTES};
//!
//! let tag = Tag { step: 7, tensor: 2, message: 5 };
//! let bytes = Header::new(Kind::Data, 0, tag, 1024).to_bytes();
//! assert_eq!(bytes.len(), HEADER_BYTES);
//! assert_eq!(Header::parse(&bytes).unwrap().tag, tag);
//! ```
#![forbid(unsafe_code)]

// Here, since cargo then compiles none of the crates that fail there in many lines.
#[cfg(windows)]
compile_error!("thinwire does not run on Windows itself: install it in WSL2");

mod dtype;
mod encoding;
mod header;
mod hint;
pub mod random;
mod rank;

pub use dtype::{DType, UnknownDType};
pub use encoding::{
    Malformed, TEXT_BYTES_MAX, cut_text, decode, decode_head, encode, encode_after, fingerprint,
    raw,
};
pub use header::{
    HEADER_BYTES, Header, HeaderError, Kind, MAGIC, PAYLOAD_BYTES_MAX, Tag, VERSION, checksum,
    checksum_of_parts,
};
pub use hint::Hint;
pub use rank::{Exchange, InvalidWorld, Rank, WORLD_SIZE_MAX, World};
