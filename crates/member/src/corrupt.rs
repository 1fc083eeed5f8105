//! Reasons why bytes are not a saved state of a coordinator or a message.

use thinwire_wire::{Malformed, WORLD_SIZE_MAX};

use crate::epoch::NUMBER_MAX;

/// Reason why bytes are not a saved state of a coordinator or a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// More bytes, or fewer, than a state or a message can have.
    #[error("{found} bytes, expected a whole state or message of at most {max}")]
    Length {
        /// Number of bytes.
        found: usize,
        /// Largest number of bytes.
        max: usize,
    },
    /// Bytes that do not encode a message or a state.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// First bytes that do not mark a saved state.
    #[error("no coordinator state, expected it to start with 'TWRO'")]
    Magic,
    /// Version that this build does not read.
    #[error("coordinator state of version {found}, expected {expected}")]
    Version {
        /// Version of the bytes.
        found: u8,
        /// Version of this build.
        expected: u8,
    },
    /// Checksum that does not match the bytes.
    #[error("coordinator state checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// Checksum that the state contains.
        found: u32,
        /// Checksum of the state's bytes.
        expected: u32,
    },
    /// Number that no epoch can have.
    #[error("epoch number {found}, expected at most {NUMBER_MAX}")]
    Number {
        /// The number.
        found: u32,
    },
    /// More members than an epoch can have.
    #[error("{found} members, expected at most {WORLD_SIZE_MAX}")]
    Members {
        /// Number of members.
        found: usize,
    },
    /// Epoch with number 0, without members, with a repeated member, with more state sources than members, or
    /// with steps but no state source.
    #[error(
        "epoch {number} is not sound: number 0, no members, a repeated one, more holders than members, or \
         steps without a holder"
    )]
    Epoch {
        /// Number of the epoch.
        number: u32,
    },
}
