//! The form of a file and its nodes: versions, domains, and the numbers of inputs.
//!
//! The meaning of an operator depends on the version. So files with unknown versions are refused, and so are
//! inputs and attributes that are unknown for an operator.

use std::ops::RangeInclusive;

use onnx_rs::ast::Model;
use thinwire_model::{Error, Kind};

use super::unsupported;
use super::{Importer, refuse};
use crate::value::Value;

/// Supported versions of the operators.
const OPERATORS: RangeInclusive<i64> = 6..=25;
/// Supported versions of the file's format.
const FORMATS: RangeInclusive<i64> = 3..=13;
/// Operators that other programs have added, and whose names have a fixed meaning.
const ADDED: [&str; 3] = ["Gelu", "LayerNormalization", "SimplifiedLayerNormalization"];
/// Target types of a cast, and the one of them that is text.
const TYPES: RangeInclusive<i64> = 1..=24;
const TEXT: i64 = 8;

/// Returns the version of the operators.
pub(super) fn version(model: &Model<'_>) -> Result<i64, Error> {
    let file = |message: String| Error::new(Kind::File, message);
    let (format, [first, last]) = (model.ir_version, [FORMATS.start(), FORMATS.end()]);
    if !FORMATS.contains(&format) {
        return Err(file(format!("the file is of version {format}, expected {first} to {last}")));
    }
    let own = model.opset_import.iter().find(|set| matches!(set.domain, "" | "ai.onnx"));
    let version = own.map_or(0, |set| set.version);
    match OPERATORS.contains(&version) {
        true => Ok(version),
        false => {
            let (first, last) = (OPERATORS.start(), OPERATORS.end());
            let found = format!("operators of version {version}");
            Err(file(format!(
                "{found}, expected {first} to {last}: export the model for one of \
                these versions"
            )))
        }
    }
}

/// Refuses a node whose operator is not ONNX's, or that has unknown inputs or attributes.
pub(super) fn check(importer: &Importer<'_>) -> Result<(), Error> {
    let call = importer.call;
    let added = call.node.domain == "com.microsoft" && ADDED.contains(&call.operator);
    if !call.is_own() && !added {
        return Err(unsupported(&format!("{}.{}", call.node.domain, call.operator)));
    }
    let (inputs, known) = (call.inputs(), inputs(call.operator, importer.version));
    if !known.contains(&inputs) {
        let (least, most) = (known.start(), known.end());
        let expected = if least == most { format!("{most}") } else { format!("{least} to {most}") };
        return Err(refuse(format!("it has {inputs} inputs, expected {expected}")));
    }
    let pair = matches!(call.operator, "Add" | "Sub" | "Mul" | "Div" | "Pow");
    if let (true, Some(axis)) = (pair, call.attribute("axis")) {
        let message = format!(
            "its second input begins at axis {}, expected it to be aligned with the last axis",
            axis.i
        );
        return Err(refuse(message));
    }
    let to = call.integer("to", 0);
    if call.operator == "Cast" && (to == TEXT || !TYPES.contains(&to)) {
        return Err(refuse(format!("a cast to type {to}, expected a type of numbers")));
    }
    Ok(())
}

/// Refuses products with integers from the file, since weights are real numbers.
pub(super) fn check_weights(importer: &Importer<'_>) -> Result<(), Error> {
    if !matches!(importer.call.operator, "MatMul" | "Gemm" | "Conv") {
        return Ok(());
    }
    for name in &importer.call.node.input {
        if let Some(Value::Constant(constant)) = importer.values.get(name)
            && constant.whole
        {
            return Err(refuse(format!("input '{name}' has whole numbers, expected real ones")));
        }
    }
    Ok(())
}

/// Returns the numbers of inputs that an operator may have. Inputs that are missing at the end are reported
/// when they are read.
fn inputs(operator: &str, version: i64) -> RangeInclusive<usize> {
    match operator {
        "Constant" => 0..=0,
        "MaxPool" | "AveragePool" | "GlobalAveragePool" | "Softmax" | "LogSoftmax" | "Identity"
        | "Cast" | "Relu" | "Tanh" | "Gelu" | "Sigmoid" | "Erf" | "Sqrt" | "Reciprocal" | "Neg"
        | "Swish" | "IsNaN" | "Flatten" | "Transpose" | "Shape" | "Size" | "ConstantOfShape" => {
            1..=1
        }
        "MatMul" | "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Reshape" | "Expand" | "Gather" => 2..=2,
        "PRelu" => 2..=2,
        "Where" => 3..=3,
        "RotaryEmbedding" => 3..=4,
        "BatchNormalization" => 5..=5,
        "Gemm" | "Conv" | "LayerNormalization" => 2..=3,
        "Slice" if version >= 10 => 3..=5,
        "Slice" => 1..=1,
        "ReduceMean" | "ReduceSum" | "Squeeze" | "Unsqueeze" | "Split" => 1..=2,
        "Dropout" => 1..=3,
        "Max" | "Concat" => 1..=usize::MAX,
        _ => 0..=usize::MAX,
    }
}
