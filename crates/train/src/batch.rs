//! Rows of a step: windows of text, or images with their labels.

use crate::images::Labelled;

/// One rank's rows of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Batch {
    /// Windows of text.
    Text(Windows),
    /// Images with their labels.
    Images(Labelled),
}

impl Batch {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Batch::Text(windows) => windows.rows().len(),
            Batch::Images(images) => images.len(),
        }
    }
}

/// Rows of text: each holds `context` bytes and the byte after each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    bytes: Vec<u8>,
    context: usize,
}

impl Windows {
    /// Returns windows of these rows, of `context + 1` bytes each.
    ///
    /// # Panics
    /// If `bytes` is not a whole number of rows.
    pub fn new(bytes: Vec<u8>, context: usize) -> Windows {
        assert!(bytes.len().is_multiple_of(context + 1), "{} bytes are no rows", bytes.len());
        Windows { bytes, context }
    }

    /// Returns the number of bytes per row from which predictions are made.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Returns each row: `context + 1` bytes.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.bytes.chunks_exact(self.context + 1)
    }
}

impl From<Windows> for Batch {
    fn from(windows: Windows) -> Batch {
        Batch::Text(windows)
    }
}
