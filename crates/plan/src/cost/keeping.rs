//! What waits for backward, and in which layout.
//!
//! Our executor keeps what gradients read, as they read it, and draws a dropout's random numbers
//! again. Other programs do otherwise: said here, the same graph under the same cuts takes as much
//! memory as they do.

use thinwire_model::{Layout, Operand, Strategy};

use super::{Costs, Work, Written};

/// What a program keeps beside what gradients read, and as what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Keeping {
    /// Bytes of an element of a dropout's mask; 0 where its random numbers are drawn again.
    pub mask: f64,
    /// Bytes by which an element of the logits is wider than an activation's.
    pub logits: f64,
    /// Whether tensors wait as they were written, and are brought once more in backward to where
    /// they are read; what that takes is not priced.
    pub as_written: bool,
}

impl Keeping {
    /// What our executor keeps.
    pub const OURS: Keeping = Keeping { mask: 0.0, logits: 0.0, as_written: false };
    /// What Megatron keeps in half precision: masks of one byte, logits of four, and of what it
    /// gathers along the sequence each device's own part (Korthikanti et al., "Reducing Activation
    /// Recomputation in Large Transformer Models", sections 4.1 to 4.3).
    pub const MEGATRON: Keeping = Keeping { mask: 1.0, logits: 2.0, as_written: true };
}

impl Costs<'_> {
    /// Bytes of a device that wait for a node's backward.
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
