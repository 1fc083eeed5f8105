//! Files of graphs, which ranks map into memory and share.
//!
//! A file has a header of fixed size and then whole arrays, in the order of `layout.rs`: the topology, and,
//! if the graph has them, rows of features, labels, a split, the bounds of parts, weights of edges, types of
//! vertices, and ids of vertices. All numbers are little-endian, and every array begins at a multiple of 64
//! bytes. Opening reads the topology once, to check it, but no features; [`Store::verify`] compares every
//! byte with the checksums of the header. All processes that open the file share its pages.

mod ids;
mod layout;
mod map;
mod open;
mod write;

use std::fmt;

use crate::error::Error;

pub(crate) use map::Map;

pub use ids::{Id, Ids};
pub use layout::{FeatureRows, TYPES_MAX};
pub use map::name_lost_pages;
pub use open::{Store, file_length};
pub use write::{Contents, Features, write};

/// Label of a vertex without a label.
pub const NO_LABEL: u32 = u32::MAX;

/// Use of a vertex: for training, validation or test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Split {
    /// No use; the vertex only passes on messages.
    None = 0,
    /// For training: its loss is minimised.
    Train = 1,
    /// For validation: its accuracy is used to choose between models.
    Validation = 2,
    /// For test: its accuracy is the result.
    Test = 3,
}

impl Split {
    /// All uses.
    pub const ALL: [Split; 4] = [Split::None, Split::Train, Split::Validation, Split::Test];

    /// Returns the use with this number.
    pub fn from_byte(byte: u8) -> Option<Split> {
        Split::ALL.get(usize::from(byte)).copied()
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Split::None => "none",
            Split::Train => "train",
            Split::Validation => "validation",
            Split::Test => "test",
        })
    }
}

/// Refuses machines that are not little-endian, like the file.
fn ensure_little_endian() -> Result<(), Error> {
    match cfg!(target_endian = "big") {
        true => Err(Error::format("files of graphs need a little-endian machine".to_owned())),
        false => Ok(()),
    }
}
