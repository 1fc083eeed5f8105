//! The reference: what a graph means, worked out node by node in f64.

use crate::{Array, Graph, Region, TensorId};

/// The values of all tensors, from those that no node computes.
///
/// # Panics
/// If a tensor is missing that no node computes, or has another shape than the graph says.
pub fn evaluate(graph: &Graph, sources: &[(TensorId, Array)]) -> Vec<Array> {
    let mut values: Vec<Option<Array>> = vec![None; graph.tensors.len()];
    for (id, value) in sources {
        assert_eq!(value.shape(), graph.tensors[*id].shape, "{}", graph.tensors[*id].name);
        values[*id] = Some(value.clone());
    }
    for node in &graph.nodes {
        let declaration = graph.declaration(node);
        let name = |id: &TensorId| &graph.tensors[*id].name;
        let input =
            |id: &TensorId| values[*id].as_ref().unwrap_or_else(|| panic!("no {}", name(id)));
        let inputs: Vec<&Array> = node.inputs.iter().map(input).collect();
        let outputs = node.operator.evaluate(&inputs, &Region::whole(&declaration));
        for (id, value) in node.outputs.iter().zip(outputs) {
            values[*id] = Some(value);
        }
    }
    let whole = |(id, value): (usize, Option<Array>)| {
        value.unwrap_or_else(|| panic!("no {}", graph.tensors[id].name))
    };
    values.into_iter().enumerate().map(whole).collect()
}
