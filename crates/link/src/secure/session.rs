//! Records: what the two sides say to each other once they know the same token.
//!
//! A record is two bytes of length, little-endian, and that many bytes of ciphertext, the last 16
//! of which authenticate it. Records are numbered implicitly, so none can be lost, repeated or
//! exchanged. Law: `open(seal(x)) == x` in order, anything else is an error.

use std::fmt;

use crate::{Error, Kind};

/// The longest record in bytes, its length field included.
pub const RECORD_BYTES_MAX: usize = 2 + 65535;
/// The most plaintext of one record in bytes.
pub const RECORD_PLAIN_BYTES_MAX: usize = 65535 - SEAL_BYTES;
const SEAL_BYTES: usize = 16;

/// The keys of one connection.
pub struct Session {
    noise: snow::TransportState,
}

impl Session {
    pub(super) fn new(noise: snow::TransportState) -> Session {
        Session { noise }
    }

    /// Appends `plain` to `output` as one record.
    ///
    /// # Panics
    /// If `plain` is longer than [`RECORD_PLAIN_BYTES_MAX`].
    pub fn seal(&mut self, plain: &[u8], output: &mut Vec<u8>) {
        let start = output.len();
        output.resize(start + 2 + plain.len() + SEAL_BYTES, 0);
        self.seal_into(plain, &mut output[start..]);
    }

    /// Writes `plain` to the front of `output` as one record; gives its length.
    ///
    /// # Panics
    /// If `plain` is longer than [`RECORD_PLAIN_BYTES_MAX`], or `output` too short.
    pub fn seal_into(&mut self, plain: &[u8], output: &mut [u8]) -> usize {
        let length = plain.len() + SEAL_BYTES;
        let prefix = u16::try_from(length).expect("a record's plaintext is bounded");
        output[..2].copy_from_slice(&prefix.to_le_bytes());
        let sealed = self.noise.write_message(plain, &mut output[2..2 + length]);
        assert_eq!(sealed.expect("2^64 records are never sent"), length);
        2 + length
    }

    /// Opens the ciphertext of one record into `plain`; its length is [`Session::plain_len`].
    ///
    /// # Errors
    /// If this is not what the other side sealed.
    pub fn open(&mut self, sealed: &[u8], plain: &mut [u8]) -> Result<(), Error> {
        let opened = self.noise.read_message(sealed, plain);
        match opened {
            Ok(length) if length == plain.len() => Ok(()),
            _ => Err(Error::new(Kind::Corrupt, "sent a record that does not authenticate")),
        }
    }

    /// How much plaintext a ciphertext of `length` bytes holds.
    ///
    /// # Errors
    /// If it is too short for a record.
    pub fn plain_len(length: usize) -> Result<usize, Error> {
        length.checked_sub(SEAL_BYTES).ok_or_else(|| {
            Error::new(
                Kind::Corrupt,
                format!("sent a record of {length} bytes, shorter than its seal"),
            )
        })
    }

    /// Takes one whole record off the front of `input`, if there is one.
    ///
    /// # Errors
    /// If it does not authenticate, or is longer than `limit`.
    pub fn receive(&mut self, input: &mut Vec<u8>, limit: usize) -> Result<Option<Vec<u8>>, Error> {
        let Some(sealed) = take_record(input, limit + SEAL_BYTES)? else { return Ok(None) };
        let mut plain = vec![0; Session::plain_len(sealed.len())?];
        self.open(&sealed, &mut plain)?;
        Ok(Some(plain))
    }
}

/// Takes a length and that many bytes off the front of `input`, if they are there.
///
/// # Errors
/// If the length exceeds `limit`.
pub fn take_record(input: &mut Vec<u8>, limit: usize) -> Result<Option<Vec<u8>>, Error> {
    let Some(prefix) = input.first_chunk::<2>() else { return Ok(None) };
    let length = usize::from(u16::from_le_bytes(*prefix));
    if length > limit {
        let context = format!("announces {length} bytes, at most {limit} are allowed here");
        return Err(Error::new(Kind::Limit, context));
    }
    if input.len() < 2 + length {
        return Ok(None);
    }
    let record = input[2..2 + length].to_vec();
    input.drain(..2 + length);
    Ok(Some(record))
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session(..)")
    }
}
