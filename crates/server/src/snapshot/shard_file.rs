//! File of one shard: a safetensors file with the written rows of its tables.
//!
//! Tensors of a table: `NAME.rows` (I64), `NAME.versions` (U32), `NAME.values` and `NAME.state` (F32, one
//! line per row). Laws: equal shards have equal bytes; reading any bytes gives the images of the shard or an
//! error.

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Map, Value, json};

use super::image::{Image, Widths};
use crate::configuration::{Definition, Layout};
use crate::cut::Piece;

/// Shard in a file, with the definition and layout of its job.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// Tables of the job.
    pub definition: &'a Definition,
    /// Layout of the definition.
    pub layout: &'a Layout,
    /// Number of the shard.
    pub shard: u32,
}

/// Tensor to write.
struct Tensor<'a> {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: &'a [u8],
}

impl Contents<'_> {
    /// Returns the name of the file.
    pub fn file(&self) -> String {
        format!("shard-{:05}.safetensors", self.shard)
    }

    /// Returns the pieces of the shard.
    pub fn pieces(&self) -> &[Piece] {
        &self.layout.shards[self.shard as usize]
    }

    /// Returns the sizes of the rows of a piece.
    pub fn widths(&self, piece: &Piece) -> Widths {
        Widths::of(&self.layout.tables[piece.table as usize])
    }

    fn name(&self, piece: &Piece) -> &str {
        &self.definition.tables[piece.table as usize].name
    }

    /// Passes the parts of a file with the images, one per piece, to `write`.
    pub fn write<T>(&self, images: &[Image], write: impl FnOnce(&[&[u8]]) -> T) -> T {
        // Tensors of eight-byte numbers come first, so that all tensors are aligned.
        let (mut tensors, mut rest) = (Vec::new(), Vec::new());
        for (piece, image) in self.pieces().iter().zip(images) {
            let (name, widths, written) = (self.name(piece), self.widths(piece), image.rows.len());
            let tensor = |what: &str, dtype, shape: &[usize], bytes| Tensor {
                name: format!("{name}.{what}"),
                dtype,
                shape: shape.to_vec(),
                bytes,
            };
            let versions = bytemuck::must_cast_slice(&image.versions);
            let (values, state) = (&image.values, &image.state);
            tensors.push(tensor("rows", "I64", &[written], bytemuck::must_cast_slice(&image.rows)));
            rest.push(tensor("versions", "U32", &[written], versions));
            let values = bytemuck::must_cast_slice(values);
            rest.push(tensor("values", "F32", &[written, widths.values], values));
            let state = bytemuck::must_cast_slice(state);
            rest.push(tensor("state", "F32", &[written, widths.state], state));
        }
        tensors.append(&mut rest);
        let header = self.header(&tensors);
        let parts: Vec<&[u8]> =
            std::iter::once(&header[..]).chain(tensors.iter().map(|tensor| tensor.bytes)).collect();
        write(&parts)
    }

    fn header(&self, tensors: &[Tensor<'_>]) -> Vec<u8> {
        let shards = self.layout.shards.len();
        let description = format!("written rows of shard {} of {shards}", self.shard);
        let about = json!({"format": "pt", "writer": "thinwire", "description": description});
        let mut header = Map::from_iter([("__metadata__".to_owned(), about)]);
        let mut start = 0;
        for Tensor { name, dtype, shape, bytes } in tensors {
            let end = start + bytes.len();
            let tensor = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
            header.insert(name.clone(), tensor);
            start = end;
        }
        let mut header = Value::from(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        [&(header.len() as u64).to_le_bytes()[..], &header].concat()
    }

    /// Reads the images from a file, one per piece.
    ///
    /// # Errors
    /// If the bytes are not a file of this shard. The error is one line of text.
    pub fn read(&self, bytes: &[u8]) -> Result<Vec<Image>, String> {
        let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        let (found, expected) = (file.len(), 4 * self.pieces().len());
        if found != expected {
            return Err(format!("{found} tensors, expected {expected}"));
        }
        self.pieces().iter().map(|piece| self.image(&file, piece)).collect()
    }

    fn image(&self, file: &SafeTensors<'_>, piece: &Piece) -> Result<Image, String> {
        let (name, widths) = (self.name(piece), self.widths(piece));
        let tensor = |what: &str| {
            let name = format!("{name}.{what}");
            let view = file.tensor(&name).map_err(|error| error.to_string())?;
            Ok::<_, String>((name, view))
        };
        let rows = tensor("rows")?;
        let written = rows.1.shape().first().copied().unwrap_or_default();
        let rows: Vec<u64> = numbers(&rows, Dtype::I64, &[written])?;
        if let Some(row) = rows.iter().find(|row| !piece.rows.contains(row)) {
            let (start, end) = (piece.rows.start, piece.rows.end);
            return Err(format!("row {row} of table '{name}', expected rows of {start}..{end}"));
        }
        Ok(Image {
            rows,
            versions: numbers(&tensor("versions")?, Dtype::U32, &[written])?,
            values: numbers(&tensor("values")?, Dtype::F32, &[written, widths.values])?,
            state: numbers(&tensor("state")?, Dtype::F32, &[written, widths.state])?,
        })
    }
}

/// Returns the numbers of a tensor, checking its type and shape.
fn numbers<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
    (name, view): &(String, TensorView<'_>),
    dtype: Dtype,
    shape: &[usize],
) -> Result<Vec<T>, String> {
    if view.dtype() != dtype || view.shape() != shape {
        let (found, has) = (view.shape(), view.dtype());
        return Err(format!("tensor {name} is {has:?} {found:?}, expected {dtype:?} {shape:?}"));
    }
    Ok(bytemuck::pod_collect_to_vec(view.data()))
}
