//! Calls: the nodes of a file, and what they are told.

use onnx_rs::ast::{Attribute, Node};
use thinwire_model::{Error, Kind};

/// A node at its place.
pub(crate) struct Call<'a> {
    /// Name of the operator.
    pub operator: &'a str,
    /// Name of the node in the graph.
    pub name: String,
    pub(super) node: &'a Node<'a>,
    at: usize,
}

impl<'a> Call<'a> {
    /// The node at a place of the file.
    pub fn new(at: usize, node: &'a Node<'a>) -> Call<'a> {
        let named = if node.name.is_empty() { node.output.first() } else { Some(&node.name) };
        let name = named.copied().unwrap_or_default().trim_start_matches('/').replace('/', ".");
        Call { operator: node.op_type.as_str(), name, node, at }
    }

    /// Whether its operator is one of ONNX itself.
    pub fn is_own(&self) -> bool {
        matches!(self.node.domain, "" | "ai.onnx")
    }

    /// Whether there is an input.
    pub fn has(&self, index: usize) -> bool {
        self.node.input.get(index).is_some_and(|name| !name.is_empty())
    }

    /// Returns the number of inputs, without empty ones at the end.
    pub fn inputs(&self) -> usize {
        let last = self.node.input.iter().rposition(|name| !name.is_empty());
        last.map_or(0, |last| last + 1)
    }

    /// Whether something may read an output.
    pub fn gives(&self, index: usize) -> bool {
        self.node.output.get(index).is_some_and(|name| !name.is_empty())
    }

    /// Returns the number of outputs.
    pub fn outputs(&self) -> usize {
        self.node.output.len()
    }

    /// An attribute.
    pub fn attribute(&self, name: &str) -> Option<&'a Attribute<'a>> {
        self.node.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// A whole number, or what it usually is.
    pub fn integer(&self, name: &str, usual: i64) -> i64 {
        self.attribute(name).map_or(usual, |attribute| attribute.i)
    }

    /// A real number, or what it usually is.
    pub fn float(&self, name: &str, usual: f64) -> f64 {
        self.attribute(name).map_or(usual, |attribute| f64::from(attribute.f))
    }

    /// A text, if it is there.
    pub fn text(&self, name: &str) -> Option<&'a [u8]> {
        self.attribute(name).map(|attribute| attribute.s)
    }

    /// A list of whole numbers, if it is there.
    pub fn integers(&self, name: &str) -> Option<&'a [i64]> {
        self.attribute(name).map(|attribute| &attribute.ints[..])
    }

    /// Returns the index of the dimension that the attribute `axis` names.
    pub fn axis(&self, usual: i64, dimensions: usize) -> Result<usize, Error> {
        dimension(self.integer("axis", usual), dimensions)
    }

    /// The place that an error names.
    pub fn place(&self) -> String {
        format!("node {} '{}'", self.at, self.name)
    }
}

/// Returns the index of a dimension, which counts from the end where it is negative.
pub(crate) fn dimension(axis: i64, dimensions: usize) -> Result<usize, Error> {
    let from_start = if axis < 0 { axis + dimensions as i64 } else { axis };
    let found = usize::try_from(from_start).ok().filter(|dim| *dim < dimensions);
    found.ok_or_else(|| refuse(format!("axis {axis} of {dimensions} dimensions")))
}

/// Returns the refusal of a node for its operands.
pub(crate) fn refuse(message: impl Into<String>) -> Error {
    Error::new(Kind::Operands, message)
}
