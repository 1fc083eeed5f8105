//! The first eight bytes of a connection, in clear.
//!
//! Magic, protocol version, flags, two zero bytes. They come before the handshake so that two
//! versions can tell each other apart; the handshake covers them, so nobody can change them.

use thinwire_wire::{MAGIC, VERSION};

use crate::{Error, Kind};

/// The length of a preamble in bytes.
pub const PREAMBLE_BYTES: usize = 8;

const ENCRYPT: u8 = 1 << 0;

/// Protocol version and flags of one side, sent in clear before the side is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// Whether the side wants the traffic after the handshake to be encrypted.
    pub encrypt: bool,
}

impl Preamble {
    /// Returns the preamble as it is sent.
    pub fn to_bytes(self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = if self.encrypt { ENCRYPT } else { 0 };
        bytes
    }

    /// Reads a preamble. Flags that this version does not know are ignored, since later versions may
    /// have them.
    ///
    /// # Errors
    /// If the other side speaks something else, or another version.
    pub fn parse(bytes: [u8; PREAMBLE_BYTES]) -> Result<Preamble, Error> {
        if bytes[..4] != MAGIC {
            let start = String::from_utf8_lossy(&bytes[..4]).escape_debug().to_string();
            return Err(Error::new(
                Kind::Corrupt,
                format!("does not speak thinwire: it starts with '{start}'"),
            ));
        }
        if bytes[4] != VERSION {
            return Err(Error::new(
                Kind::VersionMismatch,
                format!("speaks protocol version {}, this side speaks version {VERSION}", bytes[4]),
            ));
        }
        Ok(Preamble { encrypt: bytes[5] & ENCRYPT != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preambles_parse_back() {
        for encrypt in [false, true] {
            let preamble = Preamble { encrypt };
            assert_eq!(Preamble::parse(preamble.to_bytes()).unwrap(), preamble);
        }
    }

    #[test]
    fn other_versions_and_protocols_are_told_apart() {
        let mut bytes = Preamble { encrypt: false }.to_bytes();
        bytes[4] = 77;
        let error = Preamble::parse(bytes).unwrap_err();
        assert_eq!(error.kind, Kind::VersionMismatch);
        let expected = format!("speaks protocol version 77, this side speaks version {VERSION}");
        assert_eq!(error.context, expected);
        let error = Preamble::parse(*b"GET / HT").unwrap_err();
        assert_eq!(error.context, "does not speak thinwire: it starts with 'GET '");
    }
}
