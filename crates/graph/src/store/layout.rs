//! The header of a graph's file, and the positions of its arrays.
//!
//! | byte | |
//! |---|---|
//! | 0 | `twgraph` and a line feed |
//! | 8 | version, u32 |
//! | 12 | CRC-32 of bytes 16..128, u32 |
//! | 16 | edges, u64 |
//! | 24 | vertices, u32 |
//! | 28 | arrays that the file has, u32: 1 features, 2 labels, 4 split, 8 parts, 16 weights, 32 types, 64 ids that are numbers, 128 ids that are texts |
//! | 32 | columns of a row of features, u32 |
//! | 36 | width of a row of features in bytes, u32 |
//! | 40 | name of the format of features, 8 bytes, zeros at the end |
//! | 48 | classes of labels, u32 |
//! | 52 | parts, u32 |
//! | 56 | types of vertices, u32 |
//! | 64 | bytes of all texts of ids, u64 |
//! | 72 | CRC-32 of each array in the order below, and of the zeros before it, 11 u32 |
//!
//! The rest of the header is zero. Arrays: offsets (u64, one more than vertices), neighbours (u32), features
//! (rows of bytes), labels (u32), split (u8), bounds of parts (u32, one more than parts), the vertices'
//! numbers before parts were made (u32), weights (f32, one per neighbour), types of vertices (u32), ids (i64,
//! or the start of each text and the end of the last one, u64), and texts of ids (UTF-8).
//!
//! Version 1 has no ids and no checksums of arrays; it is still read.

use std::fmt;
use std::ops::Range;

use thinwire_wire::checksum;

use crate::error::Error;

/// Version of the format of files.
const VERSION: u32 = 2;
/// Version of files without checksums of arrays.
const VERSION_WITHOUT_SUMS: u32 = 1;
/// Number of arrays that a file may have.
pub(super) const ARRAYS: usize = 11;
/// Largest number of types of vertices.
pub const TYPES_MAX: u32 = 1 << 16;
/// Size of the header.
pub(super) const HEADER_BYTES: usize = 128;

const MAGIC: &[u8; 8] = b"twgraph\n";
/// Alignment of arrays: each begins at a multiple of this many bytes.
const ALIGNMENT: u64 = 64;
const FEATURES: u32 = 1;
const LABELS: u32 = 2;
const SPLIT: u32 = 4;
const PARTS: u32 = 8;
const WEIGHTS: u32 = 16;
const TYPES: u32 = 32;
const NUMBERS: u32 = 64;
const TEXTS: u32 = 128;
/// Byte of the header at which the checksums of arrays begin.
const SUMS: usize = 72;

/// Format and position of the rows of features in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureRows {
    /// Name of the format of a row's numbers, as in crate `rows`: `f32`, `f16` or `int8`.
    pub format: String,
    /// Numbers per row.
    pub columns: u32,
    /// Bytes per row.
    pub width: u32,
    /// Byte of the file at which the row of vertex 0 begins; the other rows follow it.
    pub offset: u64,
}

/// Content of a header.
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
    pub ids: Option<IdTable>,
    /// Checksums of all arrays; `None` in files of version 1.
    pub sums: Option<[u32; ARRAYS]>,
}

/// Kind of the ids of vertices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdTable {
    Numbers,
    /// Texts, of this many bytes in total.
    Texts(u64),
}

/// Array of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Array {
    Offsets,
    Neighbors,
    Features,
    Labels,
    Split,
    Bounds,
    Origins,
    Weights,
    Types,
    Ids,
    Texts,
}

/// Positions of the arrays in a file, in bytes; an array that the file does not have is empty.
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
    pub ids: Range<u64>,
    pub texts: Range<u64>,
}

impl Layout {
    /// Returns every array with its position, in the order of the file.
    pub fn arrays(&self) -> [(Array, &Range<u64>); ARRAYS] {
        [
            (Array::Offsets, &self.offsets),
            (Array::Neighbors, &self.neighbors),
            (Array::Features, &self.features),
            (Array::Labels, &self.labels),
            (Array::Split, &self.split),
            (Array::Bounds, &self.bounds),
            (Array::Origins, &self.origins),
            (Array::Weights, &self.weights),
            (Array::Types, &self.types),
            (Array::Ids, &self.ids),
            (Array::Texts, &self.texts),
        ]
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Array::Offsets => "offsets",
            Array::Neighbors => "neighbours",
            Array::Features => "features",
            Array::Labels => "labels",
            Array::Split => "split",
            Array::Bounds => "bounds of parts",
            Array::Origins => "origins",
            Array::Weights => "weights",
            Array::Types => "types",
            Array::Ids => "ids",
            Array::Texts => "texts of ids",
        })
    }
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
        if let Some(IdTable::Texts(size)) = self.ids {
            bytes[64..72].copy_from_slice(&size.to_le_bytes());
        }
        let places = bytes[SUMS..].as_chunks_mut().0.iter_mut();
        places.zip(self.sums.iter().flatten()).for_each(|(place, sum)| *place = sum.to_le_bytes());
        let version = if self.sums.is_some() { VERSION } else { VERSION_WITHOUT_SUMS };
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        let sum = checksum(&bytes[16..]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a header, and checks its lengths against each other.
    ///
    /// # Errors
    /// If the bytes are not a header of a known version, are damaged, or contradict each other.
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
        if ![VERSION, VERSION_WITHOUT_SUMS].contains(&word(8)) {
            let hint = "a later version of thinwire has written the file: read the file with that \
                version, or import the graph again";
            let error = format!("version {}, expected at most {VERSION}", word(8));
            return Err(Error::format(error).with_hint(hint));
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
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let features = match has(FEATURES) {
            true => Some((format_name(&bytes[40..48])?, word(32), word(36))),
            false => None,
        };
        let ids = match (has(NUMBERS), has(TEXTS)) {
            (true, _) => Some(IdTable::Numbers),
            (false, true) => Some(IdTable::Texts(long(64))),
            (false, false) => None,
        };
        let sums = (word(8) == VERSION).then(|| std::array::from_fn(|at| word(SUMS + 4 * at)));
        let header = Header {
            vertices: word(24),
            edges: long(16),
            features,
            classes: has(LABELS).then_some(word(48)),
            has_split: has(SPLIT),
            parts: has(PARTS).then_some(word(52)),
            has_weights: has(WEIGHTS),
            types: has(TYPES).then_some(word(56)),
            ids,
            sums,
        };
        let has_version = header.sums.is_some() || header.ids.is_none();
        let is_possible = header.vertices < u32::MAX && header.types.unwrap_or(0) <= TYPES_MAX;
        if header.encode() != *bytes || !is_possible || !has_version {
            return Err(Error::format("a header with values that no graph has".to_owned()));
        }
        header.check_features()?;
        Ok(header)
    }

    /// Checks that the width of a row of features fits its format.
    ///
    /// # Errors
    /// If the width does not fit, or there is no such format.
    pub fn check_features(&self) -> Result<(), Error> {
        let Some((format, columns, width)) = &self.features else { return Ok(()) };
        let columns_wide = u64::from(*columns);
        let expected = match &format[..] {
            "f32" => 4 * columns_wide,
            "f16" => 2 * columns_wide,
            "int8" => 4 + columns_wide,
            _ => {
                let error = format!("features of format '{format}', expected f32, f16 or int8");
                return Err(Error::format(error));
            }
        };
        match u64::from(*width) == expected {
            true => Ok(()),
            false => Err(Error::format(format!(
                "rows of features of {width} bytes, expected {expected} for {columns} {format}"
            ))),
        }
    }

    /// Returns the positions of the arrays, and the size of the file.
    ///
    /// # Errors
    /// If the sizes exceed those of any file.
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
        let (id_places, text_bytes) = match self.ids {
            None => (0, 0),
            Some(IdTable::Numbers) => (vertices, 0),
            Some(IdTable::Texts(size)) => (vertices + 1, size),
        };
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
            ids: place(id_places, 8),
            texts: place(text_bytes, 1),
        };
        let too_large = || {
            let edges = self.edges;
            Error::format(format!(
                "the arrays of {edges} edges and of the vertices are too large for a file"
            ))
        };
        let end = end.ok_or_else(too_large)?;
        match self.sums {
            Some(_) => Ok((layout, end)),
            // A file of version 1 ends here.
            None => {
                let end = layout.types.end;
                Ok((Layout { ids: end..end, texts: end..end, ..layout }, end))
            }
        }
    }

    fn flags(&self) -> u32 {
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        flag(self.features.is_some(), FEATURES)
            | flag(self.classes.is_some(), LABELS)
            | flag(self.has_split, SPLIT)
            | flag(self.parts.is_some(), PARTS)
            | flag(self.has_weights, WEIGHTS)
            | flag(self.types.is_some(), TYPES)
            | flag(self.ids == Some(IdTable::Numbers), NUMBERS)
            | flag(matches!(self.ids, Some(IdTable::Texts(_))), TEXTS)
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

    fn features() -> impl Strategy<Value = (String, u32, u32)> {
        (0_usize..3, 0_u32..99).prop_map(|(format, columns)| {
            let (name, width) =
                [("f32", 4 * columns), ("f16", 2 * columns), ("int8", 4 + columns)][format];
            (name.to_owned(), columns, width)
        })
    }

    fn ids() -> impl Strategy<Value = Option<IdTable>> {
        let texts = (0_u64..99).prop_map(|size| Some(IdTable::Texts(size)));
        prop_oneof![Just(None), Just(Some(IdTable::Numbers)), texts]
    }

    fn header() -> impl Strategy<Value = Header> {
        let number = || prop::option::of(0_u32..9);
        let flags = (any::<bool>(), any::<bool>());
        let sums = any::<[u32; ARRAYS]>();
        (
            0_u32..1000,
            0_u64..1 << 40,
            prop::option::of(features()),
            flags,
            sums,
            ids(),
            [number(), number(), number()],
        )
            .prop_map(
                |(vertices, edges, features, flags, sums, ids, [classes, parts, types])| Header {
                    vertices,
                    edges,
                    features,
                    classes,
                    has_split: flags.0,
                    parts,
                    has_weights: flags.1,
                    types,
                    ids,
                    sums: Some(sums),
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
            let mut last = HEADER_BYTES as u64;
            for (_, array) in layout.arrays() {
                prop_assert!(array.start >= last && array.start.is_multiple_of(ALIGNMENT));
                last = array.end;
            }
            prop_assert_eq!(last, end);
        }
    }

    #[test]
    fn sizes_beyond_all_files_are_an_error() {
        let texts = Some(IdTable::Texts(u64::MAX - 64));
        let header = Header { edges: u64::MAX / 2, ..Header::default() };
        assert!(header.layout().is_err());
        assert!(Header { ids: texts, ..Header::default() }.layout().is_err());
    }

    #[test]
    fn a_row_of_features_is_as_wide_as_its_format_says() {
        let read = |format: &str, columns, width| {
            let features = Some((format.to_owned(), columns, width));
            let header = Header { features, sums: Some([0; ARRAYS]), ..Header::default() };
            Header::decode(&header.encode()).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(read("int8", 6, 10), Ok(()));
        let message = "rows of features of 24 bytes, expected 10 for 6 int8";
        assert_eq!(read("int8", 6, 24).unwrap_err(), message);
        let message = "features of format 'f64', expected f32, f16 or int8";
        assert_eq!(read("f64", 3, 24).unwrap_err(), message);
        let columns = u32::MAX / 4 + 2;
        assert!(read("f32", columns, columns.wrapping_mul(4)).is_err());
    }

    #[test]
    fn headers_of_version_1_have_no_checksums_and_no_ids() {
        let header = Header { vertices: 3, ..Header::default() };
        assert_eq!(header.encode()[8], 1);
        assert_eq!(Header::decode(&header.encode()).unwrap(), header);
        let with_ids = Header { ids: Some(IdTable::Numbers), ..header };
        assert!(Header::decode(&with_ids.encode()).is_err());
    }
}
