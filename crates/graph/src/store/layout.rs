//! The header of a file of a graph, and where its arrays are.
//!
//! | byte | |
//! |---|---|
//! | 0 | `twgraph` and a line feed |
//! | 8 | version, u32 |
//! | 12 | CRC-32 of bytes 16..128, u32 |
//! | 16 | edges, u64 |
//! | 24 | vertices, u32 |
//! | 28 | arrays that the file has, u32: 1 features, 2 labels, 4 split, 8 parts, 16 weights, 32 types |
//! | 32 | columns of a row of features, u32 |
//! | 36 | width of a row of features in bytes, u32 |
//! | 40 | name of the format of features, 8 bytes, zeros at the end |
//! | 48 | classes of labels, u32 |
//! | 52 | parts, u32 |
//! | 56 | types of vertices, u32 |
//!
//! The rest of the header is zero. Arrays: offsets (u64, one more than vertices), neighbours (u32),
//! features (rows of bytes), labels (u32), split (u8), bounds of parts (u32, one more than parts), the
//! vertices as they were numbered before parts were made (u32), weights (f32, one per neighbour), and types of
//! vertices (u32).

use std::ops::Range;

use thinwire_wire::checksum;

use crate::error::Error;

/// Version of the format of files.
const VERSION: u32 = 1;
/// Longest name of a format of features.
pub(super) const FORMAT_BYTES_MAX: usize = 8;
/// Largest number of types of vertices.
pub const TYPES_MAX: u32 = 1 << 16;
/// Size of the header.
pub(super) const HEADER_BYTES: usize = 128;

const MAGIC: &[u8; 8] = b"twgraph\n";
/// Bytes to a multiple of which every array begins.
const ALIGNMENT: u64 = 64;
const FEATURES: u32 = 1;
const LABELS: u32 = 2;
const SPLIT: u32 = 4;
const PARTS: u32 = 8;
const WEIGHTS: u32 = 16;
const TYPES: u32 = 32;

/// Format and place of the rows of features in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureRows {
    /// Name of the format of a row's numbers, as crate `rows` has them: `f32`, `f16` or `int8`.
    pub format: String,
    /// Numbers of a row.
    pub columns: u32,
    /// Bytes of a row.
    pub width: u32,
    /// Byte of the file at which the row of vertex 0 begins; the others follow it.
    pub offset: u64,
}

/// What a header says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub vertices: u32,
    pub edges: u64,
    /// Format, columns and width of features.
    pub features: Option<(String, u32, u32)>,
    /// Number of classes of labels.
    pub classes: Option<u32>,
    pub has_split: bool,
    pub parts: Option<u32>,
    pub has_weights: bool,
    /// Number of types of vertices.
    pub types: Option<u32>,
}

/// Bytes of a file at which its arrays are; an array that it does not have is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub offsets: Range<u64>,
    pub neighbors: Range<u64>,
    pub features: Range<u64>,
    pub labels: Range<u64>,
    pub split: Range<u64>,
    pub bounds: Range<u64>,
    pub origins: Range<u64>,
    pub weights: Range<u64>,
    pub types: Range<u64>,
}

impl Header {
    /// Writes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let (format, columns, width) = self.features.clone().unwrap_or_default();
        bytes[..8].copy_from_slice(MAGIC);
        bytes[16..24].copy_from_slice(&self.edges.to_le_bytes());
        let classes = self.classes.unwrap_or(0);
        let words = [self.vertices, self.flags(), columns, width];
        for (at, word) in (24..).step_by(4).zip(words) {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[40..40 + format.len()].copy_from_slice(format.as_bytes());
        bytes[48..52].copy_from_slice(&classes.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.parts.unwrap_or(0).to_le_bytes());
        bytes[56..60].copy_from_slice(&self.types.unwrap_or(0).to_le_bytes());
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let sum = checksum(&bytes[16..]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// If the bytes are no header of this version, or are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Header, Error> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            let found = bytes.len();
            return Err(Error::format(format!(
                "{found} bytes, expected a header of {HEADER_BYTES}"
            )));
        };
        if &bytes[..8] != MAGIC {
            let hint = "`thinwire graph import` and `thinwire graph generate` make such files";
            return Err(Error::format("no file of a graph".to_owned()).with_hint(hint));
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        if word(8) != VERSION {
            return Err(Error::format(format!("version {}, expected {VERSION}", word(8))));
        }
        let sum = checksum(&bytes[16..]);
        if word(12) != sum {
            let found = word(12);
            return Err(Error::format(format!(
                "checksum of the header {found:08x}, not {sum:08x}"
            )));
        }
        let flags = word(28);
        let has = |flag: u32| flags & flag != 0;
        let edges = u64::from_le_bytes(bytes[16..24].try_into().expect("8 bytes"));
        let features = match has(FEATURES) {
            true => Some((format_name(&bytes[40..48])?, word(32), word(36))),
            false => None,
        };
        let header = Header {
            vertices: word(24),
            edges,
            features,
            classes: has(LABELS).then_some(word(48)),
            has_split: has(SPLIT),
            parts: has(PARTS).then_some(word(52)),
            has_weights: has(WEIGHTS),
            types: has(TYPES).then_some(word(56)),
        };
        let is_possible = header.vertices < u32::MAX && header.types.unwrap_or(0) <= TYPES_MAX;
        if header.encode() != *bytes || !is_possible {
            return Err(Error::format("a header with values that no graph has".to_owned()));
        }
        Ok(header)
    }

    /// Returns where the arrays are, and the size of the file.
    ///
    /// # Errors
    /// If the sizes exceed all files.
    pub fn layout(&self) -> Result<(Layout, u64), Error> {
        let mut end = Some(HEADER_BYTES as u64);
        let mut place = |count: u64, bytes: u64| {
            let start = end.and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
            end = count
                .checked_mul(bytes)
                .and_then(|size| start?.checked_add(size))
                .filter(|end| *end <= i64::MAX as u64);
            start.unwrap_or(0)..end.unwrap_or(0)
        };
        let vertices = u64::from(self.vertices);
        let width = self.features.as_ref().map_or(0, |(_, _, width)| u64::from(*width));
        let of_parts = |count: u64| if self.parts.is_some() { count } else { 0 };
        let layout = Layout {
            offsets: place(vertices + 1, 8),
            neighbors: place(self.edges, 4),
            features: place(vertices, width),
            labels: place(if self.classes.is_some() { vertices } else { 0 }, 4),
            split: place(if self.has_split { vertices } else { 0 }, 1),
            bounds: place(of_parts(u64::from(self.parts.unwrap_or(0)) + 1), 4),
            origins: place(of_parts(vertices), 4),
            weights: place(if self.has_weights { self.edges } else { 0 }, 4),
            types: place(if self.types.is_some() { vertices } else { 0 }, 4),
        };
        let too_large = || Error::format(format!("{} edges, which no file holds", self.edges));
        Ok((layout, end.ok_or_else(too_large)?))
    }

    fn flags(&self) -> u32 {
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        flag(self.features.is_some(), FEATURES)
            | flag(self.classes.is_some(), LABELS)
            | flag(self.has_split, SPLIT)
            | flag(self.parts.is_some(), PARTS)
            | flag(self.has_weights, WEIGHTS)
            | flag(self.types.is_some(), TYPES)
    }
}

/// Reads the name of a format: lower-case letters and digits, then zeros.
fn format_name(bytes: &[u8]) -> Result<String, Error> {
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let name = &bytes[..length];
    let is_name = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    match std::str::from_utf8(name) {
        Ok(text) if name.iter().all(is_name) => Ok(text.to_owned()),
        _ => Err(Error::format("a format of features that is no name".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> impl Strategy<Value = Header> {
        let features = prop::option::of(("[a-z0-9]{1,8}", 0_u32..99, 1_u32..99));
        let number = || prop::option::of(0_u32..9);
        let rest = (number(), any::<bool>(), number(), any::<bool>(), number());
        (0_u32..1000, 0_u64..1 << 40, features, rest).prop_map(
            |(vertices, edges, features, (classes, has_split, parts, has_weights, types))| Header {
                vertices,
                edges,
                features,
                classes,
                has_split,
                parts,
                has_weights,
                types,
            },
        )
    }

    proptest! {
        #[test]
        fn a_header_reads_as_it_was_written(header in header(), at in 0..HEADER_BYTES, bit in 0_u32..8) {
            let mut bytes = header.encode();
            prop_assert_eq!(Header::decode(&bytes).unwrap(), header);
            bytes[at] ^= 1_u8 << bit;
            prop_assert!(Header::decode(&bytes).is_err());
            prop_assert!(Header::decode(&bytes[..at]).is_err());
        }

        #[test]
        fn arrays_are_aligned_and_apart(header in header()) {
            let (layout, end) = header.layout().unwrap();
            let Layout { offsets, neighbors, features, labels, split, bounds, origins, weights, types } = layout;
            let mut last = HEADER_BYTES as u64;
            for array in [offsets, neighbors, features, labels, split, bounds, origins, weights, types] {
                prop_assert!(array.start >= last && array.start.is_multiple_of(ALIGNMENT));
                last = array.end;
            }
            prop_assert_eq!(last, end);
        }
    }

    #[test]
    fn sizes_beyond_all_files_are_an_error() {
        let header = Header { edges: u64::MAX / 2, ..Header::default() };
        assert!(header.layout().is_err());
    }
}
