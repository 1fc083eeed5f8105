//! The operators of a file, and what they are here.

mod attention;
mod binary;
mod formula;
mod image;
mod mask;
mod norm;
mod pieces;
mod product;
mod rotary;
mod shape;
mod unary;

use thinwire_model::{Error, Kind};

pub(crate) use mask::hides;
pub(crate) use pieces::ranges;
pub(crate) use shape::{asked, flat, order, squeezed, unsqueezed};

use crate::import::{Call, Importer};
use crate::value::Value;

/// What is supported, beside all that can be worked out from known numbers.
#[rustfmt::skip]
const SUPPORTED: [&str; 47] = [
    "Add", "Attention", "AveragePool", "BatchNormalization", "Cast", "Concat", "Constant", "Conv", "Div",
    "Dropout", "Erf", "Expand", "Flatten", "Gather", "Gelu", "Gemm", "GlobalAveragePool", "Identity",
    "IsNaN", "LayerNormalization", "LogSoftmax", "MatMul", "Max", "MaxPool", "Mul", "Neg", "PRelu", "Pow",
    "RMSNormalization", "Reciprocal", "ReduceMean", "ReduceSum", "Relu", "Reshape", "RotaryEmbedding",
    "Sigmoid", "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Swish", "Tanh", "Transpose",
    "Unsqueeze", "Where",
];
/// How many of them an error repeats.
const SHOWN: usize = 4;

/// What a node's outputs stand for.
pub(crate) fn visit(importer: &mut Importer<'_>, call: &Call<'_>) -> Result<Vec<Value>, Error> {
    let one = |value: Value| vec![value];
    match call.operator {
        "MatMul" => product::matmul(importer, call).map(one),
        "Gemm" => product::gemm(importer, call).map(one),
        "Conv" => image::conv(importer, call).map(one),
        "MaxPool" | "AveragePool" => image::pool(importer, call).map(one),
        "GlobalAveragePool" => image::global(importer, call).map(one),
        "BatchNormalization" => image::batch_norm(importer, call).map(one),
        "LayerNormalization" => norm::layer_norm(importer, call).map(one),
        "RMSNormalization" | "SimplifiedLayerNormalization" => {
            norm::rms_norm(importer, call).map(one)
        }
        "Softmax" | "LogSoftmax" => norm::softmax(importer, call).map(one),
        "ReduceMean" | "ReduceSum" => norm::reduce(importer, call).map(one),
        "Dropout" => norm::dropout(importer, call).map(one),
        "Identity" | "Cast" => Ok(one(importer.value(call, 0)?.clone())),
        "Relu" | "Tanh" | "Gelu" | "Sigmoid" | "Erf" | "Sqrt" | "Reciprocal" | "Neg" | "Swish"
        | "IsNaN" => unary::visit(importer, call).map(one),
        "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Max" => binary::visit(importer, call).map(one),
        "Attention" if call.is_own() => attention::visit(importer, call).map(one),
        "RotaryEmbedding" if call.is_own() => rotary::visit(importer, call).map(one),
        "PRelu" => unary::sloped(importer, call).map(one),
        "Where" => mask::masked(importer, call).map(one),
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => shape::reshape(importer, call).map(one),
        "Transpose" => shape::transpose(importer, call).map(one),
        "Expand" => shape::expand(importer, call).map(one),
        "Split" => pieces::split(importer, call),
        "Concat" => pieces::concat(importer, call).map(one),
        "Slice" => pieces::slice(importer, call).map(one),
        "Gather" => pieces::gather(importer, call).map(one),
        other => Err(unsupported(other)),
    }
}

/// The refusal of an operator.
pub(crate) fn unsupported(operator: &str) -> Error {
    let (count, some) = (SUPPORTED.len(), SUPPORTED[..SHOWN].join(", "));
    let expected =
        format!("expected one of {count}, such as {some}: docs/planning.md has them all");
    Error::new(Kind::Operands, format!("operator {operator} is not supported, {expected}"))
}

/// A dimension, counted from the end where it is negative.
pub(crate) fn dimension(call: &Call<'_>, axis: i64, dimensions: usize) -> Result<usize, Error> {
    let from_start = if axis < 0 { axis + dimensions as i64 } else { axis };
    let found = usize::try_from(from_start).ok().filter(|dim| *dim < dimensions);
    found.ok_or_else(|| call.refuse(format!("axis {axis} of {dimensions} dimensions")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_all_operators() {
        let docs = include_str!("../../../../docs/planning.md");
        let expected = format!("(`{}`)", SUPPORTED.join("`, `"));
        assert!(docs.contains(&expected), "{expected}");
    }
}
