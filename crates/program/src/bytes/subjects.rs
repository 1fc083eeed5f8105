//! The tensors of the model that tensors of a training graph count for.

use thinwire_model::{NodeId, Origin, TensorId, Training};

use crate::Assignment;

/// Returns for every tensor of a training graph the tensor of the model that it is, or is a gradient
/// of. Other tensors that gradients compute count for the first output of their node of the model.
pub fn subjects(assignment: &Assignment<'_>) -> Vec<TensorId> {
    let Training { graph, origins, gradients } = assignment.training;
    let mut all: Vec<Option<TensorId>> = vec![None; graph.tensors.len()];
    (0..gradients.len()).for_each(|tensor| all[tensor] = Some(tensor));
    // A sum's gradient is that of its terms, too: it counts for the sum.
    for (tensor, gradient) in gradients.iter().enumerate().rev() {
        let mut open: Vec<TensorId> = gradient.iter().copied().collect();
        while let Some(part) = open.pop() {
            if all[part].is_some() {
                continue;
            }
            all[part] = Some(tensor);
            let Some((node, _)) = assignment.producers[part] else { continue };
            if origins[node] == Origin::Accumulate(tensor) {
                open.extend(&graph.nodes[node].inputs);
            }
        }
    }
    let of_node = |node: NodeId| match origins[node] {
        Origin::Gradient(of) => graph.nodes[of].outputs[0],
        Origin::Accumulate(tensor) => tensor,
        Origin::Forward | Origin::Seed => graph.loss.unwrap_or(0),
    };
    let known = |(tensor, subject): (TensorId, Option<TensorId>)| {
        let producer = || assignment.producers[tensor].map_or(tensor, |(node, _)| of_node(node));
        subject.unwrap_or_else(producer)
    };
    all.into_iter().enumerate().map(known).collect()
}
