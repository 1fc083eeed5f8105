//! Removal of the nodes and tensors that the output does not depend on.

use thinwire_model::{Graph, Node, TensorId};

/// The graph with only what an output depends on, and the output in it.
pub(crate) fn prune(graph: &Graph, output: TensorId) -> (Graph, TensorId) {
    let mut needed = vec![false; graph.tensors.len()];
    needed[output] = true;
    let mut kept: Vec<&Node> = Vec::new();
    for node in graph.nodes.iter().rev() {
        if node.outputs.iter().any(|id| needed[*id]) {
            node.inputs.iter().chain(&node.outputs).for_each(|id| needed[*id] = true);
            kept.push(node);
        }
    }
    let mut pruned = Graph::default();
    let mut places = vec![0; graph.tensors.len()];
    for (id, tensor) in graph.tensors.iter().enumerate().filter(|(id, _)| needed[*id]) {
        places[id] = pruned.tensors.len();
        pruned.tensors.push(tensor.clone());
    }
    let moved = |ids: &[TensorId]| ids.iter().map(|id| places[*id]).collect();
    let node = |node: &Node| Node {
        inputs: moved(&node.inputs),
        outputs: moved(&node.outputs),
        ..node.clone()
    };
    pruned.nodes = kept.into_iter().rev().map(node).collect();
    (pruned, places[output])
}
