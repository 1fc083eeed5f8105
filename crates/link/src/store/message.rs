//! Requests and replies between clients and the server of a store.
//!
//! Laws: `parse(to_bytes(x)) == x`, and any bytes give an error or a request within limits.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thinwire_wire::{decode, encode, raw};

use crate::store::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::{Error, Kind};

/// The longest message in bytes: value, key and the numbers around them.
pub const MESSAGE_BYTES_MAX: usize = VALUE_BYTES_MAX + KEY_BYTES_MAX + 8;
/// Smallest first byte of other nodes' messages on the same port; messages of a store begin with a
/// smaller byte.
pub const KINDS_END: u8 = 16;
/// The longest wait that a client may ask for.
pub const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Write a value.
    Set {
        /// The key.
        key: String,
        /// The value.
        #[serde(with = "raw")]
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
    /// Returns the request as it is sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a request.
    ///
    /// # Errors
    /// If the bytes are not a request, or its key or its value is too long.
    pub fn parse(bytes: &[u8]) -> Result<Request, Error> {
        let invalid = |why| Error::new(Kind::Corrupt, format!("sent a request to a store: {why}"));
        let mut request = decode(bytes).map_err(|error| invalid(error.to_string()))?;
        let (key, value_bytes) = match &mut request {
            Request::Set { key, value } => (key, value.len()),
            Request::Get { key, wait } => {
                *wait = WAIT_MAX.min(*wait);
                (key, 0)
            }
        };
        for (what, found, max) in
            [("key", key.len(), KEY_BYTES_MAX), ("value", value_bytes, VALUE_BYTES_MAX)]
        {
            if found > max {
                return Err(invalid(format!("{what} of {found} bytes, at most {max} allowed")));
            }
        }
        Ok(request)
    }
}

/// Returns a reply as it is sent: the value, which is empty in the reply to a write, or the kind and the
/// text of an error. The text is cut at the length of the longest value.
pub fn reply_to_bytes(reply: Result<&[u8], &Error>) -> Vec<u8> {
    let cut = |error: &'_ Error| error.context.floor_char_boundary(VALUE_BYTES_MAX);
    encode(&reply.map_err(|error| (error.kind, &error.context[..cut(error)])))
}

/// Reads a reply.
///
/// # Errors
/// The error in the reply, or [`Kind::Corrupt`] if the bytes are not a reply.
pub fn parse_reply(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let reply: Result<Vec<u8>, (Kind, String)> = decode(bytes)
        .map_err(|why| Error::new(Kind::Corrupt, format!("sent a reply of a store: {why}")))?;
    reply.map_err(|(kind, text)| Error::new(kind, text.replace(char::is_control, " ")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thinwire_wire::Rank;

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
            if let Ok(request) = Request::parse(&bytes) {
                prop_assert_eq!(Request::parse(&request.to_bytes()).unwrap(), request);
            }
            let _ = parse_reply(&bytes);
        }
    }

    #[test]
    fn errors_keep_their_kind_and_text() {
        for kind in [Kind::Io, Kind::RankTaken, Kind::Limit, Kind::Poisoned { by: Rank(2) }] {
            let sent = Error::new(kind, "why\u{1b}[2J");
            let error = parse_reply(&reply_to_bytes(Err(&sent))).unwrap_err();
            assert_eq!((error.kind, error.context.as_str()), (kind, "why [2J"));
        }
        assert_eq!(parse_reply(&reply_to_bytes(Ok(b"value"))).unwrap(), b"value");
    }

    #[test]
    fn the_longest_messages_fit_and_longer_ones_name_both_lengths() {
        let set = |key: usize, value: usize| {
            let (key, value) = ("k".repeat(key), vec![1; value]);
            Request::Set { key, value }
        };
        let bytes = set(KEY_BYTES_MAX, VALUE_BYTES_MAX).to_bytes();
        assert!(bytes.len() <= MESSAGE_BYTES_MAX && Request::parse(&bytes).is_ok());
        let said = |request: Request| Request::parse(&request.to_bytes()).unwrap_err().to_string();
        let refused = "sent a request to a store: key of 201 bytes, at most 200 allowed";
        assert_eq!(said(set(201, 0)), refused);
        assert_eq!(said(Request::Get { key: "k".repeat(201), wait: Duration::ZERO }), refused);
        let refused = "sent a request to a store: value of 16385 bytes, at most 16384 allowed";
        assert_eq!(said(set(1, VALUE_BYTES_MAX + 1)), refused);
        let text = Error::new(Kind::Io, "\u{e9}".repeat(VALUE_BYTES_MAX));
        assert!(reply_to_bytes(Err(&text)).len() <= MESSAGE_BYTES_MAX);
        let long = Request::Get { key: "k".to_owned(), wait: 2 * WAIT_MAX }.to_bytes();
        let clamped = Request::Get { key: "k".to_owned(), wait: WAIT_MAX };
        assert_eq!(Request::parse(&long).unwrap(), clamped);
    }
}
