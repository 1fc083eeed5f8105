//! Calls: the nodes of a file, with their inputs and attributes.

use std::collections::{BTreeSet, HashMap};

use onnx_rs::ast::{Attribute, Graph as OnnxGraph, Node};
use thinwire_model::{Error, Graph, Kind, TensorId};

use crate::value::{Value, Weight};

/// A node with its position in the file.
pub(crate) struct Call<'a> {
    /// Name of the operator.
    pub operator: &'a str,
    /// Name of the node in the graph.
    pub name: String,
    pub(super) node: &'a Node<'a>,
    at: usize,
}

impl<'a> Call<'a> {
    /// Returns the node at a position of the file.
    pub fn new(at: usize, node: &'a Node<'a>) -> Call<'a> {
        let named = if node.name.is_empty() { node.output.first() } else { Some(&node.name) };
        let name = named.copied().unwrap_or_default().trim_start_matches('/').replace('/', ".");
        Call { operator: node.op_type.as_str(), name, node, at }
    }

    /// Returns whether its operator is defined by ONNX itself.
    pub fn is_own(&self) -> bool {
        matches!(self.node.domain, "" | "ai.onnx")
    }

    /// Returns whether it has this input.
    pub fn has(&self, index: usize) -> bool {
        self.node.input.get(index).is_some_and(|name| !name.is_empty())
    }

    /// Returns the number of inputs, without empty ones at the end.
    pub fn inputs(&self) -> usize {
        let last = self.node.input.iter().rposition(|name| !name.is_empty());
        last.map_or(0, |last| last + 1)
    }

    /// Returns whether this output has a name, so that it may be read.
    pub fn gives(&self, index: usize) -> bool {
        self.node.output.get(index).is_some_and(|name| !name.is_empty())
    }

    /// Returns the number of outputs.
    pub fn outputs(&self) -> usize {
        self.node.output.len()
    }

    /// Returns an attribute.
    pub fn attribute(&self, name: &str) -> Option<&'a Attribute<'a>> {
        self.node.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// Returns an integer attribute, or the default.
    pub fn integer(&self, name: &str, usual: i64) -> i64 {
        self.attribute(name).map_or(usual, |attribute| attribute.i)
    }

    /// Returns a real attribute, or the default.
    pub fn float(&self, name: &str, usual: f64) -> f64 {
        self.attribute(name).map_or(usual, |attribute| f64::from(attribute.f))
    }

    /// Returns a text attribute, if there is one.
    pub fn text(&self, name: &str) -> Option<&'a [u8]> {
        self.attribute(name).map(|attribute| attribute.s)
    }

    /// Returns an attribute that is a list of integers, if there is one.
    pub fn integers(&self, name: &str) -> Option<&'a [i64]> {
        self.attribute(name).map(|attribute| &attribute.ints[..])
    }

    /// Returns the index of the dimension that the attribute `axis` names.
    pub fn axis(&self, usual: i64, dimensions: usize) -> Result<usize, Error> {
        dimension(self.integer("axis", usual), dimensions)
    }

    /// Returns the position of the node, for errors.
    pub fn place(&self) -> String {
        format!("node {} '{}'", self.at, self.name)
    }
}

/// Returns the index of a dimension, which counts from the end if it is negative.
pub(crate) fn dimension(axis: i64, dimensions: usize) -> Result<usize, Error> {
    let from_start = if axis < 0 { axis + dimensions as i64 } else { axis };
    let found = usize::try_from(from_start).ok().filter(|dim| *dim < dimensions);
    found.ok_or_else(|| {
        refuse(format!("axis {axis} is out of range, expected one of {dimensions} dimensions"))
    })
}

/// Returns the error for a node whose operands are refused.
pub(crate) fn refuse(message: impl Into<String>) -> Error {
    Error::new(Kind::Operands, message)
}

/// An import that is under way: the graph so far, and the value of every name.
pub(crate) struct Importer<'a> {
    /// The node of the file that is being imported.
    pub call: &'a Call<'a>,
    /// The graph so far.
    pub graph: Graph,
    pub(super) file: &'a OnnxGraph<'a>,
    /// Initial values that are not trained, whichever node reads them.
    pub(super) frozen: &'a BTreeSet<String>,
    /// The version of the operators.
    pub version: i64,
    /// The value of every name that was read or written.
    pub(super) values: HashMap<&'a str, Value>,
    /// For every name, the number of node inputs that have it.
    pub(super) uses: HashMap<&'a str, usize>,
    /// The parameter of every weight that was used so far.
    pub(super) made: HashMap<Weight, TensorId>,
}

/// Supported operators, in addition to all that can be folded.
#[rustfmt::skip]
const SUPPORTED: [&str; 47] = [
    "Add", "Attention", "AveragePool", "BatchNormalization", "Cast", "Concat", "Constant", "Conv", "Div",
    "Dropout", "Erf", "Expand", "Flatten", "Gather", "Gelu", "Gemm", "GlobalAveragePool", "Identity",
    "IsNaN", "LayerNormalization", "LogSoftmax", "MatMul", "Max", "MaxPool", "Mul", "Neg", "PRelu", "Pow",
    "RMSNormalization", "Reciprocal", "ReduceMean", "ReduceSum", "Relu", "Reshape", "RotaryEmbedding",
    "Sigmoid", "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Swish", "Tanh", "Transpose",
    "Unsqueeze", "Where",
];
/// Number of operators in an error.
const SHOWN: usize = 4;

/// Returns the error for an operator that is not supported.
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
        let docs = include_str!("../../../../docs/planning.md");
        let expected = format!("(`{}`)", SUPPORTED.join("`, `"));
        assert!(docs.contains(&expected), "{expected}");
    }
}
