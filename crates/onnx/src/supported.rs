//! Names of the supported operators, and the refusal of all others.

use thinwire_model::{Error, Kind};

/// Supported operators, beside all that can be computed from known numbers.
#[rustfmt::skip]
const SUPPORTED: [&str; 47] = [
    "Add", "Attention", "AveragePool", "BatchNormalization", "Cast", "Concat", "Constant", "Conv", "Div",
    "Dropout", "Erf", "Expand", "Flatten", "Gather", "Gelu", "Gemm", "GlobalAveragePool", "Identity",
    "IsNaN", "LayerNormalization", "LogSoftmax", "MatMul", "Max", "MaxPool", "Mul", "Neg", "PRelu", "Pow",
    "RMSNormalization", "Reciprocal", "ReduceMean", "ReduceSum", "Relu", "Reshape", "RotaryEmbedding",
    "Sigmoid", "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Swish", "Tanh", "Transpose",
    "Unsqueeze", "Where",
];
/// Number of operators that an error names.
const SHOWN: usize = 4;

/// Returns the refusal of an operator.
pub(crate) fn unsupported(operator: &str) -> Error {
    let (count, some) = (SUPPORTED.len(), SUPPORTED[..SHOWN].join(", "));
    let expected =
        format!("expected one of {count}, such as {some}: docs/planning.md has them all");
    Error::new(Kind::Operands, format!("operator {operator} is not supported, {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_all_operators() {
        let docs = include_str!("../../../docs/planning.md");
        let expected = format!("(`{}`)", SUPPORTED.join("`, `"));
        assert!(docs.contains(&expected), "{expected}");
    }
}
