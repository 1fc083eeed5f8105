//! What tensors take on their way from one layout to another, in seconds and in bytes.

use thinwire_model::{Collective, Layout, Sides, Step, conversion};

use super::{Cost, Costs, Sharding};

impl Costs<'_> {
    /// Seconds in which a tensor goes from one layout to another.
    pub fn conversion_s(&self, shape: &[usize], from: &Layout, to: &Layout) -> f64 {
        let Ok(steps) = conversion(shape, &self.mesh, from, to) else { return f64::INFINITY };
        let step = |step: &Step| {
            let bytes = step.elements as f64 * self.precision.element;
            let group = &self.groups[step.mesh_dim];
            match step.collective {
                Collective::Slice { .. } | Collective::Pad { .. } => 0.0,
                Collective::ReduceScatter { .. } | Collective::AllGather { .. } => {
                    self.exchange.scatter_s(group, bytes)
                }
                Collective::AllToAll { .. } => {
                    self.exchange.all_to_all_s(group, bytes / group.size as f64)
                }
                Collective::AllReduce { .. } => self.exchange.all_reduce_s(group, bytes),
            }
        };
        steps.iter().map(step).sum()
    }

    /// Bytes that a device sends in it; infinitely many if it cannot be.
    pub fn conversion_sent(&self, shape: &[usize], from: &Layout, to: &Layout) -> f64 {
        let Ok(steps) = conversion(shape, &self.mesh, from, to) else { return f64::INFINITY };
        let sent = |step: &Step| step.sent(self.mesh[step.mesh_dim]);
        self.precision.element * steps.iter().map(sent).sum::<f64>()
    }

    /// Bytes that a device sends for a parameter, in place of seconds: once a step, or with ZeRO 3
    /// with every micro-batch.
    pub fn parameter_sent(&self, shape: &[usize], sides: &Sides) -> Cost {
        let size = self.sharing(sides).size as f64;
        let bytes = self.bytes(shape, &sides.value) * (size - 1.0) / size;
        match self.sharding {
            Sharding::None | Sharding::Optimizer => Cost { sync_s: 2.0 * bytes, ..Cost::ZERO },
            Sharding::Parameters => {
                Cost { forward_wire_s: bytes, backward_wire_s: 2.0 * bytes, ..Cost::ZERO }
            }
        }
    }
}
