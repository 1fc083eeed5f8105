//! Overlap: the part of a step's communication that computing hides.

use crate::cost::Cost;
use crate::pipeline::Schedule;

/// The part of backward that computes gradients of weights.
pub(super) const WEIGHTS: f64 = 0.5;

/// What goes beyond what hides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// Bringing gradients together, beyond the last backward.
    pub sync: bool,
    /// Bringing new parameters home, beyond the next forward.
    pub all_gather: bool,
}

/// What may happen at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// The part of the last backward in which gradients may travel.
    pub sync: f64,
    /// The part of the first forward in which new parameters may.
    pub all_gather: f64,
    /// Whether stages compute while their messages travel.
    pub messages: bool,
    /// Whether exchanges of gradients are under way side by side, so that their latencies do not add
    /// up.
    pub exchanges: bool,
    /// Whether the gradient of a product's input is on its way while that of its weight is computed.
    pub products: bool,
}

impl Exposed {
    /// Both.
    pub const ALL: Exposed = Exposed { sync: true, all_gather: true };
    /// Neither.
    pub const NOTHING: Exposed = Exposed { sync: false, all_gather: false };

    /// What goes beyond in either.
    pub fn or(self, other: Exposed) -> Exposed {
        Exposed { sync: self.sync || other.sync, all_gather: self.all_gather || other.all_gather }
    }
}

impl Overlap {
    /// What happens at the same time under an order of passes: where gradients of weights have passes
    /// of their own, they are not there before the last of these, which is half of backward.
    pub fn under(self, schedule: Schedule) -> Overlap {
        match schedule {
            Schedule::ZeroBubble => Overlap { sync: WEIGHTS * self.sync, ..self },
            _ => self,
        }
    }

    /// Seconds that bringing gradients together takes beyond backward, which hides what does not
    /// take the device's own time. What hides collectives of backward hides nothing else.
    pub fn exposed_s(self, cost: &Cost) -> f64 {
        (cost.sync_s - self.sync * (cost.backward_s - cost.overlapped_s)).max(cost.handling_s)
    }

    /// Seconds after the last micro-batch, once a step.
    pub fn tail_s(self, cost: &Cost) -> f64 {
        self.exposed_s(cost) + cost.optimizer_s
    }

    /// Seconds that bringing new parameters home takes beyond the next forward, which hides the same
    /// of it.
    pub fn exposed_all_gather_s(self, cost: &Cost) -> f64 {
        (cost.all_gather_s - self.all_gather * cost.forward_s).max(cost.all_gather_handling_s)
    }

    /// What of a stage goes beyond what hides it.
    pub fn exposed(self, cost: &Cost) -> Exposed {
        Exposed {
            sync: self.exposed_s(cost) > cost.handling_s,
            all_gather: self.exposed_all_gather_s(cost) > cost.all_gather_handling_s,
        }
    }
}
