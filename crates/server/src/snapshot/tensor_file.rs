//! Reader of safetensors files, which trusts none of their bytes.
//!
//! Law: reading any bytes gives a file whose tensors cover its data without gaps or overlaps, or a one-line
//! error.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use thinwire_checkpoint::length_of;
use thinwire_rows::Format;
use thinwire_wire::checksum;

use crate::error::{Error, Kind};

/// Largest size of a header in bytes.
const HEADER_BYTES_MAX: u64 = 100 << 20;
/// Number of bytes read at a time.
pub const BLOCK_BYTES: usize = 1 << 20;
/// Largest number of tensor names in a hint.
const NAMES: usize = 8;

/// Safetensors file that is kept open, so that replacing the file has no effect.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    header: Metadata,
    /// Position of the tensors' data in the file.
    start: u64,
    checksum: u32,
}

impl TensorFile {
    /// Opens a file and computes its checksum.
    ///
    /// # Errors
    /// If the file does not exist, or is no complete safetensors file.
    pub fn open(path: &Path) -> Result<TensorFile, Error> {
        open(path).map_err(|why| {
            let why = why.lines().next().unwrap_or_default();
            let context = format!("no safetensors file at {}: {why}", path.display());
            Error::new(Kind::Snapshot, context)
        })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the checksum of the file's content.
    pub fn checksum(&self) -> u32 {
        self.checksum
    }

    /// Returns the first tensor that has one of these names, and that name.
    ///
    /// # Errors
    /// If there is none, or its type is not F32, F16 or BF16.
    pub fn find<'a>(&self, names: &'a [String]) -> Result<(&'a str, &TensorInfo), Error> {
        let found = names.iter().find_map(|name| Some((&name[..], self.header.info(name)?)));
        let Some((name, tensor)) = found else {
            let message =
                format!("no tensor '{}' in {}", names.join("' or '"), self.path.display());
            return Err(Error::new(Kind::Snapshot, message).with_hint(self.names()));
        };
        match tensor.dtype {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => Ok((name, tensor)),
            found => Err(self.schema_error(name, &found.to_string(), "F32, F16 or BF16")),
        }
    }

    /// Returns the error for a tensor of another shape or type than expected.
    pub fn schema_error(&self, name: &str, found: &str, expected: &str) -> Error {
        let path = self.path.display();
        let message = format!("tensor '{name}' in {path} is {found}, expected {expected}");
        Error::new(Kind::Snapshot, message)
    }

    /// Reads numbers of a tensor at a range of bytes in the data.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&self, dtype: Dtype, place: Range<usize>, out: &mut [f32]) -> Result<(), Error> {
        let mut bytes = vec![0; place.len()];
        self.file.read_exact_at(&mut bytes, self.start + place.start as u64).map_err(|error| {
            Error::new(Kind::Snapshot, format!("reading {}: {error}", self.path.display()))
        })?;
        decode(dtype, &bytes, out);
        Ok(())
    }

    fn names(&self) -> String {
        let names = self.header.offset_keys();
        let shown: Vec<String> =
            names.iter().take(NAMES).map(|name| name.escape_debug().to_string()).collect();
        let more = if names.len() > NAMES { ", ..." } else { "" };
        format!("its {} tensors are {}{more}", names.len(), shown.join(", "))
    }
}

/// Converts numbers of a supported type to f32.
fn decode(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => {
            let words = bytes.as_chunks::<4>().0.iter();
            out.iter_mut().zip(words).for_each(|(out, word)| *out = f32::from_le_bytes(*word));
        }
        Dtype::BF16 => {
            let upper = |half: [u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(half)) << 16);
            let halves = bytes.as_chunks::<2>().0.iter();
            out.iter_mut().zip(halves).for_each(|(out, half)| *out = upper(*half));
        }
        // F16: `find` returns tensors of no other type.
        _ => {
            let count = bytes.len() / 2;
            Format::F16.decode(bytes, count, &mut out[..count]);
        }
    }
}

/// Opens a file. The error is one line.
fn open(path: &Path) -> Result<TensorFile, String> {
    let said = |error: io::Error| error.to_string();
    let found = length_of(path)?;
    let mut file = File::open(path).map_err(said)?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(said)?;
    let (header, most) = (u64::from_le_bytes(length), HEADER_BYTES_MAX.min(found));
    if header > most {
        return Err(format!("header of {header} bytes, expected at most {most}"));
    }
    let mut bytes = vec![0; header as usize];
    file.read_exact(&mut bytes).map_err(said)?;
    let start = 8 + header;
    let header: Metadata = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    let expected = start.saturating_add(header.data_len() as u64);
    if found != expected {
        return Err(format!("{found} bytes, expected {expected}"));
    }
    let checksum = checksum_of(&file, found).map_err(said)?;
    Ok(TensorFile { path: path.to_owned(), file, header, start, checksum })
}

/// Returns the checksum of a file: the CRC-32 of its blocks' checksums.
fn checksum_of(file: &File, length: u64) -> io::Result<u32> {
    let mut sums = Vec::new();
    let mut block = vec![0; BLOCK_BYTES];
    for start in (0..length).step_by(BLOCK_BYTES) {
        let bytes = &mut block[..(length - start).min(BLOCK_BYTES as u64) as usize];
        file.read_exact_at(bytes, start)?;
        sums.extend(checksum(bytes).to_le_bytes());
    }
    Ok(checksum(&sums))
}
