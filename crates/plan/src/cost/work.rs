//! The work of a block: the computation of its nodes and of their gradients, and the activations that the
//! nodes keep.
//!
//! Work is determined once for each class of blocks; [`super::Costs`] prices it on a mesh.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use thinwire_model::{
    Cut, Declaration, Node, NodeId, Operator, Origin, Role, Strategy, TensorId, Training,
};

/// Work of one node.
#[derive(Clone, Debug)]
pub struct Work {
    /// Declaration of the node.
    pub declaration: Declaration,
    /// Kind of computation.
    pub kind: WorkKind,
    /// Name of the operator.
    pub operator: &'static str,
    /// Nodes that compute gradients of the node's inputs, in order.
    pub gradients: Vec<Gradient>,
    /// For every input, the number of gradient nodes up to the node that completes the input's gradient.
    pub before: Vec<usize>,
    /// Inputs that are kept for the backward pass. Each input is counted only with the first node that
    /// reads it.
    pub kept_inputs: Vec<usize>,
    /// Outputs that are kept for the backward pass and do not count as kept inputs of any node that reads
    /// them.
    pub kept_outputs: Vec<usize>,
    /// Cuts that the user has chosen.
    pub pinned: Vec<Pinned>,
}

/// Node that computes a gradient of another node's inputs.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// Declaration of the node.
    pub declaration: Declaration,
    /// Kind of computation.
    pub kind: WorkKind,
    /// Name of the operator.
    pub operator: &'static str,
}

/// Cut that the user has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// Mesh dimension.
    pub dim: usize,
    /// Cut of the operator on this dimension.
    pub cut: Cut,
}

impl Pinned {
    /// Returns whether a strategy has this cut.
    pub fn holds(&self, strategy: &Strategy) -> bool {
        strategy.0.get(self.dim) == Some(&self.cut)
    }
}

/// Resource that limits an operator's speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// Arithmetic, as in matrix products, on units made for it.
    Product,
    /// Memory bandwidth.
    Memory,
    /// Nothing: the result is another view of the same elements.
    View,
}

impl WorkKind {
    /// Returns the resource that limits an operator's speed.
    pub fn of(operator: &Operator) -> WorkKind {
        match operator {
            Operator::Linear(_)
            | Operator::MatMul(_)
            | Operator::Attention(_)
            | Operator::AttentionBackward(_)
            | Operator::Conv2d(_)
            | Operator::Conv2dInput(_)
            | Operator::Conv2dWeight(_) => WorkKind::Product,
            Operator::Reshape(_)
            | Operator::Unpack(_)
            | Operator::Pack(_)
            | Operator::Fill(_)
            | Operator::Constant(_)
            | Operator::Place(_) => WorkKind::View,
            _ => WorkKind::Memory,
        }
    }
}

/// Returns the work of some nodes.
pub fn work(training: &Training, nodes: Range<NodeId>) -> HashMap<NodeId, Work> {
    let graph = &training.graph;
    let terms = terms(training);
    let mut gradients: HashMap<NodeId, Vec<&Node>> = HashMap::new();
    for (node, origin) in graph.nodes.iter().zip(&training.origins) {
        if let Origin::Gradient(of) = origin
            && nodes.contains(of)
        {
            gradients.entry(*of).or_default().push(node);
        }
    }
    let declared = |node: &&Node| Gradient {
        declaration: graph.declaration(node),
        kind: WorkKind::of(&node.operator),
        operator: node.operator.name(),
    };
    let mut counted: HashSet<TensorId> = HashSet::new();
    let mut all = HashMap::new();
    for id in nodes {
        let node = &graph.nodes[id];
        let backward = gradients.remove(&id).unwrap_or_default();
        let reads: HashSet<TensorId> =
            backward.iter().flat_map(|node| &node.inputs).copied().collect();
        let waits = |tensor: &TensorId| {
            reads.contains(tensor) && graph.tensors[*tensor].role == Role::Activation
        };
        let mut kept = |tensors: &[TensorId]| {
            let places = tensors.iter().enumerate();
            let places = places.filter(|(_, tensor)| waits(tensor) && counted.insert(**tensor));
            places.map(|(place, _)| place).collect::<Vec<_>>()
        };
        let (kept_inputs, kept_outputs) = (kept(&node.inputs), kept(&node.outputs));
        let before = |tensor: &TensorId| {
            let of = |made: &TensorId| terms.get(made) == Some(tensor);
            let maker = backward.iter().position(|node| node.outputs.iter().any(of));
            maker.map_or(backward.len(), |maker| maker + 1)
        };
        let work = Work {
            declaration: graph.declaration(node),
            kind: WorkKind::of(&node.operator),
            operator: node.operator.name(),
            gradients: backward.iter().map(declared).collect(),
            before: node.inputs.iter().map(before).collect(),
            kept_inputs,
            kept_outputs,
            pinned: Vec::new(),
        };
        all.insert(id, work);
    }
    all
}

/// Returns, for every gradient and every term of one, the tensor whose gradient it is.
fn terms(training: &Training) -> HashMap<TensorId, TensorId> {
    let whole = training.gradients.iter().enumerate();
    let whole = whole.filter_map(|(of, gradient)| Some(((*gradient)?, of)));
    let nodes = training.graph.nodes.iter().zip(&training.origins);
    let sums = nodes.filter_map(|(node, origin)| match origin {
        Origin::Accumulate(of) => Some(node.inputs.iter().map(|term| (*term, *of))),
        _ => None,
    });
    sums.flatten().chain(whole).collect()
}
