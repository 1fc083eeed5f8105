//! The inputs of a file: only batch and sequence may be open dimensions.

use onnx_rs::ast::{DataType, Dimension, TypeValue, ValueInfo};
use thinwire_model::{Element, Error, Kind};

use crate::constant::{Constant, ELEMENTS_MAX, counted, is_float};

/// Largest length of a dimension; a longer one is refused as a mistake.
const LENGTH_MAX: usize = (1 << 31) - 1;

/// Returns the dimensions of an input.
pub(crate) fn dimensions<'a, 'b>(input: &'b ValueInfo<'a>) -> Option<Vec<&'b Dimension<'a>>> {
    let shape = input.tensor_shape()?;
    Some(shape.dim.iter().map(|dim| &dim.value).collect())
}

/// Returns the kind of an input's elements.
pub(crate) fn element(input: &ValueInfo<'_>) -> Result<Element, Error> {
    match input.r#type.as_ref().and_then(|kind| kind.value.as_ref()) {
        Some(TypeValue::Tensor(tensor)) if is_float(tensor.elem_type) => Ok(Element::Float),
        Some(TypeValue::Tensor(tensor)) if tensor.elem_type != DataType::String => {
            Ok(Element::Index)
        }
        _ => {
            let message = "it is no tensor of numbers";
            Err(Error::new(Kind::File, message).at(&named(input)))
        }
    }
}

/// The names of the two dimensions that are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Open<'a> {
    /// The first open first dimension.
    pub batch: Option<&'a str>,
    /// The only other open dimension.
    pub sequence: Option<&'a str>,
}

/// Finds the open dimensions of the inputs.
pub(crate) fn open<'a>(inputs: &[ValueInfo<'a>]) -> Result<Open<'a>, Error> {
    let first = |input: &ValueInfo<'a>| match dimensions(input)?.first()? {
        Dimension::Param(name) => Some(*name),
        Dimension::Value(_) => None,
    };
    let mut open = Open { batch: inputs.iter().find_map(first), sequence: None };
    for input in inputs {
        for (at, dimension) in dimensions(input).unwrap_or_default().into_iter().enumerate() {
            match (dimension, open.sequence) {
                (Dimension::Value(_), _) => {}
                (Dimension::Param(name), _) if Some(*name) == open.batch => {}
                (Dimension::Param(name), None) => open.sequence = Some(*name),
                (Dimension::Param(name), Some(other)) if *name == other => {}
                (Dimension::Param(name), Some(other)) => {
                    let message = format!(
                        "dimension {at} is '{name}', expected the batch or the sequence '{other}'"
                    );
                    return Err(Error::new(Kind::Sizes, message).at(&named(input)));
                }
            }
        }
    }
    Ok(open)
}

/// Returns the length of the first dimension, if it is a number.
pub(crate) fn fixed(input: &ValueInfo<'_>) -> Option<usize> {
    match dimensions(input)?.first()? {
        Dimension::Value(length) => usize::try_from(*length).ok(),
        Dimension::Param(_) => None,
    }
}

/// Returns the shape of an input for a batch and a sequence.
pub(crate) fn shape(
    input: &ValueInfo<'_>,
    open: Open<'_>,
    [batch, sequence]: [usize; 2],
) -> Result<Vec<usize>, Error> {
    let refused = |message: String| Error::new(Kind::Sizes, message).at(&named(input));
    let dimensions = dimensions(input).ok_or_else(|| refused("it has no shape".to_owned()))?;
    let length = |(at, dimension): (usize, &Dimension<'_>)| match dimension {
        Dimension::Param(name) if Some(*name) == open.batch => Ok(batch),
        Dimension::Param(_) => Ok(sequence),
        Dimension::Value(length) => match usize::try_from(*length) {
            Ok(length) if at == 0 && open.batch.is_none() && length != batch => {
                Err(refused(format!(
                    "its batch is always {length}, not {batch}: export the model with an open \
                     first dimension"
                )))
            }
            Ok(length) if length > 0 && length <= LENGTH_MAX => Ok(length),
            _ => {
                let expected = format!("expected 1 to {LENGTH_MAX}");
                Err(refused(format!("dimension {at} is {length} long, {expected}")))
            }
        },
    };
    let shape: Vec<usize> =
        dimensions.into_iter().enumerate().map(length).collect::<Result<_, _>>()?;
    match counted(&shape) {
        true => Ok(shape),
        false => Err(refused(format!("shape {shape:?} is too large to be counted"))),
    }
}

/// Returns the numbers of an input that is a mask of tokens, or that has their positions. Sequences are
/// assumed to be complete, so no token is masked, and positions are in order.
pub(crate) fn known(name: &str, shape: &[usize]) -> Option<Constant> {
    let last = shape.last().copied()?;
    let elements: usize = shape.iter().product();
    let value: fn(usize, usize) -> usize = match name {
        _ if elements > ELEMENTS_MAX => return None,
        _ if name.ends_with("mask") => |_, _| 1,
        _ if name.ends_with("position_ids") => |at, last| at % last,
        _ => return None,
    };
    let values = (0..elements).map(|at| value(at, last) as f64).collect();
    Some(Constant { shape: shape.to_vec(), values, whole: true })
}

fn named(input: &ValueInfo<'_>) -> String {
    format!("input '{}'", input.name)
}
