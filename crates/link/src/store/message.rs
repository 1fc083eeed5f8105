//! Requests and replies between clients and the server of a store, one record each.
//!
//! Request: operation (1 set, 2 get), length of the key, key; then the value, or how many
//! milliseconds to wait as four bytes, little-endian. Reply: 0 and the value, or the code of an
//! error and its text. Law: `parse(to_bytes(x)) == x`, and any bytes give an error or a request
//! within limits.

use std::time::Duration;

use crate::store::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::{Error, Kind};

/// The longest message in bytes.
pub const MESSAGE_BYTES_MAX: usize = 2 + KEY_BYTES_MAX + VALUE_BYTES_MAX;
/// The first byte of a message from which on it is none of a store's, but of another service on the
/// same port.
pub const KINDS_END: u8 = 16;
/// The longest wait that a client may ask for.
pub const WAIT_MAX: Duration = Duration::from_secs(3600);

/// The sorts of error that travel, in the order of their codes from 1.
const KINDS: [Kind; 7] = [
    Kind::Io,
    Kind::RankTaken,
    Kind::Timeout,
    Kind::Limit,
    Kind::Invalid,
    Kind::TokenMismatch,
    Kind::VersionMismatch,
];

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Write a value.
    Set {
        /// The key.
        key: String,
        /// The value.
        value: Vec<u8>,
    },
    /// Wait for a value.
    Get {
        /// The key.
        key: String,
        /// The longest time to wait, at most `WAIT_MAX`.
        wait: Duration,
    },
}

impl Request {
    /// The request as it travels.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (operation, key) = match self {
            Request::Set { key, .. } => (1, key),
            Request::Get { key, .. } => (2, key),
        };
        let mut bytes = vec![operation, u8::try_from(key.len()).expect("keys were checked")];
        bytes.extend_from_slice(key.as_bytes());
        match self {
            Request::Set { value, .. } => bytes.extend_from_slice(value),
            Request::Get { wait, .. } => {
                let wait_ms = u32::try_from(wait.min(&WAIT_MAX).as_millis()).expect("an hour");
                bytes.extend_from_slice(&wait_ms.to_le_bytes());
            }
        }
        bytes
    }

    /// Reads a request.
    ///
    /// # Errors
    /// If this is no request.
    pub fn parse(bytes: &[u8]) -> Result<Request, Error> {
        let invalid = || Error::new(Kind::Corrupt, "sent what is no request to a store");
        let (&[operation, key_len], rest) = bytes.split_first_chunk().ok_or_else(invalid)?;
        let (key, rest) = rest.split_at_checked(usize::from(key_len)).ok_or_else(invalid)?;
        let key = String::from_utf8(key.to_vec()).map_err(|_| invalid())?;
        match operation {
            1 => Ok(Request::Set { key, value: rest.to_vec() }),
            2 => {
                let wait_ms = u32::from_le_bytes(rest.try_into().map_err(|_| invalid())?);
                let wait = Duration::from_millis(u64::from(wait_ms)).min(WAIT_MAX);
                Ok(Request::Get { key, wait })
            }
            _ => Err(invalid()),
        }
    }
}

/// A reply as it travels.
pub fn reply_to_bytes(reply: Result<&[u8], &Error>) -> Vec<u8> {
    let (code, body) = match reply {
        Ok(value) => (0, value),
        Err(error) => {
            let kind = KINDS.iter().position(|kind| *kind == error.kind).unwrap_or(0);
            (kind as u8 + 1, error.context.as_bytes())
        }
    };
    let body = &body[..body.len().min(VALUE_BYTES_MAX)];
    [&[code], body].concat()
}

/// Reads a reply.
///
/// # Errors
/// The one that the reply carries, or that it is no reply.
pub fn parse_reply(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    match bytes.split_first() {
        Some((0, value)) => Ok(value.to_vec()),
        Some((code, text)) => {
            let kind = KINDS.get(usize::from(*code) - 1).copied().unwrap_or(Kind::Io);
            let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
            Err(Error::new(kind, text))
        }
        None => Err(Error::new(Kind::Corrupt, "sent an empty reply")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn requests_parse_back(key in "[a-z/]{0,200}", value: Vec<u8>, wait_ms in 0u64..3_600_000) {
            let wait = Duration::from_millis(wait_ms);
            for request in [Request::Set { key: key.clone(), value }, Request::Get { key, wait }] {
                prop_assert_eq!(Request::parse(&request.to_bytes()).unwrap(), request);
            }
        }

        #[test]
        fn any_bytes_are_a_request_or_an_error(bytes: Vec<u8>) {
            let _ = Request::parse(&bytes);
            let _ = parse_reply(&bytes);
        }
    }

    #[test]
    fn errors_keep_their_kind_and_text() {
        for kind in KINDS {
            let sent = Error::new(kind, "why\u{1b}[2J");
            let error = parse_reply(&reply_to_bytes(Err(&sent))).unwrap_err();
            assert_eq!((error.kind, error.context.as_str()), (kind, "why [2J"));
        }
        assert_eq!(parse_reply(&reply_to_bytes(Ok(b"value"))).unwrap(), b"value");
    }
}
