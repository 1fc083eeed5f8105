//! Frame header, which precedes every payload, and the tag in it, the address of a message.
//!
//! A header is 40 bytes, little-endian; docs/wire.md describes it field by field.
//! Law: `parse(to_bytes(h)) == h`, and any 40 bytes either parse to a header whose length is
//! within the limit or give an error; nothing is allocated.

use std::fmt;

use crate::DType;

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"TWIR";

/// Version of the wire protocol that this build speaks.
pub const VERSION: u8 = 6;

/// Length of a header in bytes.
pub const HEADER_BYTES: usize = 40;

/// Largest payload of one frame in bytes; larger tensors travel in several messages.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 30;

const NONFINITE: u8 = 1 << 0;
const CHECKED: u8 = 1 << 1;
const FLAGS: u8 = NONFINITE | CHECKED;

/// Purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Message of a schedule.
    Data,
    /// Report that the sender has failed or has lost a peer. It ends the group; the payload is the
    /// reason in UTF-8.
    Poison,
    /// Orderly departure: the sender sends nothing more.
    Bye,
    /// Heartbeat of a sender that has nothing to send.
    Ping,
}

impl Kind {
    /// Every kind, in the order of their codes on the wire.
    const ALL: [Kind; 4] = [Kind::Data, Kind::Poison, Kind::Bye, Kind::Ping];

    const fn code(self) -> u8 {
        self as u8
    }

    fn from_code(code: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(code)).copied()
    }
}

/// Address by which messages are matched; the order of their arrival does not matter.
///
/// A tag is used once between two ranks in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// Training step, or number of the collective call.
    pub step: u64,
    /// Number of the tensor or bucket within the step.
    pub tensor: u32,
    /// Number of the message in the schedule of the tensor.
    pub message: u32,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} tensor {} message {}", self.step, self.tensor, self.message)
    }
}

/// Description of a payload, sent before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Purpose of the frame.
    pub kind: Kind,
    /// Epoch of the group, a number which grows whenever membership changes.
    pub epoch: u32,
    /// Address of the message.
    pub tag: Tag,
    /// Element type of the payload; `None` for the encoding of a codec, and for text.
    pub dtype: Option<DType>,
    /// Length of the payload in bytes, at most `PAYLOAD_BYTES_MAX`.
    pub length: u32,
    /// Whether the sender saw a NaN or an infinity in the values that the message is made of.
    pub nonfinite: bool,
    /// Checksum of the payload, if the link asks for one (see docs/wire.md).
    pub payload_checksum: Option<u32>,
}

impl Header {
    /// Returns a header without dtype and payload checksum.
    ///
    /// # Panics
    /// If `length` exceeds `PAYLOAD_BYTES_MAX`.
    pub fn new(kind: Kind, epoch: u32, tag: Tag, length: usize) -> Header {
        assert!(length <= PAYLOAD_BYTES_MAX as usize, "payload of {length} bytes");
        let length = length as u32;
        Header { kind, epoch, tag, dtype: None, length, nonfinite: false, payload_checksum: None }
    }

    /// Writes the header in its form on the wire.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let flags = if self.nonfinite { NONFINITE } else { 0 }
            | if self.payload_checksum.is_some() { CHECKED } else { 0 };
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.kind.code();
        bytes[6] = flags;
        bytes[7] = self.dtype.map_or(0, DType::code);
        bytes[8..12].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.tag.tensor.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.tag.step.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.tag.message.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.length.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.payload_checksum.unwrap_or(0).to_le_bytes());
        let header_checksum = checksum(&bytes[..36]);
        bytes[36..40].copy_from_slice(&header_checksum.to_le_bytes());
        bytes
    }

    /// Reads a header from its form on the wire.
    ///
    /// # Errors
    /// If a field has a value that this version does not write, or the checksum does not match.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, HeaderError> {
        if bytes[0..4] != MAGIC {
            return Err(HeaderError::Magic(u32_at(bytes, 0)));
        }
        // Before the checksum: another version may compute it over other bytes.
        if bytes[4] != VERSION {
            return Err(HeaderError::Version(bytes[4]));
        }
        let (found, expected) = (u32_at(bytes, 36), checksum(&bytes[..36]));
        if found != expected {
            return Err(HeaderError::Checksum { found, expected });
        }
        let kind = Kind::from_code(bytes[5]).ok_or(HeaderError::Kind(bytes[5]))?;
        let flags = bytes[6];
        if flags & !FLAGS != 0 {
            return Err(HeaderError::Flags(flags));
        }
        let dtype = match bytes[7] {
            0 => None,
            code => Some(DType::from_code(code).ok_or(HeaderError::DType(code))?),
        };
        let length = u32_at(bytes, 28);
        if length > PAYLOAD_BYTES_MAX {
            return Err(HeaderError::Length(length));
        }
        let tag = Tag {
            step: u64::from(u32_at(bytes, 16)) | u64::from(u32_at(bytes, 20)) << 32,
            tensor: u32_at(bytes, 12),
            message: u32_at(bytes, 24),
        };
        Ok(Header {
            kind,
            epoch: u32_at(bytes, 8),
            tag,
            dtype,
            length,
            nonfinite: flags & NONFINITE != 0,
            payload_checksum: (flags & CHECKED != 0).then(|| u32_at(bytes, 32)),
        })
    }
}

/// Returns the CRC-32 (IEEE 802.3) of `bytes`, the checksum of headers and payloads.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// Returns the CRC-32 of consecutive parts, which is [`checksum`] of the whole.
pub fn checksum_of_parts(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

fn u32_at(bytes: &[u8; HEADER_BYTES], offset: usize) -> u32 {
    let field = bytes[offset..offset + 4].try_into().expect("four bytes inside the header");
    u32::from_le_bytes(field)
}

/// Reason why bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The first four bytes are not `MAGIC`.
    #[error("frame starts with {0:#010x}, expected {expected:#010x}", expected = u32::from_le_bytes(MAGIC))]
    Magic(u32),
    /// The protocol version is not `VERSION`.
    #[error("wire protocol version {0}, expected {VERSION}")]
    Version(u8),
    /// Unknown kind of frame.
    #[error("frame kind {0}, expected 0..=3")]
    Kind(u8),
    /// Unknown flags.
    #[error("frame flags {0:#04x}, expected none but {FLAGS:#x}")]
    Flags(u8),
    /// Unknown dtype.
    #[error("frame dtype {0}, expected 0..=3")]
    DType(u8),
    /// The payload is longer than `PAYLOAD_BYTES_MAX`.
    #[error("payload of {0} bytes, expected at most {PAYLOAD_BYTES_MAX}")]
    Length(u32),
    /// The checksum does not match the bytes: the header was damaged on its way.
    #[error("header checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// Checksum that the header carries.
        found: u32,
        /// Checksum of the bytes that arrived.
        expected: u32,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> impl Strategy<Value = Header> {
        let kind =
            prop_oneof![Just(Kind::Data), Just(Kind::Poison), Just(Kind::Bye), Just(Kind::Ping)];
        let tag = (any::<u64>(), any::<u32>(), any::<u32>())
            .prop_map(|(step, tensor, message)| Tag { step, tensor, message });
        (
            kind,
            any::<u32>(),
            tag,
            0..=PAYLOAD_BYTES_MAX,
            any::<bool>(),
            any::<Option<u32>>(),
            0..4_usize,
        )
            .prop_map(|(kind, epoch, tag, length, nonfinite, payload_checksum, dtype)| {
                Header {
                    dtype: DType::ALL.get(dtype).copied(),
                    kind,
                    epoch,
                    tag,
                    length,
                    nonfinite,
                    payload_checksum,
                }
            })
    }

    proptest! {
        #[test]
        fn headers_parse_back(header in header()) {
            prop_assert_eq!(Header::parse(&header.to_bytes()), Ok(header));
        }

        #[test]
        fn a_flipped_bit_is_noticed(header in header(), bit in 0..HEADER_BYTES * 8) {
            let mut bytes = header.to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::parse(&bytes).is_err());
        }
    }
}
