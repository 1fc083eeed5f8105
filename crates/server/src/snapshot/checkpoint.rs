//! Checkpoint of a model as a plain safetensors file, as trainers write it, whose tensors are the first values of
//! tables. Nothing in it is trusted.
//!
//! Law: a table that begins with a checkpoint has the values of the tensor of its name, whatever the number of
//! shards, or an error names the tensor. No other table is touched.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use thinwire_rows::Format;
use thinwire_wire::checksum;

use crate::configuration::{Definition, Layout, TableDefinition};
use crate::cut::Piece;
use crate::error::{Error, Kind};
use crate::table::{Initial, Tables};

/// Most bytes of a header.
const HEADER_BYTES_MAX: u64 = 100 << 20;
/// Bytes that are read at a time.
const BLOCK_BYTES: usize = 1 << 20;
/// Most names of tensors in a hint.
const NAMES: usize = 8;

/// Checkpoint of a model in one safetensors file, whose header has been checked.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    /// It stays open, so that a file that takes its place changes nothing.
    file: File,
    header: Metadata,
    /// Place of the first tensor in the file.
    start: u64,
    checksum: u32,
}

impl Checkpoint {
    /// Opens a safetensors file, and reads it once for its checksum.
    ///
    /// # Errors
    /// If there is no such file, or it is no whole safetensors file.
    pub fn open(path: &Path) -> Result<Checkpoint, Error> {
        read(path).map_err(|why| {
            let why = why.lines().next().unwrap_or_default();
            let context = format!("no safetensors file at {}: {why}", path.display());
            Error::new(Kind::Snapshot, context)
        })
    }

    /// Returns the name by which the processes of a job agree on the checkpoint: that of the file, and a checksum of
    /// its content.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        format!("{name} ({:08x})", self.checksum)
    }

    /// Checks that the file has the values of all tables of a job that begin with a checkpoint, of which there is one
    /// at least. A tensor has the name of its table, or `NAME.weight` as in PyTorch, or `NAME.embedding_table` as
    /// in MindSpore.
    ///
    /// # Errors
    /// If a tensor is missing, or has another shape or no numbers of a type that it can be.
    pub fn check(&self, definition: &Definition) -> Result<(), Error> {
        let mut tables = definition.tables.iter().filter(|table| begins(table)).peekable();
        if tables.peek().is_none() {
            let context = format!("no table begins with {}", self.path.display());
            let hint = "give those that do 'checkpoint' as first values";
            return Err(Error::new(Kind::Snapshot, context).with_hint(hint));
        }
        tables.try_for_each(|table| self.tensor(table).map(drop))
    }

    /// Returns the values of a tensor of this shape.
    ///
    /// # Errors
    /// If the tensor is missing or another, or the file cannot be read.
    pub fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let names = [name.to_owned()];
        let (name, tensor) = self.find(&names)?;
        if tensor.shape != shape {
            return Err(self.misfit(name, &format!("{:?}", tensor.shape), &format!("{shape:?}")));
        }
        let (start, end) = tensor.data_offsets;
        let mut values = vec![0.0; shape.iter().product()];
        self.read(tensor.dtype, start..end, &mut values)?;
        Ok(values)
    }

    /// Loads the tables of some shards of a job whose definition was checked.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn tables(
        &self,
        (definition, layout): (&Definition, &Layout),
        shards: &[u32],
    ) -> Result<BTreeMap<u32, Tables>, Error> {
        let load = |shard: &u32| {
            let pieces = &layout.shards[*shard as usize];
            let mut tables = Tables::new(pieces, &layout.tables);
            for piece in pieces {
                let table = &definition.tables[piece.table as usize];
                if begins(table) {
                    self.fill(&mut tables, piece, table)?;
                }
            }
            Ok((*shard, tables))
        };
        shards.iter().map(load).collect()
    }

    /// Gives the rows of a piece their values.
    fn fill(
        &self,
        tables: &mut Tables,
        piece: &Piece,
        table: &TableDefinition,
    ) -> Result<(), Error> {
        let tensor = self.tensor(table)?;
        let width = table.width as usize;
        let row_bytes = width * item_bytes(tensor);
        let block = (BLOCK_BYTES / row_bytes).max(1);
        for first in piece.rows.clone().step_by(block) {
            let rows = piece.rows.end.min(first + block as u64) - first;
            let (start, end) = tensor.data_offsets;
            let from = start + first as usize * row_bytes;
            // The last row of a vector may be shorter than the others.
            let to = end.min(from + rows as usize * row_bytes);
            let mut values = vec![0.0; rows as usize * width];
            self.read(tensor.dtype, from..to, &mut values)?;
            tables.begin(piece.table, first, &values)?;
        }
        Ok(())
    }

    /// Reads numbers that lie at some bytes of the tensors.
    fn read(&self, dtype: Dtype, place: Range<usize>, values: &mut [f32]) -> Result<(), Error> {
        let mut bytes = vec![0; place.len()];
        self.file.read_exact_at(&mut bytes, self.start + place.start as u64).map_err(|error| {
            Error::new(Kind::Snapshot, format!("reading {}: {error}", self.path.display()))
        })?;
        decode(dtype, &bytes, values);
        Ok(())
    }

    /// Returns the first tensor with one of these names.
    fn find<'a>(&self, names: &'a [String]) -> Result<(&'a str, &TensorInfo), Error> {
        let found = names.iter().find_map(|name| Some((&name[..], self.header.info(name)?)));
        let Some((name, tensor)) = found else {
            let message = format!("no tensor '{}' in {}", names.join("' or '"), self.path.display());
            return Err(Error::new(Kind::Snapshot, message).with_hint(self.names()));
        };
        match tensor.dtype {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => Ok((name, tensor)),
            found => Err(self.misfit(name, &found.to_string(), "F32, F16 or BF16")),
        }
    }

    fn misfit(&self, name: &str, found: &str, expected: &str) -> Error {
        let path = self.path.display();
        let message = format!("tensor '{name}' in {path} is {found}, expected {expected}");
        Error::new(Kind::Snapshot, message)
    }

    /// Returns the tensor of a table.
    fn tensor(&self, table: &TableDefinition) -> Result<&TensorInfo, Error> {
        let names = ["", ".weight", ".embedding_table"].map(|end| format!("{}{end}", table.name));
        let (name, tensor) = self.find(&names)?;
        let (rows, width) = (table.rows as usize, table.width as usize);
        let fits = match &tensor.shape[..] {
            [] => rows == 1,
            // A vector is cut into rows, the last of which may be shorter.
            [elements] => elements.div_ceil(width) == rows,
            [first, rest @ ..] => *first == rows && product(rest) == Some(width),
        };
        let found = || format!("{:?}", tensor.shape);
        match fits {
            true => Ok(tensor),
            false => Err(self.misfit(name, &found(), &format!("[{rows}, {width}]"))),
        }
    }

    fn names(&self) -> String {
        let names = self.header.offset_keys();
        let shown = names[..names.len().min(NAMES)].join(", ");
        let more = if names.len() > NAMES { ", ..." } else { "" };
        format!("its {} tensors are {shown}{more}", names.len())
    }
}

fn product(lengths: &[usize]) -> Option<usize> {
    lengths.iter().try_fold(1_usize, |product, length| product.checked_mul(*length))
}

/// Whether a table begins with a checkpoint.
fn begins(table: &TableDefinition) -> bool {
    Initial::parse(&table.initial) == Ok(Initial::Checkpoint)
}

/// Returns the bytes of a number of a tensor whose type was checked.
fn item_bytes(tensor: &TensorInfo) -> usize {
    tensor.dtype.bitsize() / 8
}

/// Writes numbers of a type that was checked as f32.
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
        _ => {
            let count = bytes.len() / 2;
            Format::F16.decode(bytes, count, &mut out[..count]);
        }
    }
}

/// Opens a file; the error says what is wrong with it.
fn read(path: &Path) -> Result<Checkpoint, String> {
    let said = |error: io::Error| error.to_string();
    let metadata = path.metadata().map_err(said)?;
    // Opening a pipe waits for a writer, and a device may never end.
    if !metadata.is_file() {
        return Err("no regular file".to_owned());
    }
    let mut file = File::open(path).map_err(said)?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(said)?;
    let (header, most) = (u64::from_le_bytes(length), HEADER_BYTES_MAX.min(metadata.len()));
    if header > most {
        return Err(format!("header of {header} bytes, expected at most {most}"));
    }
    let mut bytes = vec![0; header as usize];
    file.read_exact(&mut bytes).map_err(said)?;
    let start = 8 + header;
    let header: Metadata = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    let (found, expected) = (metadata.len(), start.saturating_add(header.data_len() as u64));
    if found != expected {
        return Err(format!("{found} bytes, expected {expected}"));
    }
    let checksum = checksum_of(&file, found).map_err(said)?;
    Ok(Checkpoint { path: path.to_owned(), file, header, start, checksum })
}

/// Returns a checksum of a file of so many bytes: that of the checksums of its blocks.
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

#[cfg(test)]
mod tests;
