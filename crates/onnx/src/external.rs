//! External data: numbers of tensors that are in a file beside the model.
//!
//! `torch.onnx.export` writes all initial values there. Weights need no numbers here; shapes, masks
//! and tables do, and have few.

use std::path::{Component, Path, PathBuf};

use onnx_rs::ast::{DataLocation, DataType, TensorProto};
use thinwire_model::{Error, Kind};

use crate::constant::shape;

/// Most elements of a tensor whose numbers are asked for; one that has more is a weight.
const ELEMENTS_MAX: usize = 1 << 20;

/// Most characters of a file's text in an error.
const SHOWN_MAX: usize = 80;

/// Bytes of the numbers of one tensor in a file beside the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// Name of the tensor.
    pub tensor: String,
    /// Name of the file, in the folder of the model.
    pub file: PathBuf,
    /// Place of the first byte in that file.
    pub offset: u64,
    /// Number of bytes.
    pub length: usize,
}

impl External {
    /// Returns where the numbers of a tensor are, unless they are in the model or are too many.
    ///
    /// # Errors
    /// If it names a file in another folder, or its length is not that of its shape.
    pub(crate) fn of(tensor: &TensorProto<'_>) -> Result<Option<External>, Error> {
        let elements = shape(tensor)?.iter().product::<usize>();
        let Some(size) = size(tensor.data_type()).filter(|_| elements <= ELEMENTS_MAX) else {
            return Ok(None);
        };
        if !is_elsewhere(tensor) {
            return Ok(None);
        }
        let refused = |reason: String| Error::new(Kind::File, reason).at(tensor.name());
        let file = Path::new(text(tensor, "location").unwrap_or_default());
        let [Component::Normal(_)] = file.components().collect::<Vec<_>>()[..] else {
            let shown = location(tensor);
            return Err(refused(format!(
                "its numbers are in '{shown}', expected a file next to the model"
            )));
        };
        let (expected, offset) = ((elements * size) as u64, number(tensor, "offset", 0)?);
        let length = number(tensor, "length", expected)?;
        if length != expected {
            return Err(refused(format!("external data of {length} bytes, expected {expected}")));
        }
        let (tensor, file) = (tensor.name().to_owned(), file.to_owned());
        Ok(Some(External { tensor, file, offset, length: elements * size }))
    }
}

/// Whether a tensor's numbers are in another file.
pub(crate) fn is_elsewhere(tensor: &TensorProto<'_>) -> bool {
    tensor.data_location() == DataLocation::External
}

/// Name of the file that has a tensor's numbers, as far as it fits in an error.
pub(crate) fn location(tensor: &TensorProto<'_>) -> String {
    shown(text(tensor, "location").unwrap_or("another file"))
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect()
}

fn text<'a>(tensor: &TensorProto<'a>, key: &str) -> Option<&'a str> {
    tensor.external_data().iter().find(|entry| entry.key == key).map(|entry| entry.value)
}

fn number(tensor: &TensorProto<'_>, key: &str, otherwise: u64) -> Result<u64, Error> {
    let Some(text) = text(tensor, key) else { return Ok(otherwise) };
    text.parse().map_err(|_| {
        let reason = format!("{key} '{}' of external data, expected a number", shown(text));
        Error::new(Kind::File, reason).at(tensor.name())
    })
}

/// Bytes of an element, of the types that constants have.
fn size(kind: DataType) -> Option<usize> {
    match kind {
        DataType::Double | DataType::Int64 => Some(8),
        DataType::Float | DataType::Int32 => Some(4),
        DataType::Bool | DataType::Uint8 => Some(1),
        _ => None,
    }
}
