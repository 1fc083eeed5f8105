//! The graph: tensors, and the nodes that compute them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Declaration, Error, Kind, Operator};

/// The index of a tensor in its graph.
pub type TensorId = usize;

/// The index of a node in its graph.
pub type NodeId = usize;

/// Largest number of elements of a computed tensor, so that sums over all tensors do not overflow a `usize`.
pub(crate) const ELEMENTS_MAX: usize = 1 << 48;

/// Kind of the elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// Numbers, in the precision that the plan determines.
    Float,
    /// Indices, such as tokens; they have no gradient.
    Index,
}

/// Values of a parameter before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Initial {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// Normal with mean zero and this standard deviation.
    Normal(f64),
}

/// Origin of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// An input, from the data.
    Input,
    /// A trained parameter.
    Parameter(Initial),
    /// An intermediate result, which a node computes.
    Activation,
}

/// A tensor of a concrete size, for one micro-batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Path, such as `block.3.mlp.up.weight`.
    pub name: String,
    /// The lengths of the tensor's dimensions.
    pub shape: Vec<usize>,
    /// Kind of the elements.
    pub element: Element,
    /// Origin: the data, a parameter, or a node.
    pub role: Role,
}

impl Tensor {
    /// Returns the number of its elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// An operator applied to tensors of a graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Path, such as `block.3.mlp.up`.
    pub name: String,
    /// Operator that is applied.
    pub operator: Operator,
    /// Tensors that are read, in the operator's order.
    pub inputs: Vec<TensorId>,
    /// Tensors that are written.
    pub outputs: Vec<TensorId>,
}

/// Nodes that belong together, such as a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Path, such as `block.3`.
    pub name: String,
    /// Indices of the nodes.
    pub nodes: Range<NodeId>,
}

/// A model: its tensors, and its nodes in an order in which they can be computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// All tensors.
    pub tensors: Vec<Tensor>,
    /// All nodes; each node comes after the nodes whose outputs it reads.
    pub nodes: Vec<Node>,
    /// The nodes in blocks, one after the other. A pipeline can be cut between blocks.
    pub blocks: Vec<Block>,
    /// The tensor of one element that training minimises.
    pub loss: Option<TensorId>,
}

impl Graph {
    /// Adds a tensor that no node computes.
    pub fn source(
        &mut self,
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        element: Element,
        role: Role,
    ) -> TensorId {
        self.tensors.push(Tensor { name: name.into(), shape: shape.into(), element, role });
        self.tensors.len() - 1
    }

    /// Adds a node and the tensors that it writes.
    ///
    /// # Errors
    /// If the operator cannot take these inputs, or its outputs are too large for their elements to be
    /// counted.
    pub fn apply(
        &mut self,
        name: impl Into<String>,
        operator: Operator,
        inputs: &[TensorId],
    ) -> Result<Vec<TensorId>, Error> {
        let name = name.into();
        let shapes: Vec<&[usize]> = inputs.iter().map(|id| &self.tensors[*id].shape[..]).collect();
        let declaration = operator.declare(&shapes).map_err(|error| error.at(&name))?;
        check_sizes(&declaration.output_shapes()).map_err(|error| error.at(&name))?;
        let outputs = self.outputs(&name, &declaration);
        self.nodes.push(Node { name, operator, inputs: inputs.to_vec(), outputs: outputs.clone() });
        Ok(outputs)
    }

    /// Declares the operator of a node for the shapes of its inputs.
    pub fn declaration(&self, node: &Node) -> Declaration {
        let shapes: Vec<&[usize]> =
            node.inputs.iter().map(|id| &self.tensors[*id].shape[..]).collect();
        node.operator.declare(&shapes).expect("checked when the node was added")
    }

    /// Returns the node that computes a tensor.
    pub fn producer(&self, tensor: TensorId) -> Option<NodeId> {
        self.nodes.iter().position(|node| node.outputs.contains(&tensor))
    }

    /// Returns, for every tensor, the node that computes it.
    pub fn producers(&self) -> Vec<Option<NodeId>> {
        let mut producers = vec![None; self.tensors.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            node.outputs.iter().for_each(|id| producers[*id] = Some(at));
        }
        producers
    }

    /// Returns, for every tensor, the nodes that read it.
    pub fn readers(&self) -> Vec<Vec<NodeId>> {
        let mut readers = vec![Vec::new(); self.tensors.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|id| readers[*id].push(at));
        }
        readers
    }

    /// Returns the parameters.
    pub fn parameters(&self) -> impl Iterator<Item = (TensorId, &Tensor)> {
        let all = self.tensors.iter().enumerate();
        all.filter(|(_, tensor)| matches!(tensor.role, Role::Parameter(_)))
    }

    fn outputs(&mut self, name: &str, declaration: &Declaration) -> Vec<TensorId> {
        let shapes = declaration.output_shapes();
        let several = shapes.len() > 1;
        let named = declaration.outputs.iter().zip(shapes).map(|(operand, shape)| {
            let name = if several { format!("{name}:{}", operand.name) } else { name.to_owned() };
            (name, shape)
        });
        let sources: Vec<_> = named.collect();
        let add = |(name, shape)| self.source(name, shape, Element::Float, Role::Activation);
        sources.into_iter().map(add).collect()
    }
}

/// Refuses a tensor with more than [`ELEMENTS_MAX`] elements.
pub(crate) fn check_sizes(shapes: &[Vec<usize>]) -> Result<(), Error> {
    let elements = |shape: &[usize]| shape.iter().try_fold(1_usize, |n, size| n.checked_mul(*size));
    let counted = |shape: &&Vec<usize>| elements(shape).is_some_and(|n| n <= ELEMENTS_MAX);
    let Some(shape) = shapes.iter().find(|shape| !counted(shape)) else { return Ok(()) };
    let message = format!("an output of shape {shape:?}, expected at most {ELEMENTS_MAX} elements");
    Err(Error::new(Kind::Sizes, message))
}
