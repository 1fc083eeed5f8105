//! External data: numbers of tensors that are in a separate file.
//!
//! `torch.onnx.export` writes all initial values there. The import needs only the shapes of weights. It
//! also needs the numbers of shapes, masks and tables; there are few of these.

use std::path::{Component, Path, PathBuf};

use onnx_rs::ast::{DataLocation, DataType, TensorProto};
use thinwire_model::{Error, Kind};

use crate::constant::shape;

/// Largest number of elements of a tensor whose numbers are requested; a larger one is a weight.
const ELEMENTS_MAX: usize = 1 << 20;

/// Largest number of characters of a text from the file in an error.
const SHOWN_MAX: usize = 80;

/// Position of the numbers of one tensor in a separate file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// Name of the tensor.
    pub tensor: String,
    /// Name of the file, in the folder of the model.
    pub file: PathBuf,
    /// Position of the first byte in that file.
    pub offset: u64,
    /// Number of bytes.
    pub length: usize,
}

impl External {
    /// Returns the position of a tensor's numbers; `None` if they are in the model, or if there are too
    /// many.
    ///
    /// # Errors
    /// If the tensor names a file in another folder, or its length does not match its shape.
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

/// Returns whether a tensor's numbers are in another file.
pub(crate) fn is_elsewhere(tensor: &TensorProto<'_>) -> bool {
    tensor.data_location() == DataLocation::External
}

/// Returns the name of the file with a tensor's numbers, cut for an error.
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

/// Returns the size in bytes of an element, for the types that constants have.
fn size(kind: DataType) -> Option<usize> {
    match kind {
        DataType::Double | DataType::Int64 => Some(8),
        DataType::Float | DataType::Int32 => Some(4),
        DataType::Bool | DataType::Uint8 => Some(1),
        _ => None,
    }
}
