//! Room: which blocks a stage has memory for when it gives up for it all that it can.
//!
//! Law: a stage that has room for some blocks fits once thrift is done with it, and has room for
//! a part of them.

use super::chain::{Chain, Choice};
use super::settings::Recompute;
use crate::cost::Cost;
use crate::stage::TransportOptions;

/// The least bytes that some blocks keep.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    /// Parameters and their state, divided as far as can be.
    state: f64,
    /// What waits for backward, of one micro-batch.
    activation: f64,
    /// The same where forward is computed again.
    checkpoint: f64,
    /// What one block keeps at most while it is.
    scratch: f64,
}

impl Need {
    /// What every block needs at least under a choice; `whole` is what blocks cost that give up
    /// nothing.
    pub fn of_blocks((chain, choice): (&Chain<'_>, &Choice), whole: &[Cost]) -> Vec<Need> {
        let least = |options: &TransportOptions| {
            let raw = options.transports.iter().filter(|way| way.coding.is_none());
            raw.map(|way| way.change.state_bytes).fold(0.0, f64::min)
        };
        let need = |(block, cost): (usize, &Cost)| {
            let divided: f64 = chain.transport_options(choice, block).map(least).sum();
            let need = Need::of(cost);
            Need { state: need.state + divided, ..need }
        };
        whole.iter().enumerate().map(need).collect()
    }

    /// What a block needs whose parameters are divided as is usual.
    pub fn of(cost: &Cost) -> Need {
        let Cost { state_bytes, activation_bytes, checkpoint_bytes, .. } = *cost;
        Need {
            state: state_bytes,
            activation: activation_bytes,
            checkpoint: checkpoint_bytes,
            scratch: activation_bytes,
        }
    }

    /// Both together.
    fn and(self, other: Need) -> Need {
        Need {
            state: self.state + other.state,
            activation: self.activation + other.activation,
            checkpoint: self.checkpoint + other.checkpoint,
            scratch: self.scratch.max(other.scratch),
        }
    }

    /// Bytes with so many micro-batches in flight, where all blocks compute again or none does.
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

/// The first of the blocks up to `end` from which on they fit in so many bytes; `end` if none does.
pub(super) fn first_that_fits(
    needs: &[Need],
    end: usize,
    bytes: f64,
    (in_flight, recompute): (f64, Recompute),
) -> usize {
    let mut all = Need::default();
    let fits = |need: &&Need| {
        all = all.and(**need);
        all.bytes(in_flight, recompute) <= bytes
    };
    end - needs[..end].iter().rev().take_while(fits).count()
}
