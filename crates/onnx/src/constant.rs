//! Constants: numbers of a file from which shapes are computed.

use onnx_rs::ast::{DataType, TensorProto};
use thinwire_model::{Error, Kind};

use crate::external::{is_elsewhere, location};

/// Largest number of elements of a constant.
pub(crate) const ELEMENTS_MAX: usize = 1 << 24;
/// Largest number that counts as minus infinity in masks.
pub(crate) const FAR: f64 = -1e4;

/// Numbers that are known without running the model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Constant {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
    /// Whether the numbers are integers or booleans.
    pub whole: bool,
}

impl Constant {
    /// Returns integers in one dimension.
    pub fn list(values: impl IntoIterator<Item = usize>) -> Constant {
        let values: Vec<f64> = values.into_iter().map(|value| value as f64).collect();
        Constant { shape: vec![values.len()], values, whole: true }
    }

    /// Returns one integer without dimensions.
    pub fn integer(value: usize) -> Constant {
        Constant { shape: Vec::new(), values: vec![value as f64], whole: true }
    }

    /// Returns the only number, if there is exactly one.
    pub fn single(&self) -> Option<f64> {
        match self.values[..] {
            [value] => Some(value),
            _ => None,
        }
    }

    /// Returns the value of all elements, if they are equal.
    pub fn uniform(&self) -> Option<f64> {
        let first = self.values.first().copied()?;
        self.values.iter().all(|value| *value == first).then_some(first)
    }

    /// Returns whether the numbers are a mask: some of them are lower than any weight would be.
    pub fn hides(&self) -> bool {
        self.values.iter().any(|value| *value <= FAR)
    }

    /// Returns whether the elements are 0, 1, 2 and so on along the last dimension.
    pub fn is_counted(&self) -> bool {
        let Some(last) = self.shape.last() else { return false };
        self.values.iter().enumerate().all(|(at, value)| *value == (at % last) as f64)
    }

    /// Returns the transposed matrix.
    pub fn turned(&self) -> Constant {
        let [rows, columns] = self.shape[..] else { return self.clone() };
        let values = (0..columns).flat_map(|column| (0..rows).map(move |row| (row, column)));
        let values = values.map(|(row, column)| self.values[row * columns + column]).collect();
        Constant { shape: vec![columns, rows], values, whole: self.whole }
    }

    /// Returns its integers as a list.
    pub fn integers(&self) -> Vec<i64> {
        self.values.iter().map(|value| *value as i64).collect()
    }

    /// Reads the values of a tensor of a file.
    pub fn read(tensor: &TensorProto<'_>) -> Result<Constant, Error> {
        let shape = shape(tensor)?;
        let expected: usize = shape.iter().product();
        let refused = |reason: String| Error::new(Kind::File, reason).at(tensor.name());
        if is_elsewhere(tensor) {
            let file = location(tensor);
            return Err(refused(format!(
                "its numbers are in '{file}', expected that file next to the model, or export with external_data=False"
            )));
        }
        if expected > ELEMENTS_MAX {
            let reason =
                format!("a constant of {expected} elements, expected at most {ELEMENTS_MAX}");
            return Err(refused(reason));
        }
        let values = values(tensor).ok_or_else(|| {
            refused(format!("constants of {:?} are not supported", tensor.data_type()))
        })?;
        if values.len() != expected {
            let reason =
                format!("shape {shape:?} has {} elements, expected {expected}", values.len());
            return Err(refused(reason));
        }
        Ok(Constant { shape, values, whole: !is_float(tensor.data_type()) })
    }

    /// Returns the value at a broadcast index, which has as many dimensions or more.
    pub fn at(&self, index: &[usize]) -> f64 {
        let missing = index.len() - self.shape.len();
        let place = index[missing..].iter().zip(&self.shape);
        self.values[place.fold(0, |place, (i, length)| place * length + (i % length.max(&1)))]
    }
}

/// Returns whether a type is a type of real numbers.
pub(crate) fn is_float(kind: DataType) -> bool {
    use DataType::{Bfloat16, Double, Float, Float16};
    matches!(kind, Float | Double | Float16 | Bfloat16)
}

/// Returns the shape of a tensor of a file.
pub(crate) fn shape(tensor: &TensorProto<'_>) -> Result<Vec<usize>, Error> {
    let length = |length: &i64| usize::try_from(*length).ok();
    let shape: Option<Vec<usize>> = tensor.dims().iter().map(length).collect();
    shape.filter(|shape| counted(shape)).ok_or_else(|| {
        let message = format!("{}: shape {:?} is none of a tensor", tensor.name(), tensor.dims());
        Error::new(Kind::File, message)
    })
}

/// Returns whether the number of elements of a shape is within the limit.
pub(crate) fn counted(shape: &[usize]) -> bool {
    let elements = shape.iter().try_fold(1_usize, |n, length| n.checked_mul(*length));
    elements.is_some_and(|elements| elements <= 1 << 48)
}

/// Returns the numbers, from the field that has them.
fn values(tensor: &TensorProto<'_>) -> Option<Vec<f64>> {
    if let Some(bytes) = tensor.as_raw() {
        return raw(tensor.data_type(), bytes);
    }
    let floats = tensor.as_f32().map(|list| list.iter().map(|v| f64::from(*v)).collect());
    let doubles = || tensor.as_f64().map(|list| list.to_vec());
    let longs = || tensor.as_i64().map(|list| list.iter().map(|v| *v as f64).collect());
    let integers = || tensor.as_i32().map(|list| list.iter().map(|v| f64::from(*v)).collect());
    let empty = || tensor.dims().contains(&0).then(Vec::new);
    floats.or_else(doubles).or_else(longs).or_else(integers).or_else(empty)
}

/// Reads numbers from little-endian bytes.
fn raw(kind: DataType, bytes: &[u8]) -> Option<Vec<f64>> {
    fn each<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|bytes| value(*bytes)).collect()
    }
    Some(match kind {
        DataType::Float => each(bytes, |b| f64::from(f32::from_le_bytes(b))),
        DataType::Double => each(bytes, f64::from_le_bytes),
        DataType::Int64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
        DataType::Int32 => each(bytes, |b| f64::from(i32::from_le_bytes(b))),
        DataType::Bool | DataType::Uint8 => each(bytes, |[b]| f64::from(b)),
        _ => return None,
    })
}

/// Returns the number of elements of a shape. Refuses a shape with too many elements.
pub(crate) fn elements(shape: &[usize]) -> Result<usize, Error> {
    let elements = shape.iter().try_fold(1_usize, |n, length| n.checked_mul(*length));
    elements.filter(|n| *n <= ELEMENTS_MAX).ok_or_else(large)
}

/// Returns the error for a node that computes too many numbers.
pub(crate) fn large() -> Error {
    Error::new(Kind::Operands, format!("more than {ELEMENTS_MAX} known numbers"))
}
