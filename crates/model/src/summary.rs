//! A summary of a model's size and costs.

use crate::{Error, Graph, backward, classes};

/// Sizes and costs of a model, for one micro-batch on one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Elements of all parameters.
    pub parameters: usize,
    /// Nodes of the model.
    pub nodes: usize,
    /// Blocks of the model.
    pub blocks: usize,
    /// Number of classes of equal blocks.
    pub classes: usize,
    /// Flops of the forward pass.
    pub forward_flops: f64,
    /// Flops of the backward pass.
    pub backward_flops: f64,
    /// Elements that the forward pass computes.
    pub activations: usize,
    /// Elements of the activations that the forward pass keeps for the backward pass.
    pub kept_activations: usize,
}

/// Returns a model's summary.
///
/// # Errors
/// If it has no gradients.
pub fn summary(graph: &Graph) -> Result<Summary, Error> {
    let training = backward(graph)?;
    let flops = |graph: &Graph| -> f64 {
        graph.nodes.iter().map(|node| graph.declaration(node).flops).sum()
    };
    let forward_flops = flops(graph);
    let elements = |id: usize| graph.tensors[id].elements();
    let computed = graph.nodes.iter().flat_map(|node| &node.outputs);
    Ok(Summary {
        parameters: graph.parameters().map(|(_, tensor)| tensor.elements()).sum(),
        nodes: graph.nodes.len(),
        blocks: graph.blocks.len(),
        classes: classes(graph).len(),
        forward_flops,
        backward_flops: flops(&training.graph) - forward_flops,
        activations: computed.map(|id| elements(*id)).sum(),
        kept_activations: training.saved_activations().into_iter().map(elements).sum(),
    })
}
