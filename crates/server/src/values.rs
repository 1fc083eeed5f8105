//! Values of rows in the format of their table, as sent and logged.

use std::borrow::Cow;

use thinwire_rows::Format;

/// Values of some rows, row by row, in one format.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Unchanged values.
    F32(Vec<f32>),
    /// Rows of [`Format::F16`].
    F16(Vec<u8>),
    /// Rows of [`Format::Int8`].
    Int8(Vec<u8>),
}

impl Values {
    /// Returns the format.
    pub fn format(&self) -> Format {
        match self {
            Values::F32(_) => Format::F32,
            Values::F16(_) => Format::F16,
            Values::Int8(_) => Format::Int8,
        }
    }

    /// Returns the bytes of the values on the wire.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Values::F32(values) => bytemuck::must_cast_slice(values),
            Values::F16(bytes) | Values::Int8(bytes) => bytes,
        }
    }

    /// Reads values from their bytes on the wire; `None` if the length is not a multiple of the format's
    /// item.
    pub(crate) fn from_bytes(format: Format, bytes: &[u8]) -> Option<Values> {
        let is_whole = bytes.len().is_multiple_of(format.item_bytes());
        is_whole.then(|| match format {
            Format::F32 => Values::F32(bytemuck::pod_collect_to_vec(bytes)),
            Format::F16 => Values::F16(bytes.to_vec()),
            Format::Int8 => Values::Int8(bytes.to_vec()),
        })
    }

    /// Returns the number of items. An item is a value; in `int8` it is a byte, and each row has four
    /// more bytes for its scale.
    pub fn len(&self) -> usize {
        self.bytes().len() / self.format().item_bytes()
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// Returns the values as f32; `rows` is the number of rows, all of equal length.
    pub(crate) fn decoded(&self, rows: usize) -> Cow<'_, [f32]> {
        if let Values::F32(values) = self {
            return Cow::Borrowed(values);
        }
        let (format, bytes) = (self.format(), self.bytes());
        let columns = format.columns(bytes.len() / rows.max(1));
        let mut values = vec![0.0; rows * columns];
        // Lengths that do not fit the rows must not panic: bytes beyond the rows are left out, and rows without
        // values may be shorter than their width.
        if !values.is_empty() {
            format.decode(&bytes[..rows * format.width(columns)], columns, &mut values);
        }
        Cow::Owned(values)
    }

    /// Returns the values as f32 without a copy where possible; `rows` is the number of rows, all of equal
    /// length.
    pub(crate) fn into_f32(self, rows: usize) -> Vec<f32> {
        match self {
            Values::F32(values) => values,
            other => other.decoded(rows).into_owned(),
        }
    }
}

impl From<Vec<f32>> for Values {
    fn from(values: Vec<f32>) -> Values {
        Values::F32(values)
    }
}
