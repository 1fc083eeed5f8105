//! The header in front of every payload.
//!
//! 40 bytes, little-endian, the same for every message; docs/wire.md describes it field by field.
//! Law: `parse(to_bytes(h)) == h`, and any 40 bytes either parse to a header whose length is
//! within the limit or give an error; nothing is allocated.

use std::fmt;

use crate::{DType, Tag};

/// The first bytes of every frame.
pub const MAGIC: [u8; 4] = *b"TWIR";

/// The version of the wire protocol that this build speaks.
pub const VERSION: u8 = 2;

/// The length of a header in bytes.
pub const HEADER_BYTES: usize = 40;

/// The longest payload of one frame in bytes. Larger tensors travel in several messages.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 30;

const NONFINITE: u8 = 1 << 0;
const CHECKED: u8 = 1 << 1;
const FLAGS: u8 = NONFINITE | CHECKED;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A message of a schedule.
    Data,
    /// The sender has failed or lost somebody; the payload is a UTF-8 reason. The group is over.
    Poison,
    /// The sender leaves in good order and sends nothing more.
    Bye,
    /// The sender is alive and has nothing to say.
    Ping,
}

impl Kind {
    const fn code(self) -> u8 {
        match self {
            Kind::Data => 0,
            Kind::Poison => 1,
            Kind::Bye => 2,
            Kind::Ping => 3,
        }
    }

    const fn from_code(code: u8) -> Option<Kind> {
        Some(match code {
            0 => Kind::Data,
            1 => Kind::Poison,
            2 => Kind::Bye,
            3 => Kind::Ping,
            _ => return None,
        })
    }
}

/// What precedes a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// The life of the group: it grows whenever membership changes.
    pub epoch: u32,
    /// Which message this is.
    pub tag: Tag,
    /// The type of the payload's elements; none if it is the encoding of a codec, or text.
    pub dtype: Option<DType>,
    /// The length of the payload in bytes, at most [`PAYLOAD_BYTES_MAX`].
    pub length: u32,
    /// The sender has seen a NaN or an infinity in what this message is made of.
    pub nonfinite: bool,
    /// The payload's checksum, where the link asks for one (see docs/wire.md).
    pub payload_checksum: Option<u32>,
}

impl Header {
    /// A header without a payload checksum.
    ///
    /// # Panics
    /// If `length` exceeds [`PAYLOAD_BYTES_MAX`].
    pub fn new(kind: Kind, epoch: u32, tag: Tag, length: usize) -> Header {
        assert!(length <= PAYLOAD_BYTES_MAX as usize, "payload of {length} bytes");
        let length = length as u32;
        Header { kind, epoch, tag, dtype: None, length, nonfinite: false, payload_checksum: None }
    }

    /// The header as it travels.
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

    /// Reads a header.
    ///
    /// # Errors
    /// If any field is not what this version writes, or the checksum does not match.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, HeaderError> {
        if bytes[0..4] != MAGIC {
            return Err(HeaderError::Magic(u32_at(bytes, 0)));
        }
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

/// CRC-32 (IEEE 802.3) of `bytes`, the checksum of headers and payloads.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

fn u32_at(bytes: &[u8; HEADER_BYTES], offset: usize) -> u32 {
    let field = bytes[offset..offset + 4].try_into().expect("four bytes inside the header");
    u32::from_le_bytes(field)
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// The first four bytes are not [`MAGIC`].
    Magic(u32),
    /// Another protocol version.
    Version(u8),
    /// No such kind of frame.
    Kind(u8),
    /// Flags that this version does not know.
    Flags(u8),
    /// No such dtype.
    DType(u8),
    /// A payload longer than [`PAYLOAD_BYTES_MAX`].
    Length(u32),
    /// The header was damaged on its way.
    Checksum {
        /// The checksum that the header carries.
        found: u32,
        /// The checksum of the bytes that arrived.
        expected: u32,
    },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeaderError::Magic(found) => {
                write!(
                    f,
                    "frame starts with {found:#010x}, expected {:#010x}",
                    u32::from_le_bytes(MAGIC)
                )
            }
            HeaderError::Version(found) => {
                write!(f, "wire protocol version {found}, expected {VERSION}")
            }
            HeaderError::Kind(found) => write!(f, "frame kind {found}, expected 0..=3"),
            HeaderError::Flags(found) => {
                write!(f, "frame flags {found:#04x}, expected none but {FLAGS:#x}")
            }
            HeaderError::DType(found) => write!(f, "frame dtype {found}, expected 0..=3"),
            HeaderError::Length(found) => {
                write!(f, "payload of {found} bytes, expected at most {PAYLOAD_BYTES_MAX}")
            }
            HeaderError::Checksum { found, expected } => {
                write!(f, "header checksum {found:#010x}, expected {expected:#010x}")
            }
        }
    }
}

impl std::error::Error for HeaderError {}

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

        #[test]
        fn any_bytes_are_an_error_or_within_limits(mut bytes in any::<[u8; HEADER_BYTES]>(), sealed: bool) {
            if sealed {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4] = VERSION;
                let sum = checksum(&bytes[..36]);
                bytes[36..].copy_from_slice(&sum.to_le_bytes());
            }
            if let Ok(header) = Header::parse(&bytes) {
                prop_assert!(header.length <= PAYLOAD_BYTES_MAX);
            }
        }
    }
}
