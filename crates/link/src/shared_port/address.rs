//! The name of a listener behind a shared port, as it is sent and as it is published.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use thinwire_wire::VERSION;

use crate::{Error, Kind};

/// The length of a key in bytes.
const KEY_BYTES: usize = 16;
/// The length of a preface in bytes: magic, version, three zero bytes, and the key.
pub const PREFACE_BYTES: usize = 8 + KEY_BYTES;
/// The first bytes of a preface, which no preamble of a handshake has.
const MAGIC: [u8; 4] = *b"TWPT";
/// The answer to a preface whose listener has taken the connection.
pub const WELCOME: u8 = 0;
/// The answer to a preface whose listener is not behind this port.
pub const REFUSED: u8 = 1;
/// The answer to a preface of another version: this bit, and the version of the port in the others.
const OTHER_VERSION: u8 = 1 << 7;

/// The name of a listener behind a port that it shares with others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

impl Key {
    /// Returns a key that no other listener has.
    ///
    /// # Errors
    /// If the system has no random numbers.
    #[cfg(target_os = "linux")]
    pub fn random() -> Result<Key, Error> {
        use ring::rand::{SecureRandom, SystemRandom};
        let mut bytes = [0; KEY_BYTES];
        let filled = SystemRandom::new().fill(&mut bytes);
        filled.map_err(|_| Error::new(Kind::Io, "the system has no random numbers"))?;
        Ok(Key(bytes))
    }

    /// Returns the preface of a connection to the listener with this key.
    pub fn to_preface(self) -> [u8; PREFACE_BYTES] {
        let mut bytes = [0; PREFACE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[8..].copy_from_slice(&self.0);
        bytes
    }

    /// Returns the key in a preface; `None` if the bytes are not a preface of this version.
    pub fn parse_preface(bytes: &[u8; PREFACE_BYTES]) -> Option<Key> {
        let key = *bytes.last_chunk::<KEY_BYTES>().expect("it is shorter");
        let found = Key(key);
        (*bytes == found.to_preface()).then_some(found)
    }

    /// Returns the answer to a preface with this beginning, if it is of another version.
    pub fn refused_version(beginning: &[u8]) -> Option<u8> {
        let (magic, rest) = beginning.split_first_chunk()?;
        let is_other = *magic == MAGIC && rest.first().is_some_and(|version| *version != VERSION);
        is_other.then_some(OTHER_VERSION | VERSION)
    }

    /// Checks the answer to a preface.
    ///
    /// # Errors
    /// [`Kind::VersionMismatch`] if processes of another version share the port. [`Kind::Io`] if it has
    /// no listener with the key: the listener may have moved to another port, or may not be behind this
    /// one yet.
    pub fn check_answer(answer: u8) -> Result<(), Error> {
        match answer {
            WELCOME => Ok(()),
            REFUSED => {
                Err(Error::new(Kind::Io, "no process behind this port has the published key"))
            }
            _ if answer & OTHER_VERSION > 0 => {
                let theirs = answer & !OTHER_VERSION;
                let context =
                    format!("speaks protocol version {theirs}, this side speaks version {VERSION}");
                Err(Error::new(Kind::VersionMismatch, context))
            }
            _ => Err(Error::new(
                Kind::Corrupt,
                "published a shared port, but does not answer as one",
            )),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

impl FromStr for Key {
    type Err = Error;

    fn from_str(text: &str) -> Result<Key, Error> {
        let invalid = || {
            let text = text.escape_debug();
            Error::new(Kind::Invalid, format!("key '{text}', expected 32 hexadecimal digits"))
        };
        let digits =
            text.bytes().map(|byte| char::from(byte).to_digit(16).map(|digit| digit as u8));
        let digits = digits.collect::<Option<Vec<u8>>>().ok_or_else(invalid)?;
        let bytes: Vec<u8> = digits
            .chunks(2)
            .map(|pair| pair.iter().fold(0, |sum, digit| sum << 4 | digit))
            .collect();
        if digits.len() != 2 * KEY_BYTES {
            return Err(invalid());
        }
        Ok(Key(bytes.try_into().map_err(|_| invalid())?))
    }
}

/// The address of a listener: `host:port`, or `host:port#key` if it shares the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address of the port.
    pub socket: SocketAddr,
    /// The name of the listener behind the port, if it shares the port with other listeners.
    pub key: Option<Key>,
}

impl From<SocketAddr> for Address {
    fn from(socket: SocketAddr) -> Address {
        Address { socket, key: None }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key {
            Some(key) => write!(f, "{}#{key}", self.socket),
            None => self.socket.fmt(f),
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address, Error> {
        let (socket, key) = split_key(text)?;
        let invalid = |_| Error::new(Kind::Invalid, format!("address '{}'", text.escape_debug()));
        Ok(Address { socket: socket.parse().map_err(invalid)?, key })
    }
}

/// Splits an address, which may be a name and a port, from the key after `#`, if there is one.
///
/// # Errors
/// If the text after `#` is not a key.
pub fn split_key(address: &str) -> Result<(&str, Option<Key>), Error> {
    match address.split_once('#') {
        Some((address, key)) => Ok((address, Some(key.parse()?))),
        None => Ok((address, None)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn prefaces_and_addresses_parse_back(key: [u8; KEY_BYTES], port: u16, shared: bool) {
            let key = Key(key);
            prop_assert_eq!(Key::parse_preface(&key.to_preface()), Some(key));
            for host in ["127.0.0.1", "[::1]"] {
                let socket = format!("{host}:{port}").parse().unwrap();
                let address = Address { socket, key: shared.then_some(key) };
                prop_assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
            }
        }

        #[test]
        fn any_change_of_the_first_bytes_makes_no_preface(at in 0..8usize, change in 1..=255u8) {
            let mut preface = Key([7; KEY_BYTES]).to_preface();
            preface[at] ^= change;
            prop_assert_eq!(Key::parse_preface(&preface), None);
            // From the byte with the version on, and not before.
            for length in 0..PREFACE_BYTES {
                let answer = Key::refused_version(&preface[..length]);
                prop_assert_eq!(answer.is_some(), at == 4 && length > 4);
            }
        }

        #[test]
        fn any_text_is_an_address_or_an_error(text in "[0-9a-f:.#\\[\\]é]{0,60}") {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
            }
        }
    }

    #[test]
    fn another_version_is_named_with_this_one() {
        let error = Key::check_answer(OTHER_VERSION | 99).unwrap_err();
        let said = format!("speaks protocol version 99, this side speaks version {VERSION}");
        assert_eq!((error.kind, error.context), (Kind::VersionMismatch, said));
        assert_eq!(Key::check_answer(9).unwrap_err().kind, Kind::Corrupt);
    }

    #[test]
    fn what_is_no_key_is_refused_with_the_text() {
        for key in
            ["", "12", "g".repeat(32).as_str(), "0".repeat(31).as_str(), "0".repeat(34).as_str()]
        {
            let error = split_key(&format!("host:1#{key}")).unwrap_err();
            assert_eq!(error.to_string(), format!("key '{key}', expected 32 hexadecimal digits"));
        }
        assert_eq!(split_key("host:1").unwrap(), ("host:1", None));
    }
}
