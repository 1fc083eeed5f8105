//! Activations that wait for backward under the rules of another program.
//!
//! The executor of `thinwire train` keeps the tensors that gradients read, as they read them, and
//! draws the random numbers of a dropout again. With the rules of another program the same graph
//! under the same cuts takes as much memory as that program does.

use std::collections::HashMap;

use thinwire_model::{Graph, Layout, NodeId, Operand, Operator, Strategy, TensorId};
use thinwire_plan::search::Class;

/// Rules for activations that wait for backward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Keeping {
    /// Bytes of an element of a dropout's mask; 0 where its random numbers are drawn again.
    pub mask: f64,
    /// Bytes by which an element of the logits is wider than an activation's.
    pub logits: f64,
    /// Whether tensors wait in the layout in which they were written, and are converted again in
    /// backward; that conversion is not priced.
    pub as_written: bool,
}

impl Keeping {
    /// Rules of `thinwire train`.
    pub const OURS: Keeping = Keeping { mask: 0.0, logits: 0.0, as_written: false };
    /// Rules of Megatron in half precision: masks of one byte, logits of four, and of tensors
    /// gathered along the sequence each device's own part (Korthikanti et al., sections 4.1 to 4.3).
    pub const MEGATRON: Keeping = Keeping { mask: 1.0, logits: 2.0, as_written: true };

    /// Returns the bytes of a device that wait for the backward of a block under these strategies,
    /// with `element` bytes for each element of an activation.
    pub fn bytes(
        &self,
        (graph, class): (&Graph, &Class),
        strategies: &HashMap<NodeId, &Strategy>,
        mesh: &[usize],
        element: f64,
    ) -> f64 {
        let elements = |id: NodeId, operand: &Operand, layout: Layout| {
            layout.local_elements(&class.work[&id].declaration.shape(operand), mesh) as f64
        };
        let input = |id: NodeId, at: usize| {
            let declaration = &class.work[&id].declaration;
            let layout = declaration.input_sides(at, strategies[&id]).value;
            elements(id, &declaration.inputs[at], layout)
        };
        let output = |id: NodeId, at: usize| {
            let declaration = &class.work[&id].declaration;
            let layout = declaration.output_sides(at, strategies[&id]).value;
            elements(id, &declaration.outputs[at], layout)
        };
        let made = |id: NodeId| {
            graph.nodes[id].outputs.iter().enumerate().map(move |(at, made)| (*made, (id, at)))
        };
        let makers: HashMap<TensorId, (NodeId, usize)> =
            class.nodes.clone().flat_map(made).collect();
        let read = |id: NodeId, at: usize| match makers.get(&graph.nodes[id].inputs[at]) {
            Some((maker, place)) if self.as_written => output(*maker, *place),
            _ => input(id, at),
        };
        let of_node = |id: NodeId| {
            let work = &class.work[&id];
            let inputs = work.kept_inputs.iter().map(|at| read(id, *at));
            let kept: f64 = inputs.chain(work.kept_outputs.iter().map(|at| output(id, *at))).sum();
            let beside = match graph.nodes[id].operator {
                Operator::Dropout(_) => self.mask * output(id, 0),
                Operator::CrossEntropy(_) => self.logits * input(id, 0),
                _ => 0.0,
            };
            kept * element + beside
        };
        class.nodes.clone().map(of_node).sum()
    }
}
