//! Reasons why bytes are no saved state of a coordinator, or no message.

use std::fmt;

use thinwire_wire::{Malformed, WORLD_SIZE_MAX};

use crate::epoch::NUMBER_MAX;

/// Reason why bytes are no saved state of a coordinator, or no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Corrupt {
    /// Fewer or more bytes than a state or a message can have.
    Length {
        /// Number of bytes.
        found: usize,
        /// Most bytes.
        max: usize,
    },
    /// Bytes that encode no message or no state.
    Malformed(Malformed),
    /// First bytes that are not those of a saved state.
    Magic,
    /// Version that this build does not read.
    Version {
        /// Version of the bytes.
        found: u8,
        /// Version of this build.
        expected: u8,
    },
    /// Checksum that does not match the bytes.
    Checksum {
        /// Checksum that the state carries.
        found: u32,
        /// Checksum of its bytes.
        expected: u32,
    },
    /// Number that no epoch can have.
    Number {
        /// The number.
        found: u32,
    },
    /// More members than an epoch can have.
    Members {
        /// Number of members.
        found: usize,
    },
    /// Epoch with number 0, without members, with one named twice, with more holders than members, or with
    /// steps but no holder.
    Epoch {
        /// Number of the epoch.
        number: u32,
    },
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Corrupt::Length { found, max } => {
                write!(f, "{found} bytes, expected a whole state or message of at most {max}")
            }
            Corrupt::Malformed(why) => why.fmt(f),
            Corrupt::Magic => write!(f, "no coordinator state, expected it to start with 'TWRO'"),
            Corrupt::Version { found, expected } => {
                write!(f, "coordinator state of version {found}, expected {expected}")
            }
            Corrupt::Checksum { found, expected } => {
                write!(f, "coordinator state checksum {found:#010x}, expected {expected:#010x}")
            }
            Corrupt::Number { found } => {
                write!(f, "epoch number {found}, expected at most {NUMBER_MAX}")
            }
            Corrupt::Members { found } => {
                write!(f, "{found} members, expected at most {WORLD_SIZE_MAX}")
            }
            Corrupt::Epoch { number } => {
                write!(
                    f,
                    "epoch {number} is not sound: number 0, no members, a repeated one, more holders than \
                     members, or steps without a holder"
                )
            }
        }
    }
}

impl std::error::Error for Corrupt {}

impl From<Malformed> for Corrupt {
    fn from(why: Malformed) -> Corrupt {
        Corrupt::Malformed(why)
    }
}
