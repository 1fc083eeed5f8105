//! Recognises trained values by the names of parameters, and by their roles as weights of operators.

use thinwire_model::{Error, Initial, TensorId};

use super::Importer;
use crate::value::{Value, Weight};

/// Initial values of weights.
pub(crate) const WEIGHT: Initial = Initial::Normal(0.02);

/// Words in the last part of a parameter's name, as frameworks use them.
const WORDS: [&str; 24] = [
    "weight",
    "weights",
    "bias",
    "biases",
    "kernel",
    "gain",
    "gamma",
    "beta",
    "scale",
    "slope",
    "lambda",
    "embed",
    "embedding",
    "embeddings",
    "embd",
    "token",
    "tokens",
    "table",
    "param",
    "parameter",
    "parameters",
    "variable",
    "readvariableop",
    "w",
];

/// Returns whether a name shows that a value is trained, such as `h.0.ln.weight`, `pos_embed` or
/// `in_proj_bias`. Names that an exporter numbers, such as `onnx::Add_12` or `val_7`, show nothing.
pub(super) fn is_trained(name: &str) -> bool {
    let last = name.rsplit(['.', '/']).next().unwrap_or(name).to_lowercase();
    let mut words = last.split(|c: char| !c.is_ascii_alphabetic());
    !last.starts_with("onnx::") && words.any(|word| WORDS.contains(&word))
}

/// Returns the initial value of a parameter of elementwise arithmetic: one for gains, zero for biases.
fn usual(operator: &str, weight: &Weight) -> Initial {
    let one = weight.shape.iter().filter(|length| **length > 1).count() <= 1;
    match operator {
        _ if !one => WEIGHT,
        "Mul" | "Div" => Initial::Ones,
        _ => Initial::Zeros,
    }
}

impl Importer<'_> {
    /// Returns an input that is trained, if the file has numbers for it. Its role in the operator
    /// determines its initial values.
    pub fn learned(&mut self, index: usize, initial: Initial) -> Result<TensorId, Error> {
        match self.weight(index) {
            Some(weight) => self.parameter(&weight, initial),
            None => self.tensor(index),
        }
    }

    /// Returns an input as a tensor.
    pub fn tensor(&mut self, index: usize) -> Result<TensorId, Error> {
        let value = self.known(self.value(index)?.clone())?;
        let name = self.call.node.input[index].to_owned();
        match value {
            Value::Weight(weight) => self.parameter(&weight, usual(self.call.operator, &weight)),
            value => self.tensor_of(&name, value),
        }
    }
}
