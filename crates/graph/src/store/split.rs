//! Which vertices are for training, validation and test.

use std::fmt;

/// Use of a vertex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Split {
    /// None; the vertex only passes on messages.
    None = 0,
    /// Its loss is trained on.
    Train = 1,
    /// Its accuracy decides between models.
    Validation = 2,
    /// Its accuracy is the result.
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
