//! Checkpoint of a model: a plain safetensors file whose tensors are initial values of tables. All of its
//! content is checked.
//!
//! Law: a table whose initial values are `checkpoint` gets the values of the tensor with its name, whatever
//! the number of shards, or an error names the tensor. Other tables are not affected.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::TensorInfo;

use super::tensor_file::{BLOCK_BYTES, TensorFile};
use crate::configuration::{Definition, Layout, TableDefinition};
use crate::cut::Piece;
use crate::error::{Error, Kind};
use crate::table::{Initial, Tables};

/// Checkpoint of a model in one safetensors file, with a checked header.
#[derive(Debug)]
pub struct Checkpoint(TensorFile);

impl Checkpoint {
    /// Opens a safetensors file and computes its checksum.
    ///
    /// # Errors
    /// If the file does not exist, or is not a complete safetensors file.
    pub fn open(path: &Path) -> Result<Checkpoint, Error> {
        TensorFile::open(path).map(Checkpoint)
    }

    /// Returns the name that identifies the checkpoint in a definition: the file's name and the checksum of
    /// its content.
    pub fn name(&self) -> String {
        let name = self.0.path().file_name().unwrap_or_default().to_string_lossy();
        format!("{name} ({:08x})", self.0.checksum())
    }

    /// Checks that the file has the values of all tables that begin with a checkpoint, and that there is such
    /// a table. A tensor has the name of its table, or `NAME.weight` as in PyTorch, or `NAME.embedding_table`
    /// as in MindSpore.
    ///
    /// # Errors
    /// If a tensor is missing, or has another shape or an unsupported type.
    pub fn check(&self, definition: &Definition) -> Result<(), Error> {
        let mut tables = definition.tables.iter().filter(|table| begins(table)).peekable();
        if tables.peek().is_none() {
            let context = format!("no table begins with {}", self.0.path().display());
            let hint = "give 'checkpoint' as the initial values of a table";
            return Err(Error::new(Kind::Snapshot, context).with_hint(hint));
        }
        tables.try_for_each(|table| self.tensor(table).map(drop))
    }

    /// Returns the values of the tensor with this name and shape.
    ///
    /// # Errors
    /// If the tensor is missing or has another shape or type, or the file cannot be read.
    pub fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let names = [name.to_owned()];
        let (name, tensor) = self.0.find(&names)?;
        if tensor.shape != shape {
            return Err(self.0.schema_error(
                name,
                &format!("{:?}", tensor.shape),
                &format!("{shape:?}"),
            ));
        }
        let (start, end) = tensor.data_offsets;
        let mut values = vec![0.0; shape.iter().product()];
        self.0.read(tensor.dtype, start..end, &mut values)?;
        Ok(values)
    }

    /// Loads the tables of some shards of a job. The definition must have been checked.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn tables(
        &self,
        definition: &Definition,
        layout: &Layout,
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

    /// Sets the values of the rows of a piece.
    fn fill(
        &self,
        tables: &mut Tables,
        piece: &Piece,
        table: &TableDefinition,
    ) -> Result<(), Error> {
        let tensor = self.tensor(table)?;
        let width = table.width as usize;
        let row_bytes = width * tensor.dtype.bitsize() / 8;
        let block = (BLOCK_BYTES / row_bytes).max(1);
        for first in piece.rows.clone().step_by(block) {
            let rows = piece.rows.end.min(first + block as u64) - first;
            let (start, end) = tensor.data_offsets;
            let from = start + first as usize * row_bytes;
            // The last row of a vector may be shorter than the others.
            let to = end.min(from + rows as usize * row_bytes);
            let mut values = vec![0.0; rows as usize * width];
            self.0.read(tensor.dtype, from..to, &mut values)?;
            tables.begin(piece.table, first, &values)?;
        }
        Ok(())
    }

    /// Returns the tensor of a table.
    fn tensor(&self, table: &TableDefinition) -> Result<&TensorInfo, Error> {
        let names = ["", ".weight", ".embedding_table"].map(|end| format!("{}{end}", table.name));
        let (name, tensor) = self.0.find(&names)?;
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
            false => Err(self.0.schema_error(name, &found(), &format!("[{rows}, {width}]"))),
        }
    }
}

fn product(lengths: &[usize]) -> Option<usize> {
    lengths.iter().try_fold(1_usize, |product, length| product.checked_mul(*length))
}

/// Returns whether a table begins with a checkpoint.
fn begins(table: &TableDefinition) -> bool {
    Initial::parse(&table.initial) == Ok(Initial::Checkpoint)
}
