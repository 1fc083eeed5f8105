//! Capacity: the blocks for which a stage has enough memory once it has made all savings.
//!
//! Law: if a stage has capacity for some blocks, memory fitting makes these blocks fit, and the stage
//! also has capacity for any part of them.

use super::Recompute;
use super::chain::Chosen;
use crate::cost::Cost;
use crate::stage::TransportOptions;

/// Fewest bytes that some blocks need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    /// Parameters and their state, sharded as far as possible.
    state: f64,
    /// Activations of one micro-batch.
    activation: f64,
    /// Checkpoints of one micro-batch, if the forward pass is recomputed.
    checkpoint: f64,
    /// Activations of the largest block while it is recomputed.
    scratch: f64,
}

impl Need {
    /// Returns the least need of every block under a choice. `whole` has the costs of blocks without savings.
    pub fn of_blocks(chosen: Chosen<'_>, whole: &[Cost]) -> Vec<Need> {
        let least = |options: &TransportOptions| {
            // Codecs are chosen once stages fit, and are no means to fit them.
            let raw = options.transports.iter().filter(|way| way.coding.is_none());
            raw.map(|way| way.change.state_bytes).fold(0.0, f64::min)
        };
        let need = |(block, cost): (usize, &Cost)| {
            let divided: f64 = chosen.transport_options(block).map(least).sum();
            let need = Need::of(cost);
            Need { state: need.state + divided, ..need }
        };
        whole.iter().enumerate().map(need).collect()
    }

    /// Returns the need of a block whose parameters are sharded as usual.
    pub fn of(cost: &Cost) -> Need {
        let Cost { state_bytes, activation_bytes, checkpoint_bytes, .. } = *cost;
        Need {
            state: state_bytes,
            activation: activation_bytes,
            checkpoint: checkpoint_bytes,
            scratch: activation_bytes,
        }
    }

    /// Returns the need of two sets of blocks together.
    fn and(self, other: Need) -> Need {
        Need {
            state: self.state + other.state,
            activation: self.activation + other.activation,
            checkpoint: self.checkpoint + other.checkpoint,
            scratch: self.scratch.max(other.scratch),
        }
    }

    /// Returns the bytes with `in_flight` micro-batches, if all blocks recompute or none does.
    fn bytes(self, in_flight: f64, recompute: Recompute) -> f64 {
        let (kept, again) =
            (in_flight * self.activation, in_flight * self.checkpoint + self.scratch);
        self.state
            + match recompute {
                Recompute::Never => kept,
                Recompute::Free => kept.min(again),
                Recompute::Always => again,
            }
    }
}

/// Returns the first block from which the blocks up to `end` fit in `bytes`; `end` if none fits.
pub(super) fn first_that_fits(
    needs: &[Need],
    end: usize,
    bytes: f64,
    in_flight: f64,
    recompute: Recompute,
) -> usize {
    let mut all = Need::default();
    let fits = |need: &&Need| {
        all = all.and(**need);
        all.bytes(in_flight, recompute) <= bytes
    };
    end - needs[..end].iter().rev().take_while(fits).count()
}
