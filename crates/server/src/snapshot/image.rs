//! Image: the written rows of one piece of a table.

use std::ops::Range;

use crate::cut::Piece;
use crate::table::TableOptions;
use crate::table::{Fields, write_count};

/// Written rows in any order, with versions, values and optimiser state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Image {
    /// Row numbers.
    pub rows: Vec<u64>,
    /// Number of updates of each row.
    pub versions: Vec<u32>,
    /// Values, row by row.
    pub values: Vec<f32>,
    /// Optimiser state, row by row.
    pub state: Vec<f32>,
}

/// Sizes of a row, in numbers.
#[derive(Clone, Copy, Debug)]
pub struct Widths {
    /// Values per row.
    pub values: usize,
    /// Optimiser state per row.
    pub state: usize,
}

impl Widths {
    /// Returns the sizes of a row of a table.
    pub fn of(options: &TableOptions) -> Widths {
        Widths { values: options.width, state: options.width * options.optimizer.rule.slots() }
    }
}

impl Image {
    /// Reads images from the wire bytes of a shard's tables.
    pub fn read_all(
        bytes: &[u8],
        pieces: &[Piece],
        options: &[TableOptions],
    ) -> Option<Vec<Image>> {
        let mut fields = Fields(bytes);
        let read = |piece: &Piece| {
            Image::read(&mut fields, piece, Widths::of(&options[piece.table as usize]))
        };
        let images = pieces.iter().map(read).collect::<Option<Vec<_>>>()?;
        fields.end().map(|()| images)
    }

    fn read(fields: &mut Fields<'_>, piece: &Piece, widths: Widths) -> Option<Image> {
        (fields.u32()? == piece.table).then_some(())?;
        let written = fields.count(8 + 4 * (widths.values + widths.state))?;
        let order: Vec<u32> = bytemuck::pod_collect_to_vec(fields.bytes(4 * written)?);
        Some(Image {
            rows: order.into_iter().map(|row| piece.rows.start + u64::from(row)).collect(),
            versions: bytemuck::pod_collect_to_vec(fields.bytes(4 * written)?),
            values: bytemuck::pod_collect_to_vec(fields.bytes(4 * written * widths.values)?),
            state: bytemuck::pod_collect_to_vec(fields.bytes(4 * written * widths.state)?),
        })
    }

    /// Appends the rows in the wire format of a piece's table. All rows must lie in the piece.
    pub fn write(&self, piece: &Piece, bytes: &mut Vec<u8>) {
        bytes.extend(piece.table.to_le_bytes());
        write_count(self.rows.len(), bytes);
        let order: Vec<u32> = self.rows.iter().map(|row| (row - piece.rows.start) as u32).collect();
        bytes.extend_from_slice(bytemuck::must_cast_slice(&order));
        bytes.extend_from_slice(bytemuck::must_cast_slice(&self.versions));
        bytes.extend_from_slice(bytemuck::must_cast_slice(&self.values));
        bytes.extend_from_slice(bytemuck::must_cast_slice(&self.state));
    }

    /// Copies the rows of another image that lie in a range.
    pub fn take(&mut self, other: &Image, range: &Range<u64>, widths: Widths) {
        for (at, row) in other.rows.iter().enumerate().filter(|(_, row)| range.contains(row)) {
            self.rows.push(*row);
            self.versions.push(other.versions[at]);
            let (values, state) = (widths.values, widths.state);
            self.values.extend_from_slice(&other.values[at * values..][..values]);
            self.state.extend_from_slice(&other.state[at * state..][..state]);
        }
    }
}
