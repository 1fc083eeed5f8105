//! Formats of the numbers in a row.
//!
//! Rows in a smaller format take less memory and bandwidth, and are converted to f32 for use. Each row can be
//! decoded alone: a row of `int8` starts with its own scale. All formats are little-endian. Laws: a row of
//! `int8` is within half of its scale of its original values; the expected value of an unbiased row is its
//! original, and each value is within one step of its format.

use std::fmt;

use half::f16;
use half::slice::HalfFloatSliceExt;
use serde::{Deserialize, Serialize};
use thinwire_wire::random::{Key, unit};

use crate::error::Error;

/// Bits of an f32's mantissa that an f16 lacks.
const F16_REST: u32 = (1 << 13) - 1;

/// Smallest positive f16; all values below [`F16_NORMAL`] are multiples of it.
const F16_STEP: f32 = 1.0 / 16_777_216.0;

/// Smallest normal f16.
const F16_NORMAL: f32 = 1.0 / 16_384.0;

/// Number of values converted at a time, on the stack.
const PIECE: usize = 64;

/// Format of the numbers in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// An f32 scale, then one i8 per value, which is multiplied by the scale.
    Int8,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 3] = [Format::F32, Format::F16, Format::Int8];

    /// Parses `f32`, `f16` or `int8`.
    ///
    /// # Errors
    /// If the text is none of these.
    pub fn parse(text: &str) -> Result<Format, Error> {
        let found = Format::ALL.into_iter().find(|format| format.to_string() == text);
        found.ok_or_else(|| Error::format(format!("format '{text}', expected f32, f16 or int8")))
    }

    /// Returns the largest finite value that a row can hold.
    pub const fn max(self) -> f32 {
        match self {
            Format::F32 | Format::Int8 => f32::MAX,
            Format::F16 => 65_504.0,
        }
    }

    /// Returns the size in bytes of a row of `columns` values.
    pub const fn width(self, columns: usize) -> usize {
        match self {
            Format::F32 => 4 * columns,
            Format::F16 => 2 * columns,
            Format::Int8 => 4 + columns,
        }
    }

    /// Returns the number of values in a row of `width` bytes.
    pub const fn columns(self, width: usize) -> usize {
        match self {
            Format::F32 => width / 4,
            Format::F16 => width / 2,
            Format::Int8 => width.saturating_sub(4),
        }
    }

    /// Returns the size in bytes of an item; every row is a whole number of items.
    pub const fn item_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 => 2,
            Format::Int8 => 1,
        }
    }

    /// Encodes a row, rounding each value to the nearest. In `int8`, a value that is not finite makes the
    /// whole row NaN.
    ///
    /// # Panics
    /// If the length of `row` is not [`width`](Format::width).
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

    /// Encodes a row of finite values of at most [`max`](Format::max) with unbiased stochastic rounding.
    /// `first` is the position of the first value in the random stream of `key`.
    ///
    /// # Panics
    /// If the length of `row` is not [`width`](Format::width).
    pub fn encode_unbiased(self, values: &[f32], key: Key, first: u64, row: &mut [u8]) {
        assert_eq!(row.len(), self.width(values.len()), "length of the row");
        let numbered = values.iter().copied().zip(words(key, first));
        match self {
            Format::F32 => self.encode(values, row),
            Format::F16 => {
                let pairs = row.as_chunks_mut().0.iter_mut().zip(numbered);
                pairs.for_each(|(bytes, (value, word))| {
                    *bytes = f16_unbiased(value, word).to_le_bytes();
                });
            }
            Format::Int8 => {
                let (inverse, codes) = begin_int8(values, row);
                for (code, (value, word)) in codes.iter_mut().zip(numbered) {
                    let scaled = f64::from(value) * inverse + f64::from(unit(word));
                    *code = (scaled.floor().clamp(-127.0, 127.0) as i8) as u8;
                }
            }
        }
    }

    /// Decodes one row or several rows of `columns` values each.
    ///
    /// # Panics
    /// If the lengths do not match.
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

/// Returns the random words for elements from `first` on.
fn words(key: Key, first: u64) -> impl Iterator<Item = u32> {
    let mut block = key.words(first / 4);
    (first..).map(move |at| {
        if at % 4 == 0 {
            block = key.words(at / 4);
        }
        block[(at % 4) as usize]
    })
}

/// Writes the scale of a row. Returns its inverse and the bytes for the codes.
fn begin_int8<'a>(values: &[f32], row: &'a mut [u8]) -> (f64, &'a mut [u8]) {
    let largest = values.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
    // Zero, or NaN if a value is not finite, which the maximum above does not show.
    let strange: f32 = values.iter().map(|value| value * 0.0).sum();
    let scale = largest / 127.0 + strange;
    let (head, codes) = row.split_at_mut(4);
    head.copy_from_slice(&scale.to_le_bytes());
    // A row of zeros has scale 0.
    let inverse = if scale > 0.0 { 1.0 / f64::from(scale) } else { 0.0 };
    (inverse, codes)
}

fn encode_int8(values: &[f32], row: &mut [u8]) {
    let (inverse, codes) = begin_int8(values, row);
    for (code, value) in codes.iter_mut().zip(values) {
        let rounded = (f64::from(*value) * inverse).round_ties_even();
        *code = (rounded as i8).max(-127) as u8;
    }
}

/// Rounds to one of the two neighbours, each with a probability given by its distance.
fn f16_unbiased(value: f32, word: u32) -> f16 {
    if value.abs() < F16_NORMAL {
        let steps = (value.abs() / F16_STEP + unit(word)).floor();
        return f16::from_f32((steps * F16_STEP).copysign(value));
    }
    // Random bits are added to the bits that are cut off; a carry rounds away from zero.
    let bits = value.to_bits() + (word & F16_REST);
    f16::from_f32(f32::from_bits(bits & !F16_REST))
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

    proptest! {
        #[test]
        fn unbiased_rows_are_right_on_average(
            values in prop::collection::vec((-1.0_f32..1.0, -30..16_i32), 1..6), seed: u64
        ) {
            let values: Vec<f32> = values.iter().map(|(x, exponent)| x * (*exponent as f32).exp2()).collect();
            let largest = values.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
            for format in Format::ALL {
                let step = |value: &f32| match format {
                    Format::F32 => 0.0,
                    Format::F16 => F16_STEP.max(value.abs() / 1024.0),
                    Format::Int8 => largest / 127.0 * 1.0001,
                };
                let (count, mut sums) = (2000, vec![0.0; values.len()]);
                let mut row = vec![0; format.width(values.len())];
                for number in 0..count {
                    let key = Key { seed, step: number, tensor: 3 };
                    format.encode_unbiased(&values, key, 7, &mut row);
                    let mut decoded = vec![f32::NAN; values.len()];
                    format.decode(&row, values.len(), &mut decoded);
                    for ((sum, decoded), value) in sums.iter_mut().zip(&decoded).zip(&values) {
                        prop_assert!((decoded - value).abs() <= step(value), "{} {}", decoded, value);
                        *sum += f64::from(*decoded);
                    }
                }
                for (sum, value) in sums.iter().zip(&values) {
                    // The standard deviation of the mean is at most half a step over the square root of the
                    // count.
                    let bound = 5.5 * 0.5 * f64::from(step(value)) / (count as f64).sqrt();
                    let error = (sum / count as f64 - f64::from(*value)).abs();
                    prop_assert!(error <= bound + 1e-6 * f64::from(value.abs()), "{} {} {}", format, sum, value);
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for value in [f32::NAN, f32::INFINITY] {
            for format in Format::ALL {
                assert!(!round_trip(format, &[1.0, value])[1].is_finite(), "{format}");
            }
        }
    }

    #[test]
    fn names_are_read_back() {
        for format in Format::ALL {
            assert_eq!(Format::parse(&format.to_string()).unwrap(), format);
        }
        let error = Format::parse("int4").unwrap_err().to_string();
        assert_eq!(error, "format 'int4', expected f32, f16 or int8");
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
