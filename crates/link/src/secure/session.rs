//! Records: the messages of two sides that know the same token.
//!
//! A record is two bytes of length, little-endian, and that many bytes of ciphertext, the last 16
//! of which authenticate it. Records are numbered implicitly, so none can be lost, repeated or
//! exchanged. Each direction renews its key after [`RECORDS_PER_KEY`] records (Noise, section 11.3),
//! counted on both sides, so a key that leaks opens no earlier traffic and AES-GCM stays far below
//! its limits. Law: `open(seal(x)) == x` in order, anything else is an error.

use crate::{Error, Kind};

/// The longest record in bytes, its length field included.
pub const RECORD_BYTES_MAX: usize = 2 + 65535;
/// The most plaintext of one record in bytes.
pub const RECORD_PLAIN_BYTES_MAX: usize = 65535 - SEAL_BYTES;
const SEAL_BYTES: usize = 16;
/// Records in one direction under one key.
const RECORDS_PER_KEY: u64 = 1 << 20;

/// The keys of one connection.
#[derive(Debug)]
pub struct Session {
    noise: snow::TransportState,
    records_per_key: u64,
}

impl Session {
    pub(super) fn new(noise: snow::TransportState) -> Session {
        Session { noise, records_per_key: RECORDS_PER_KEY }
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

    /// Writes `plain` to the front of `output` as one record; returns the record's length.
    ///
    /// # Panics
    /// If `plain` is longer than [`RECORD_PLAIN_BYTES_MAX`], or `output` too short.
    pub fn seal_into(&mut self, plain: &[u8], output: &mut [u8]) -> usize {
        let length = plain.len() + SEAL_BYTES;
        let prefix = u16::try_from(length).expect("a record's plaintext is bounded");
        output[..2].copy_from_slice(&prefix.to_le_bytes());
        let sealed = self.noise.write_message(plain, &mut output[2..2 + length]);
        assert_eq!(sealed.expect("2^64 records are never sent"), length);
        if self.noise.sending_nonce().is_multiple_of(self.records_per_key) {
            self.noise.rekey_outgoing();
        }
        2 + length
    }

    /// Decrypts the ciphertext of one record into `plain`, whose length must be
    /// [`Session::plain_len`].
    ///
    /// # Errors
    /// If the other side has not sealed this record.
    pub fn open(&mut self, sealed: &[u8], plain: &mut [u8]) -> Result<(), Error> {
        let opened = self.noise.read_message(sealed, plain);
        match opened {
            Ok(length) if length == plain.len() => {
                if self.noise.receiving_nonce().is_multiple_of(self.records_per_key) {
                    self.noise.rekey_incoming();
                }
                Ok(())
            }
            _ => Err(Error::new(Kind::Corrupt, "sent a record that does not authenticate")),
        }
    }

    /// Returns the length of the plaintext in a ciphertext of `length` bytes.
    ///
    /// # Errors
    /// If the ciphertext is too short for a record.
    pub fn plain_len(length: usize) -> Result<usize, Error> {
        length.checked_sub(SEAL_BYTES).ok_or_else(|| {
            Error::new(
                Kind::Corrupt,
                format!("sent a record of {length} bytes, shorter than its seal"),
            )
        })
    }

    /// Removes one whole record from the front of `input` and returns it, if there is one.
    ///
    /// # Errors
    /// If it does not authenticate, or is longer than `limit`.
    pub fn receive(&mut self, input: &mut Vec<u8>, limit: usize) -> Result<Option<Vec<u8>>, Error> {
        let mut plain = Vec::new();
        Ok(self.receive_onto(input, limit, &mut plain)?.map(|_| plain))
    }

    /// Removes one whole record from the front of `input`, if there is one, and appends it to `plain`;
    /// returns its length.
    ///
    /// # Errors
    /// If it does not authenticate, or is longer than `limit`.
    pub fn receive_onto(
        &mut self,
        input: &mut Vec<u8>,
        limit: usize,
        plain: &mut Vec<u8>,
    ) -> Result<Option<usize>, Error> {
        let Some(sealed) = record(input, limit + SEAL_BYTES)? else { return Ok(None) };
        let (start, length) = (plain.len(), Session::plain_len(sealed.len())?);
        plain.resize(start + length, 0);
        self.open(sealed, &mut plain[start..])?;
        let taken = 2 + sealed.len();
        input.drain(..taken);
        Ok(Some(length))
    }
}

/// Removes a length and that many bytes from the front of `input` and returns them, if they are there.
///
/// # Errors
/// If the length exceeds `limit`.
pub fn take_record(input: &mut Vec<u8>, limit: usize) -> Result<Option<Vec<u8>>, Error> {
    let Some(record) = record(input, limit)?.map(<[u8]>::to_vec) else { return Ok(None) };
    input.drain(..2 + record.len());
    Ok(Some(record))
}

/// Returns the bytes behind the length at the front of `input`, if they are there.
fn record(input: &[u8], limit: usize) -> Result<Option<&[u8]>, Error> {
    let Some(prefix) = input.first_chunk::<2>() else { return Ok(None) };
    let length = usize::from(u16::from_le_bytes(*prefix));
    if length > limit {
        return Err(Error::new(
            Kind::Limit,
            format!("announces {length} bytes, at most {limit} are allowed here"),
        ));
    }
    Ok(input.get(2..2 + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends of a connection whose keys last for `mine` and `theirs` records.
    fn pair(mine: u64, theirs: u64) -> (Session, Session) {
        let (a, b) = crate::secure::handshake::tests::pair("t", "t");
        let [a, b] = [a, b].map(|end| end.unwrap().unwrap().0);
        (Session { records_per_key: mine, ..a }, Session { records_per_key: theirs, ..b })
    }

    /// The first record from `from` that `to` does not open, of twenty.
    fn first_unopened(from: &mut Session, to: &mut Session) -> Option<u8> {
        (0..20).find(|number| {
            let mut wire = Vec::new();
            from.seal(&[*number], &mut wire);
            to.receive(&mut wire, 1).ok().flatten() != Some(vec![*number])
        })
    }

    #[test]
    fn renewed_keys_open_what_was_sealed_in_both_directions() {
        let (mut a, mut b) = pair(4, 4);
        assert_eq!(first_unopened(&mut a, &mut b), None);
        assert_eq!(first_unopened(&mut b, &mut a), None);
        assert_eq!(first_unopened(&mut a, &mut b), None);
    }

    #[test]
    fn the_key_that_sealed_a_record_opens_none_after_the_renewal() {
        let (mut renews, mut stays) = pair(4, u64::MAX);
        assert_eq!(first_unopened(&mut renews, &mut stays), Some(4));
        let (mut renews, mut stays) = pair(4, u64::MAX);
        assert_eq!(first_unopened(&mut stays, &mut renews), Some(4));
        assert_eq!(Session::new(renews.noise).records_per_key, 1 << 20);
    }
}
