//! The reference: every operator and whole graphs as plain, slow code in f64.
//!
//! Laws of operators, of gradients and of the executor's kernels are checked against it.
#![allow(dead_code, reason = "several test binaries use parts of it")]

mod attention;
mod elements;
mod images;
mod norms;
mod products;
mod shapes;

use thinwire_model::{Array, Graph, Operator, Region, TensorId};

/// Meaning of an operator.
pub trait Reference {
    /// Computes the outputs for a part of every axis. Inputs are local, and so are the outputs.
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array>;
}

macro_rules! operators {
    ($($case:ident)*) => {
        impl Reference for Operator {
            fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
                match self { $(Operator::$case(operator) => operator.evaluate(inputs, region),)* }
            }
        }
    };
}

operators! {
    Linear MatMul Embedding EmbeddingBackward LayerNorm LayerNormBackward RmsNorm
    RmsNormBackward Softmax SoftmaxBackward Attention AttentionBackward Rotary Activation
    ActivationBackward Arithmetic Scale Sum Broadcast Fill Constant Reshape Transpose Unpack Pack
    Place Dropout Conv2d Conv2dInput Conv2dWeight Moments MomentsBackward BatchNorm
    BatchNormBackward Pool PoolBackward CrossEntropy CrossEntropyBackward Route
    RouteBackward Dispatch Combine CombineGates
}

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
