//! Imports the operators of a file.

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

use thinwire_model::Error;

pub(crate) use pieces::ranges;
pub(crate) use shape::{asked, flat, order, squeezed, unsqueezed};

use crate::import::{Importer, unsupported};
use crate::value::Value;

/// Imports a node, and returns the values of its outputs.
pub(crate) fn visit(importer: &mut Importer<'_>) -> Result<Vec<Value>, Error> {
    let one = |value: Value| vec![value];
    match importer.call.operator {
        "MatMul" => product::matmul(importer).map(one),
        "Gemm" => product::gemm(importer).map(one),
        "Conv" => image::conv(importer).map(one),
        "MaxPool" | "AveragePool" => image::pool(importer).map(one),
        "GlobalAveragePool" => image::global(importer).map(one),
        "BatchNormalization" => image::batch_norm(importer).map(one),
        "LayerNormalization" => norm::layer_norm(importer).map(one),
        "RMSNormalization" | "SimplifiedLayerNormalization" => norm::rms_norm(importer).map(one),
        "Softmax" | "LogSoftmax" => norm::softmax(importer).map(one),
        "ReduceMean" | "ReduceSum" => norm::reduce(importer).map(one),
        "Dropout" => norm::dropout(importer).map(one),
        "Identity" | "Cast" => Ok(one(importer.value(0)?.clone())),
        "Relu" | "Tanh" | "Gelu" | "Sigmoid" | "Erf" | "Sqrt" | "Reciprocal" | "Neg" | "Swish"
        | "IsNaN" => unary::visit(importer).map(one),
        "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Max" => binary::visit(importer).map(one),
        "Attention" if importer.call.is_own() => attention::visit(importer).map(one),
        "RotaryEmbedding" if importer.call.is_own() => rotary::visit(importer).map(one),
        "PRelu" => unary::sloped(importer).map(one),
        "Where" => mask::masked(importer).map(one),
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => shape::reshape(importer).map(one),
        "Transpose" => shape::transpose(importer).map(one),
        "Expand" => shape::expand(importer).map(one),
        "Split" => pieces::split(importer),
        "Concat" => pieces::concat(importer).map(one),
        "Slice" => pieces::slice(importer).map(one),
        "Gather" => pieces::gather(importer).map(one),
        other => Err(unsupported(other)),
    }
}
