//! Values of rows in a framework's memory, and the rows that they are encoded to.

use pyo3::prelude::*;
use thinwire_rows::{Format, Frozen};
use thinwire_wire::DType;

use crate::error::Failure;
use crate::graph::invalid;
use crate::memory::Memory;
use crate::row_source::RowSource;

/// Values of rows: in the dtype of their format, or for `int8` in f32.
pub(crate) struct Values {
    memory: Memory,
    pub(crate) columns: usize,
    pub(crate) format: Format,
}

impl Values {
    /// Values at an address, by columns and name of the format.
    pub(crate) fn new(
        (address, columns, format): (usize, u32, String),
        rows: usize,
    ) -> Result<Values, Failure> {
        let format = Format::parse(&format).map_err(invalid)?;
        let columns = columns as usize;
        let dtype = if format == Format::F16 { DType::F16 } else { DType::F32 };
        let memory = Memory::of(address, rows.saturating_mul(columns), dtype)?;
        Ok(Values { memory, columns, format })
    }

    /// Returns the bytes of an encoded row.
    pub(crate) fn width(&self) -> usize {
        self.format.width(self.columns)
    }

    /// Writes the encoded row with a number.
    pub(crate) fn encode(&self, row: usize, out: &mut [u8]) {
        match self.format {
            Format::Int8 => {
                self.format.encode(&self.memory.f32s()[row * self.columns..][..self.columns], out);
            }
            Format::F32 | Format::F16 => {
                out.copy_from_slice(&self.memory.bytes()[row * self.width()..][..self.width()]);
            }
        }
    }
}

/// Rows of the core's own in a format, from `rows` rows of values at an address.
#[pyfunction]
pub(crate) fn encode_rows(
    py: Python<'_>,
    address: usize,
    rows: usize,
    columns: u32,
    format: String,
) -> PyResult<RowSource> {
    let values = Values::new((address, columns, format), rows)?;
    let encoded = py.detach(|| {
        let mut bytes = vec![0; rows.saturating_mul(values.width())];
        let places = bytes.chunks_exact_mut(values.width().max(1));
        places.enumerate().for_each(|(row, out)| values.encode(row, out));
        Frozen::in_memory(bytes, values.width())
    });
    Ok(RowSource::of_source(encoded.map_err(invalid)?, rows as u64))
}

/// Writes the f32 of encoded rows, address and bytes, to an address with room for that many rows.
#[pyfunction]
pub(crate) fn decode_rows(
    py: Python<'_>,
    rows: (usize, usize),
    columns: u32,
    format: &str,
    out: (usize, usize),
) -> PyResult<()> {
    let format = Format::parse(format).map_err(invalid)?;
    let columns = columns as usize;
    let width = format.width(columns);
    if out.1.checked_mul(width) != Some(rows.1) {
        let text = format!("{} bytes, expected {} rows of {width} bytes", rows.1, out.1);
        return Err(Failure::invalid(text).into());
    }
    let rows = Memory::new(rows.0, rows.1)?;
    let mut out = Memory::of(out.0, out.1.saturating_mul(columns), DType::F32)?;
    py.detach(|| format.decode(rows.bytes(), columns, out.f32s_mut()));
    Ok(())
}
