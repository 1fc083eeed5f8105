//! Overlap of communication and computation, and the part of communication that stays exposed.

use crate::cost::Cost;
use crate::pipeline::Schedule;

/// Part of the backward pass that computes gradients of weights.
pub(super) const WEIGHTS: f64 = 0.5;

/// Communication that takes longer than the computation that overlaps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// Gradient synchronisation is exposed: it takes longer than the last backward pass.
    pub sync: bool,
    /// The all-gather of updated parameters is exposed: it takes longer than the next forward pass.
    pub all_gather: bool,
}

/// Computation and communication that may take place at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// Part of the last backward pass that overlaps gradient synchronisation.
    pub sync: f64,
    /// Part of the first forward pass that overlaps the all-gather of updated parameters.
    pub all_gather: f64,
    /// Whether stages compute while their messages are being sent.
    pub messages: bool,
    /// Whether gradient exchanges run side by side, so that their latencies do not add up.
    pub exchanges: bool,
    /// Whether the gradient of a product's input is sent while the gradient of its weight is computed.
    pub products: bool,
}

impl Exposed {
    /// Both kinds of communication are exposed.
    pub const ALL: Exposed = Exposed { sync: true, all_gather: true };
    /// No communication is exposed.
    pub const NOTHING: Exposed = Exposed { sync: false, all_gather: false };

    /// Returns the communication that is exposed in at least one of the two.
    pub fn or(self, other: Exposed) -> Exposed {
        Exposed { sync: self.sync || other.sync, all_gather: self.all_gather || other.all_gather }
    }
}

impl Overlap {
    /// Returns the overlap under a schedule. Zero-bubble computes gradients of weights in separate passes, so
    /// gradients are complete only in the last of these, which are half of the backward pass.
    pub fn under(self, schedule: Schedule) -> Overlap {
        match schedule {
            Schedule::ZeroBubble => Overlap { sync: WEIGHTS * self.sync, ..self },
            _ => self,
        }
    }

    /// Returns the seconds of gradient synchronisation beyond the backward pass. The device's own time for it
    /// is never hidden, and computation that overlaps collectives of the backward pass overlaps nothing else.
    pub fn exposed_sync_s(self, cost: &Cost) -> f64 {
        (cost.sync_s - self.sync * (cost.backward_s - cost.overlapped_s)).max(cost.handling_s)
    }

    /// Returns the seconds that a step takes after its last micro-batch.
    pub fn tail_s(self, cost: &Cost) -> f64 {
        self.exposed_sync_s(cost) + cost.optimizer_s
    }

    /// Returns the seconds of the all-gather of updated parameters beyond the next forward pass, and at least
    /// the device's own time for it.
    pub fn exposed_all_gather_s(self, cost: &Cost) -> f64 {
        (cost.all_gather_s - self.all_gather * cost.forward_s).max(cost.all_gather_handling_s)
    }

    /// Returns the communication of a stage that is exposed.
    pub fn exposed(self, cost: &Cost) -> Exposed {
        Exposed {
            sync: self.exposed_sync_s(cost) > cost.handling_s,
            all_gather: self.exposed_all_gather_s(cost) > cost.all_gather_handling_s,
        }
    }
}
