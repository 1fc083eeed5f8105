//! Formats of the numbers in a row.
//!
//! A row in a smaller format takes less of a cache and of the network, and becomes f32 when it is used.
//! Rows stand alone: a row of `int8` begins with its own scale. All formats are little-endian. Law: a
//! row of `int8` is within half of its scale of the values that it was made from.

use std::fmt;

use half::f16;
use half::slice::HalfFloatSliceExt;
use serde::{Deserialize, Serialize};

/// Values that are converted at once, on the stack.
const PIECE: usize = 64;

/// Format of the numbers in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// An f32 as scale, then an i8 per value, which stands for that many scales.
    Int8,
}

impl Format {
    /// Every format.
    pub const ALL: [Format; 3] = [Format::F32, Format::F16, Format::Int8];

    /// Returns the bytes of a row of `columns` values.
    pub const fn width(self, columns: usize) -> usize {
        match self {
            Format::F32 => 4 * columns,
            Format::F16 => 2 * columns,
            Format::Int8 => 4 + columns,
        }
    }

    /// Writes a row of finite values.
    ///
    /// # Panics
    /// If `row` is not as long as [`width`](Format::width) says.
    pub fn encode(self, values: &[f32], row: &mut [u8]) {
        assert_eq!(row.len(), self.width(values.len()), "length of the row");
        match self {
            Format::F32 => {
                let pairs = row.as_chunks_mut().0.iter_mut().zip(values);
                pairs.for_each(|(bytes, value)| *bytes = value.to_le_bytes());
            }
            Format::F16 => {
                let pairs = row.as_chunks_mut().0.iter_mut().zip(values);
                pairs.for_each(|(bytes, value)| *bytes = f16::from_f32(*value).to_le_bytes());
            }
            Format::Int8 => encode_int8(values, row),
        }
    }

    /// Reads a row, or rows of which each has `columns` values.
    ///
    /// # Panics
    /// If the lengths do not fit each other.
    pub fn decode(self, rows: &[u8], columns: usize, values: &mut [f32]) {
        let width = self.width(columns).max(1);
        let count = rows.len() / width;
        assert_eq!((rows.len(), values.len()), (count * width, count * columns), "lengths of rows");
        match self {
            Format::F32 => {
                let pairs = rows.as_chunks().0.iter().zip(values);
                pairs.for_each(|(bytes, value)| *value = f32::from_le_bytes(*bytes));
            }
            Format::F16 => decode_f16(rows, values),
            Format::Int8 if columns == 0 => {}
            Format::Int8 => {
                for (row, values) in rows.chunks_exact(width).zip(values.chunks_exact_mut(columns))
                {
                    decode_int8(row, values);
                }
            }
        }
    }
}

fn encode_int8(values: &[f32], row: &mut [u8]) {
    let scale = values.iter().fold(0.0, |most: f32, value| most.max(value.abs())) / 127.0;
    let (head, codes) = row.split_at_mut(4);
    head.copy_from_slice(&scale.to_le_bytes());
    // A row of zeros has no scale to divide by.
    let inverse = if scale > 0.0 { 1.0 / f64::from(scale) } else { 0.0 };
    for (code, value) in codes.iter_mut().zip(values) {
        let rounded = (f64::from(*value) * inverse).round_ties_even();
        *code = (rounded as i8).max(-127) as u8;
    }
}

fn decode_int8(row: &[u8], values: &mut [f32]) {
    let (scale, codes) = row.split_first_chunk().expect("a row has a scale");
    let scale = f32::from_le_bytes(*scale);
    for (code, value) in codes.iter().zip(values) {
        *value = scale * f32::from(*code as i8);
    }
}

fn decode_f16(row: &[u8], values: &mut [f32]) {
    let mut halves = [f16::ZERO; PIECE];
    for (bytes, values) in row.chunks(2 * PIECE).zip(values.chunks_mut(PIECE)) {
        let halves = &mut halves[..values.len()];
        for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks().0) {
            *half = f16::from_le_bytes(*bytes);
        }
        halves.convert_to_f32_slice(values);
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::F32 => "f32",
            Format::F16 => "f16",
            Format::Int8 => "int8",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(format: Format, values: &[f32]) -> Vec<f32> {
        let mut row = vec![0; format.width(values.len())];
        format.encode(values, &mut row);
        let mut decoded = vec![f32::NAN; values.len()];
        format.decode(&row, values.len(), &mut decoded);
        decoded
    }

    proptest! {
        #[test]
        fn rows_come_back_as_near_as_their_format_is(
            values in prop::collection::vec(-1e4_f32..1e4, 0..200)
        ) {
            prop_assert_eq!(&round_trip(Format::F32, &values), &values);
            let halves: Vec<f32> = values.iter().map(|value| f16::from_f32(*value).to_f32()).collect();
            prop_assert_eq!(round_trip(Format::F16, &values), halves);
            let scale = values.iter().fold(0.0, |most: f32, value| most.max(value.abs())) / 127.0;
            for (decoded, value) in round_trip(Format::Int8, &values).iter().zip(&values) {
                prop_assert!((decoded - value).abs() <= 0.5001 * scale);
            }
        }
    }

    #[test]
    fn several_rows_are_read_at_once() {
        for format in Format::ALL {
            let width = format.width(3);
            let mut rows = vec![0; 2 * width];
            format.encode(&[0.0; 3], &mut rows[..width]);
            format.encode(&[-127.0, 2.0, 127.0], &mut rows[width..]);
            let mut values = [f32::NAN; 6];
            format.decode(&rows, 3, &mut values);
            assert_eq!(values, [0.0, 0.0, 0.0, -127.0, 2.0, 127.0], "{format}");
        }
    }
}
