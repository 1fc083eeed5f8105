//! Activations that wait for backward, and their layout.
//!
//! The executor of `thinwire train` keeps the tensors that gradients read, as they read them, and
//! draws the random numbers of a dropout again. With the rules of another program the same graph
//! under the same cuts takes as much memory as that program does.

use thinwire_model::{Layout, Operand, Strategy};

use super::{Costs, Work, Written};

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
    /// gathered along the sequence each device's own part (Korthikanti et al., "Reducing Activation
    /// Recomputation in Large Transformer Models", sections 4.1 to 4.3).
    pub const MEGATRON: Keeping = Keeping { mask: 1.0, logits: 2.0, as_written: true };
}

impl Costs<'_> {
    /// Returns the bytes of a device that wait for a node's backward.
    pub(super) fn activation_bytes(&self, work: &Work, strategy: &Strategy) -> f64 {
        let Written { inputs, outputs } = &work.written;
        let (inputs, outputs) = match self.keeping.as_written {
            true => (inputs, outputs),
            false => (&work.kept_inputs, &work.kept_outputs),
        };
        let declaration = &work.declaration;
        let elements = |operand: &Operand, layout: Layout| {
            layout.local_elements(&declaration.shape(operand), &self.mesh) as f64
        };
        let input = |at: &usize| {
            elements(&declaration.inputs[*at], declaration.input_sides(*at, strategy).value)
        };
        let output = |at: &usize| {
            elements(&declaration.outputs[*at], declaration.output_sides(*at, strategy).value)
        };
        let kept: f64 = inputs.iter().map(input).chain(outputs.iter().map(output)).sum();
        let masked: f64 = work.masked.iter().map(output).sum();
        let logits: f64 = work.logits.iter().map(input).sum();
        let Keeping { mask, logits: wider, .. } = self.keeping;
        kept * self.precision.element + masked * mask + logits * wider
    }
}
