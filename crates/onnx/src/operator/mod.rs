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

use thinwire_model::Error;

pub(crate) use pieces::ranges;
pub(crate) use shape::{asked, flat, order, squeezed, unsqueezed};

use crate::import::{Call, Importer};
use crate::supported::unsupported;
use crate::value::Value;

/// Imports a node, and returns the values of its outputs.
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
