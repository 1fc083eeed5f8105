//! Shared parameters: those that several stages use, such as an embedding that is also the head's weight. The
//! first of these stages updates them. Once per step, the others send it their sums and receive the new
//! values.
//!
//! A part of both exchanges overlaps with the computation of the stages in between: compared with the
//! first stage, a later stage ends its last backward pass sooner and begins its first forward pass
//! later.

use super::evaluation::Evaluation;
use super::{Choice, Savings, StageOutcome};
use crate::cost::{Cost, Group, Sharding, message_s};

/// Exchange of one parameter between two stages.
struct SharedParameter {
    owner: usize,
    other: usize,
    sum_bytes: f64,
    value_bytes: f64,
}

impl Evaluation<'_> {
    /// Adds the exposed cost of shared parameters to the stages that update them.
    pub(super) fn price_shared_parameters(
        &self,
        choice: &Choice,
        savings: &Savings,
        stages: &mut [StageOutcome],
    ) {
        for SharedParameter { owner, other, sum_bytes, value_bytes } in
            self.shared(choice, savings, stages)
        {
            let between = &stages[owner..other];
            let passes = |of: &dyn Fn(&Cost) -> f64| {
                between.iter().map(|stage| of(&stage.cost)).sum::<f64>()
            };
            let ways = [
                (sum_bytes, passes(&|cost| cost.backward_s)),
                (value_bytes, passes(&|cost| cost.forward_s)),
            ];
            for (bytes, hidden_s) in ways {
                let exposed_s = self.between_s([owner, other], bytes) - hidden_s;
                stages[owner].shared_parameter_s += exposed_s.max(0.0);
            }
        }
    }

    /// Returns the seconds of a message from one stage to another, over the slowest hop between
    /// neighbours.
    fn between_s(&self, [owner, other]: [usize; 2], bytes: f64) -> f64 {
        let devices = self.candidate.mesh.iter().product();
        let hops = (owner..other).map(|at| Group::next_stage(self.costs.cluster, devices, at));
        hops.map(|hop| message_s(&hop, bytes)).fold(0.0, f64::max)
    }

    /// Returns the exchanges of all shared parameters.
    fn shared(
        &self,
        choice: &Choice,
        savings: &Savings,
        stages: &[StageOutcome],
    ) -> Vec<SharedParameter> {
        let stage_of = |block: usize| stages.iter().position(|stage| stage.blocks.contains(&block));
        let mut shared = Vec::new();
        for users in self.chain.shared() {
            let mut users = users.iter().filter_map(|user| Some((stage_of(user.block)?, user)));
            let Some((owner, _)) = users.next() else { continue };
            let mut known = vec![owner];
            for (other, user) in users {
                // A stage exchanges a parameter once, however many of its blocks use it.
                if known.contains(&other) {
                    continue;
                }
                known.push(other);
                let Some((shape, tensor, sides)) = self.chain.parameter(choice, user) else {
                    continue;
                };
                let usual = self.costs.division.usual();
                let sharding = savings.sharding(user.block, tensor).unwrap_or(usual);
                let bytes = self.costs.bytes(shape, &sides.value);
                // Who updates or keeps only a part of the parameter exchanges only that.
                let part =
                    |least| if sharding >= least { 1.0 / self.costs.sharers(&sides) } else { 1.0 };
                let sum_bytes = bytes * part(Sharding::Optimizer);
                let value_bytes = bytes * part(Sharding::Parameters);
                shared.push(SharedParameter { owner, other, sum_bytes, value_bytes });
            }
        }
        shared
    }
}
