//! Prices of a block's parts, and the weights of costs in a step.

use thinwire_model::{Cut, Declaration, Layout, NodeId, Sides, Strategy};

use super::Price;
use crate::cost::{Cost, GradientTransport};

/// Prices of strategies and layouts.
pub trait Pricing {
    /// Returns the cost of a node under a strategy, without its parameters and conversions.
    fn node(&self, id: NodeId, declaration: &Declaration, strategy: &Strategy) -> Cost;

    /// Returns the strategies that a node may have.
    fn strategies(&self, id: NodeId, declaration: &Declaration, mesh: &[usize]) -> Vec<Strategy>;

    /// Returns the strategies that a node may have, with their costs. A node without any strategy is
    /// replicated.
    fn options(
        &self,
        id: NodeId,
        declaration: &Declaration,
        mesh: &[usize],
    ) -> (Vec<Strategy>, Vec<Cost>) {
        let mut strategies = self.strategies(id, declaration, mesh);
        if strategies.is_empty() {
            strategies.push(Strategy(vec![Cut::Whole; mesh.len()]));
        }
        let costs = strategies.iter().map(|strategy| self.node(id, declaration, strategy));
        let costs = costs.collect();
        (strategies, costs)
    }

    /// Returns the cost of a parameter in a layout: its state, and the synchronisation of its
    /// gradient.
    fn parameter(&self, shape: &[usize], sides: &Sides) -> Cost;

    /// Returns other ways to shard a parameter and transport its gradient.
    fn transports(&self, shape: &[usize], sides: &Sides) -> Vec<GradientTransport>;

    /// Returns the seconds to convert a tensor, or its gradient, between all pairs of some layouts, ordered
    /// by the first layout, then by the second.
    fn conversions_s(&self, shape: &[usize], from: &[Layout], to: &[Layout]) -> Vec<f64>;

    /// Returns, for every conversion of [`Pricing::conversions_s`], the device's own time in seconds, which
    /// nothing hides; `None` if no collective begins before the device waits for it.
    fn own_s(&self, shape: &[usize], from: &[Layout], to: &[Layout]) -> Option<Vec<f64>>;

    /// Returns the seconds in which a node computes its other gradients after the gradient of this input is
    /// ready.
    fn behind_s(&self, id: NodeId, input: usize, strategy: &Strategy) -> f64;

    /// Returns the cost of keeping the tensor that enters the block.
    fn entry(&self, shape: &[usize], sides: &Sides) -> Cost;
}

/// Conversions of a tensor and of its gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wire {
    /// Conversion in the forward pass, in seconds.
    pub forward_s: f64,
    /// Exposed conversion in the backward pass, in seconds.
    pub backward_s: f64,
    /// Conversion in the backward pass that is overlapped if gradients of weights are computed in the same
    /// pass, in seconds; not part of `backward_s`.
    pub overlapped_s: f64,
}

impl Wire {
    /// Returns the conversions if `behind_s` seconds of computation follow the gradient. This
    /// computation overlaps the backward conversion, except the device's own time.
    pub fn overlapped(self, behind_s: f64, own_s: f64) -> Wire {
        if self.backward_s.is_infinite() {
            return self;
        }
        let overlapped_s = behind_s.min(self.backward_s - own_s).max(0.0);
        Wire { backward_s: self.backward_s - overlapped_s, overlapped_s, ..self }
    }
}

/// Weights of costs in a step and in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Forward computation.
    pub forward: f64,
    /// Collectives of the forward pass.
    pub forward_wire: f64,
    /// Backward computation.
    pub backward: f64,
    /// Exposed collectives of the backward pass.
    pub backward_wire: f64,
    /// Collectives of the backward pass that gradients of weights may overlap.
    pub overlapped: f64,
    /// All-gather of sharded parameters for the forward pass.
    pub gather: f64,
    /// Optimiser, once per step.
    pub step: f64,
    /// Gradient synchronisation, if it is exposed.
    pub sync: f64,
    /// Device time in gradient synchronisation, if the rest is hidden.
    pub handling: f64,
    /// All-gather of updated parameters, if it is exposed.
    pub all_gather: f64,
    /// Device time in the all-gather of updated parameters, if the rest of it is hidden.
    pub all_gather_handling: f64,
    /// Parameters and their state.
    pub state: f64,
    /// Activations.
    pub activation: f64,
    /// Checkpoints.
    pub checkpoint: f64,
    /// Seconds per element of codec error.
    pub codec_error: f64,
}

impl Weights {
    /// Weights that count everything once.
    pub const ONCE: Weights = Weights {
        forward: 1.0,
        forward_wire: 1.0,
        backward: 1.0,
        backward_wire: 1.0,
        overlapped: 0.0,
        gather: 1.0,
        step: 1.0,
        sync: 1.0,
        handling: 0.0,
        all_gather: 1.0,
        all_gather_handling: 0.0,
        state: 1.0,
        activation: 1.0,
        checkpoint: 1.0,
        codec_error: 0.0,
    };

    /// Returns the smallest ratio of any cost's seconds under these weights to its seconds under other
    /// weights.
    pub fn least_part_of(&self, other: &Weights) -> f64 {
        let seconds = |weights: &Weights| {
            let Weights { forward, backward, forward_wire, backward_wire, gather, .. } = *weights;
            let Weights {
                step, sync, handling, all_gather, all_gather_handling, codec_error, ..
            } = *weights;
            let once = [
                step,
                sync,
                handling,
                all_gather,
                all_gather_handling,
                codec_error,
                weights.overlapped,
            ];
            [forward, backward, forward_wire, backward_wire, gather].into_iter().chain(once)
        };
        let part = |(this, other): (f64, f64)| match other > 0.0 {
            true => this / other,
            false if this >= other => f64::INFINITY,
            false => 0.0,
        };
        seconds(self).zip(seconds(other)).map(part).fold(f64::INFINITY, f64::min).max(0.0)
    }

    /// Returns the seconds of the conversions of a tensor and its gradient.
    pub fn wire_s(&self, wire: &Wire) -> f64 {
        let overlapped_s = self.overlapped * wire.overlapped_s;
        self.forward_wire * wire.forward_s + self.backward_wire * wire.backward_s + overlapped_s
    }

    /// Returns the price of a cost.
    pub fn price(&self, cost: &Cost) -> Price {
        let forward = self.forward * cost.forward_s + self.forward_wire * cost.forward_wire_s;
        let back_s =
            self.backward_wire * cost.backward_wire_s + self.overlapped * cost.overlapped_s;
        let backward = self.backward * cost.backward_s + back_s;
        let gather = self.gather * cost.gather_s;
        let sync = self.sync * cost.sync_s + self.handling * cost.handling_s;
        let all_gather = self.all_gather * cost.all_gather_s
            + self.all_gather_handling * cost.all_gather_handling_s;
        let step = self.step * cost.optimizer_s + sync + all_gather;
        let codec_error_s = self.codec_error * cost.codec_error;
        let waiting =
            self.activation * cost.activation_bytes + self.checkpoint * cost.checkpoint_bytes;
        Price {
            seconds: forward + gather + backward + step + codec_error_s,
            bytes: self.state * cost.state_bytes + waiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_hides_behind_what_is_computed_but_for_the_devices_own_time() {
        let wire = Wire { forward_s: 1.0, backward_s: 5.0, overlapped_s: 0.0 };
        let parts = |behind_s, own_s| {
            let Wire { backward_s, overlapped_s, .. } = wire.overlapped(behind_s, own_s);
            [backward_s, overlapped_s]
        };
        assert_eq!(parts(3.0, 1.0), [2.0, 3.0]);
        assert_eq!(parts(9.0, 1.0), [1.0, 4.0]);
        assert_eq!(parts(9.0, 6.0), [5.0, 0.0]);
        let never = Wire { backward_s: f64::INFINITY, ..wire };
        assert_eq!(never.overlapped(3.0, f64::INFINITY), never);
    }

    proptest::proptest! {
        #[test]
        fn no_cost_takes_less_than_the_least_part(
            weights in proptest::collection::vec((0.0_f64..2.0, 0.0_f64..2.0), 4),
            seconds in proptest::collection::vec(0.0_f64..9.0, 4),
        ) {
            let [forward, backward, gather, sync] = weights[..] else { unreachable!("four") };
            let of = |forward, backward, gather, sync| Weights { forward, backward, gather, sync, ..Weights::ONCE };
            let this = of(forward.0, backward.0, gather.0, sync.0);
            let other = of(forward.1, backward.1, gather.1, sync.1);
            let [forward_s, backward_s, gather_s, sync_s] = seconds[..] else { unreachable!("four") };
            let cost = Cost { forward_s, backward_s, gather_s, sync_s, ..Cost::ZERO };
            let least_s = this.least_part_of(&other) * other.price(&cost).seconds;
            proptest::prop_assert!(this.price(&cost).seconds >= least_s * (1.0 - 1e-9));
        }
    }
}
