//! The hello: the first record after the handshake, which says what a connection is for.
//!
//! Hello, 16 bytes, little-endian: rank, world size, epoch (4 bytes each), channel (0 control,
//! 1.. data) and number of data connections (2 each). The answer is one byte, 0 for welcome, else
//! the code of a refusal, and a text.

use thinwire_wire::{Rank, WORLD_SIZE_MAX};

use crate::tcp::options::CONNECTIONS_MAX;
use crate::{Error, Kind};

/// The longest record of this connection in bytes.
pub const HELLO_BYTES_MAX: usize = 512;

/// The refusals that travel, in the order of their codes from 1.
const REFUSALS: [Kind; 3] = [Kind::Invalid, Kind::WorldMismatch, Kind::RankTaken];

/// The channel of heartbeats, goodbyes and poison, which data never holds up.
pub const CONTROL: u16 = 0;

/// The rank that connects, and the channel that it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The rank that connects.
    pub rank: Rank,
    /// World size that the connecting rank believes in.
    pub size: u32,
    /// The life of the group that it is in.
    pub epoch: u32,
    /// Channel of this connection: 0 for control, n for the n-th share of the data.
    pub channel: u16,
    /// Number of data connections that the rank makes.
    pub connections: u16,
}

impl Hello {
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.rank.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.channel.to_le_bytes());
        bytes[14..].copy_from_slice(&self.connections.to_le_bytes());
        bytes
    }

    /// # Errors
    /// If this is no hello, or its numbers cannot be.
    pub fn parse(bytes: &[u8]) -> Result<Hello, Error> {
        let invalid = || Error::new(Kind::Corrupt, "sent what is no hello");
        let bytes: &[u8; 16] = bytes.try_into().map_err(|_| invalid())?;
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("inside"));
        let half = |at: usize| u16::from_le_bytes(*bytes[at..].first_chunk().expect("inside"));
        let (rank, size, epoch) = (Rank(word(0)), word(4), word(8));
        let (channel, connections) = (half(12), half(14));
        let possible = rank.0 < size
            && size <= WORLD_SIZE_MAX
            && (1..=CONNECTIONS_MAX).contains(&connections)
            && channel <= connections;
        if possible {
            Ok(Hello { rank, size, epoch, channel, connections })
        } else {
            Err(invalid())
        }
    }
}

/// The answer to a hello as it travels.
pub fn verdict_to_bytes(verdict: &Result<(), Error>) -> Vec<u8> {
    match verdict {
        Ok(()) => vec![0],
        Err(error) => {
            let code = REFUSALS.iter().position(|kind| *kind == error.kind).unwrap_or(0);
            let text = error.context.as_bytes();
            let text = &text[..text.len().min(HELLO_BYTES_MAX - 1)];
            [&[code as u8 + 1], text].concat()
        }
    }
}

/// # Errors
/// The refusal, or that this is no answer.
pub fn parse_verdict(bytes: &[u8]) -> Result<(), Error> {
    match bytes.split_first() {
        Some((0, [])) => Ok(()),
        Some((code @ 1..=3, text)) => {
            let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
            Err(Error::new(REFUSALS[usize::from(*code) - 1], text))
        }
        _ => Err(Error::new(Kind::Corrupt, "sent what is no answer to a hello")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hellos_parse_back(rank in 0u32..8, epoch: u32, channel in 0u16..=4) {
            let hello = Hello { rank: Rank(rank), size: 8, epoch, channel, connections: 4 };
            prop_assert_eq!(Hello::parse(&hello.to_bytes()).unwrap(), hello);
        }

        #[test]
        fn any_bytes_are_a_possible_hello_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            if let Ok(hello) = Hello::parse(&bytes) {
                prop_assert!(hello.rank.0 < hello.size && hello.channel <= hello.connections);
            }
            let _ = parse_verdict(&bytes);
        }
    }

    #[test]
    fn refusals_keep_their_sort_and_text() {
        for kind in REFUSALS {
            let error =
                parse_verdict(&verdict_to_bytes(&Err(Error::new(kind, "why")))).unwrap_err();
            assert_eq!((error.kind, error.context.as_str()), (kind, "why"));
        }
        assert!(parse_verdict(&verdict_to_bytes(&Ok(()))).is_ok());
    }
}
