//! Saved state of a coordinator with servers: three parts in one file, so that they are always consistent.
//!
//! `TWJS`, version, the parts, CRC-32 in four little-endian bytes. Law: `parse(to_bytes(x)) == x`.

use serde::{Deserialize, Serialize};
use thinwire_member::SAVED_BYTES_MAX;
use thinwire_wire::{checksum, decode, encode_after, raw};

use crate::elastic::views::VIEWS_BYTES_MAX;

const MAGIC: [u8; 4] = *b"TWJS";
const VERSION: u8 = 2;
const CHECKSUM_BYTES: usize = 4;

/// Largest number of bytes of the state of a coordinator, with or without servers.
pub const STATE_BYTES_MAX: usize =
    MAGIC.len() + 1 + 3 * 5 + 2 * SAVED_BYTES_MAX + VIEWS_BYTES_MAX + CHECKSUM_BYTES;

/// Parts of the state of a coordinator with servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// Roster of the workers.
    #[serde(with = "raw")]
    pub workers: Vec<u8>,
    /// Roster of the servers.
    #[serde(with = "raw")]
    pub servers: Vec<u8>,
    /// State of the view service.
    #[serde(with = "raw")]
    pub views: Vec<u8>,
}

impl Parts {
    /// Returns whether bytes begin like the state of a coordinator with servers.
    pub fn are_meant(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// Returns the parts as they are saved.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = encode_after([&MAGIC[..], &[VERSION]].concat(), self);
        bytes.extend(checksum(&bytes).to_le_bytes());
        bytes
    }

    /// Reads parts that were saved.
    ///
    /// # Errors
    /// If the bytes were not written by [`Parts::to_bytes`] of this version. The error says why.
    pub fn parse(bytes: &[u8]) -> Result<Parts, String> {
        let found = bytes.len();
        let short = || format!("{found} bytes, expected the whole state of a job with servers");
        let (content, tail) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or_else(short)?;
        let rest = content.strip_prefix(&MAGIC).ok_or_else(short)?;
        let (version, rest) = rest.split_first().ok_or_else(short)?;
        // Before the checksum: another version may compute it over other bytes.
        if *version != VERSION {
            return Err(format!("coordinator state of version {version}, expected {VERSION}"));
        }
        let (found, expected) = (u32::from_le_bytes(*tail), checksum(content));
        if found != expected {
            return Err(format!("state checksum {found:#010x}, expected {expected:#010x}"));
        }
        decode(rest).map_err(|why| why.to_string())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts() -> Parts {
        Parts { workers: vec![1; 50], servers: vec![2; 60], views: b"{}".to_vec() }
    }

    #[test]
    fn any_changed_byte_and_any_cut_is_refused() {
        let saved = parts().to_bytes();
        assert!(Parts::are_meant(&saved) && !Parts::are_meant(b"TWRO"));
        for place in 0..saved.len() {
            let mut bytes = saved.clone();
            bytes[place] ^= 0x10;
            assert!(Parts::parse(&bytes).is_err(), "byte {place}");
            assert!(Parts::parse(&saved[..place]).is_err());
        }
        let mut other = saved;
        other[4] = 9;
        assert_eq!(Parts::parse(&other).unwrap_err(), "coordinator state of version 9, expected 2");
    }

    proptest! {
        #[test]
        fn parts_are_read_back(workers: Vec<u8>, servers: Vec<u8>, views: Vec<u8>) {
            let parts = Parts { workers, servers, views };
            prop_assert_eq!(Parts::parse(&parts.to_bytes()), Ok(parts));
        }

        #[test]
        fn any_fields_are_an_error_or_parts_that_are_read_back(
            fields in prop::collection::vec(0..4_u8, 0..40)
        ) {
            let mut bytes = [&MAGIC[..], &[VERSION], &fields].concat();
            bytes.extend(checksum(&bytes).to_le_bytes());
            if let Ok(parts) = Parts::parse(&bytes) {
                prop_assert_eq!(Parts::parse(&parts.to_bytes()), Ok(parts));
            }
        }
    }
}
