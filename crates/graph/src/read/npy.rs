//! Arrays of NumPy (NEP 1, "A Simple File Format for NumPy Arrays").

use std::fmt;
use std::io::Read;

use crate::error::Error;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Longest header that is read.
const HEADER_BYTES_MAX: u64 = 1 << 16;
/// Bytes that are read at a time, so that memory grows with the file and not with its header.
const PIECE_BYTES: u64 = 1 << 20;

/// Array of any number of dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dense {
    /// Length of each dimension.
    pub shape: Vec<u64>,
    /// Its numbers, with a row for each place of the first dimension.
    pub values: Matrix,
}

/// Sort of the numbers of an array, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE 754 binary16.
    F16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// Whole numbers with a sign, of this many bytes.
    Int(u8),
    /// Whole numbers without a sign, of this many bytes.
    Uint(u8),
    /// Booleans, of a byte each.
    Bool,
    /// Text of this many bytes.
    Text(u16),
}

/// Array of one or two dimensions; one of one dimension has one column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Sort of its numbers.
    pub dtype: Dtype,
    /// Number of rows.
    pub rows: u64,
    /// Number of columns.
    pub columns: u64,
    /// Its numbers, row by row.
    pub bytes: Vec<u8>,
}

impl Dtype {
    /// Returns the size of a number in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F16 => 2,
            Dtype::F32 => 4,
            Dtype::F64 => 8,
            Dtype::Bool => 1,
            Dtype::Int(bytes) | Dtype::Uint(bytes) => usize::from(bytes),
            Dtype::Text(bytes) => usize::from(bytes),
        }
    }

    /// Parses a type as NumPy writes it, such as `<f4`.
    fn parse(text: &str) -> Result<Dtype, Error> {
        let unknown = || {
            let text = text.escape_debug();
            Error::format(format!(
                "numbers of type '{text}', expected little-endian ones such as <f4"
            ))
        };
        let (order, rest) = text.split_at_checked(1).ok_or_else(unknown)?;
        let (kind, size) = rest.split_at_checked(1).ok_or_else(unknown)?;
        let size: u16 = size.parse().map_err(|_| unknown())?;
        if !(order == "<" || order == "|") {
            return Err(unknown());
        }
        match (kind, size) {
            ("f", 2) => Ok(Dtype::F16),
            ("f", 4) => Ok(Dtype::F32),
            ("f", 8) => Ok(Dtype::F64),
            ("i", 1 | 2 | 4 | 8) => Ok(Dtype::Int(size as u8)),
            ("u", 1 | 2 | 4 | 8) => Ok(Dtype::Uint(size as u8)),
            ("b", 1) => Ok(Dtype::Bool),
            ("S", 1..=64) => Ok(Dtype::Text(size)),
            ("U", 1..=64) => Ok(Dtype::Text(4 * size)),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dtype::F16 | Dtype::F32 | Dtype::F64 => write!(f, "float{}", 8 * self.bytes()),
            Dtype::Int(bytes) => write!(f, "int{}", 8 * bytes),
            Dtype::Uint(bytes) => write!(f, "uint{}", 8 * bytes),
            Dtype::Bool => f.write_str("bool"),
            Dtype::Text(_) => f.write_str("text"),
        }
    }
}

impl Matrix {
    /// Reads an array of at most two dimensions.
    pub(crate) fn read(mut stream: impl Read) -> Result<Matrix, Error> {
        let header = Header::read(&mut stream)?;
        match header.shape.len() {
            0..=2 => header.values(stream, u64::MAX),
            _ => {
                let found = format!("an array of shape {:?}", header.shape);
                Err(Error::format(format!("{found}, expected one or two dimensions")))
            }
        }
    }

    /// Returns a number, row by row, as a vertex, a position or a class.
    ///
    /// # Errors
    /// If it is no whole number, or is negative.
    pub fn whole(&self, at: usize) -> Result<u64, Error> {
        let size = self.dtype.bytes();
        let bytes = self.bytes.get(at * size..(at + 1) * size).unwrap_or_default();
        let mut wide = [0; 8];
        let (Dtype::Int(_) | Dtype::Uint(_) | Dtype::Bool) = self.dtype else {
            return Err(Error::format(format!(
                "an array of {}, expected whole numbers",
                self.dtype
            )));
        };
        wide[..bytes.len()].copy_from_slice(bytes);
        let is_negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        match self.dtype {
            Dtype::Int(_) if is_negative => {
                Err(Error::format(format!("a negative number at position {at}")))
            }
            _ => Ok(u64::from_le_bytes(wide)),
        }
    }

    /// Returns a whole number, row by row, as text.
    ///
    /// # Errors
    /// If it is no whole number.
    pub(crate) fn text(&self, at: usize) -> Result<String, Error> {
        let bytes = match self.dtype {
            Dtype::Int(bytes) => bytes,
            _ => return Ok(self.whole(at)?.to_string()),
        };
        let size = usize::from(bytes);
        let bytes = self.bytes.get(at * size..(at + 1) * size).unwrap_or_default();
        let is_negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = if is_negative { [0xff; 8] } else { [0; 8] };
        wide[..bytes.len()].copy_from_slice(bytes);
        Ok(i64::from_le_bytes(wide).to_string())
    }

    /// Returns a number, row by row, as f32; of text 0.
    ///
    /// # Panics
    /// If there is no such number.
    pub fn real(&self, at: usize) -> f32 {
        let size = self.dtype.bytes();
        let bytes = &self.bytes[at * size..(at + 1) * size];
        let mut wide = [0; 8];
        wide[..size.min(8)].copy_from_slice(&bytes[..size.min(8)]);
        let bits = u64::from_le_bytes(wide);
        match self.dtype {
            Dtype::F16 => half::f16::from_bits(bits as u16).to_f32(),
            Dtype::F32 => f32::from_bits(bits as u32),
            Dtype::F64 => f64::from_bits(bits) as f32,
            Dtype::Int(bytes) => {
                // The sign is in the highest bit of the number.
                let unused = 64 - 8 * u32::from(bytes);
                ((bits << unused) as i64 >> unused) as f32
            }
            Dtype::Uint(_) | Dtype::Bool => bits as f32,
            Dtype::Text(_) => 0.0,
        }
    }

    /// Returns the number of its numbers.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.bytes()
    }

    /// Returns whether it has no numbers.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl Dense {
    /// Reads an array of at most so many bytes.
    pub(crate) fn read(mut stream: impl Read, bytes_max: u64) -> Result<Dense, Error> {
        let header = Header::read(&mut stream)?;
        let values = header.values(stream, bytes_max)?;
        Ok(Dense { shape: header.shape, values })
    }
}

/// Description of an array.
struct Header {
    dtype: Dtype,
    shape: Vec<u64>,
}

impl Header {
    fn read(stream: &mut impl Read) -> Result<Header, Error> {
        let header = read_header(stream)?;
        let dtype = Dtype::parse(quoted(&header, "descr").unwrap_or_default())?;
        if !value(&header, "fortran_order").is_some_and(|value| value.starts_with("False")) {
            return Err(Error::format(
                "an array in Fortran order, expected C order, as from numpy.ascontiguousarray"
                    .to_owned(),
            ));
        }
        Ok(Header { dtype, shape: shape(&header)? })
    }

    /// Reads the numbers behind the header.
    fn values(&self, stream: impl Read, bytes_max: u64) -> Result<Matrix, Error> {
        let Header { dtype, shape } = self;
        let (rows, rest) = shape.split_first().unwrap_or((&1, &[]));
        let product = |sizes: &[u64]| {
            sizes.iter().try_fold(1_u64, |product, size| product.checked_mul(*size))
        };
        let sizes = product(rest).and_then(|columns| {
            let size = rows.checked_mul(columns)?.checked_mul(dtype.bytes() as u64)?;
            (size <= bytes_max).then_some((columns, size))
        });
        let (columns, size) = sizes.ok_or_else(|| {
            Error::format(match bytes_max {
                u64::MAX => format!("an array of {shape:?}"),
                _ => format!("an array of {shape:?}, expected at most {bytes_max} bytes"),
            })
        })?;
        Ok(Matrix { dtype: *dtype, rows: *rows, columns, bytes: read_bytes(stream, size)? })
    }
}

fn read_header(stream: &mut impl Read) -> Result<String, Error> {
    let mut start = [0; 8];
    let failed = |error| Error::io("cannot read an array", error);
    stream.read_exact(&mut start).map_err(failed)?;
    if &start[..6] != MAGIC {
        return Err(Error::format("no array of NumPy".to_owned()));
    }
    let mut length = [0; 4];
    let wide = if start[6] == 1 { 2 } else { 4 };
    stream.read_exact(&mut length[..wide]).map_err(failed)?;
    let length = u64::from(u32::from_le_bytes(length));
    if length > HEADER_BYTES_MAX {
        return Err(Error::format(format!(
            "a header of {length} bytes, expected at most {HEADER_BYTES_MAX}"
        )));
    }
    let bytes = read_bytes(stream, length)?;
    String::from_utf8(bytes).map_err(|_| Error::format("a header that is no text".to_owned()))
}

/// Reads exactly `size` bytes.
fn read_bytes(mut stream: impl Read, size: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size {
        let piece = PIECE_BYTES.min(size - bytes.len() as u64);
        let read = stream.by_ref().take(piece).read_to_end(&mut bytes);
        if read.map_err(|error| Error::io("cannot read an array", error))? == 0 {
            let found = bytes.len();
            return Err(Error::format(format!(
                "an array that ends after {found} bytes, expected {size}"
            )));
        }
    }
    Ok(bytes)
}

/// Returns what follows a key of the header, which is a dict of Python.
fn value<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let at = header.find(&format!("'{key}'"))?;
    let rest = &header[at + key.len() + 2..];
    Some(rest.trim_start().strip_prefix(':')?.trim_start())
}

fn quoted<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    value(header, key)?.strip_prefix('\'')?.split('\'').next()
}

/// Returns the shape, a tuple of numbers.
fn shape(header: &str) -> Result<Vec<u64>, Error> {
    let tuple = value(header, "shape").and_then(|text| text.strip_prefix('('));
    let inner = tuple.and_then(|text| text.split_once(')')).map(|(inner, _)| inner);
    let wrong = || Error::format("a header without a shape of numbers".to_owned());
    let words = inner.ok_or_else(wrong)?.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| word.parse().map_err(|_| wrong())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(dtype: Dtype, bytes: &[u8]) -> Matrix {
        Matrix { dtype, rows: 1, columns: 1, bytes: bytes.to_vec() }
    }

    #[test]
    fn numbers_of_every_type_are_read() {
        for (dtype, bytes, value) in [
            (Dtype::F16, &[0, 0xc0][..], -2.0),
            (Dtype::F32, &1.5_f32.to_le_bytes(), 1.5),
            (Dtype::F64, &(-0.5_f64).to_le_bytes(), -0.5),
            (Dtype::Int(1), &[0xfe], -2.0),
            (Dtype::Int(4), &(-70_000_i32).to_le_bytes(), -70_000.0),
            (Dtype::Int(8), &i64::MIN.to_le_bytes(), i64::MIN as f32),
            (Dtype::Uint(1), &[0xfe], 254.0),
            (Dtype::Uint(8), &u64::MAX.to_le_bytes(), u64::MAX as f32),
        ] {
            let matrix = matrix(dtype, bytes);
            assert_eq!((matrix.len(), matrix.real(0)), (1, value), "{dtype:?}");
        }
        assert_eq!(matrix(Dtype::Int(2), &[3, 1]).whole(0).unwrap(), 259);
        assert!(matrix(Dtype::Int(2), &[3, 0x80]).whole(0).is_err());
        assert_eq!(matrix(Dtype::Uint(2), &[3, 0x80]).whole(0).unwrap(), 0x8003);
    }
}
