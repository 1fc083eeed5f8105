//! Codec choice: selects the gradients that are encoded, block by block, after everything else is chosen.
//!
//! Encoding a gradient saves seconds of its stage and uses a part of the error budget. The budget is spent
//! gradient by gradient where it shortens the step: on the stage that ends last, or else on the stage that
//! takes longest, and there on the gradient that saves the most for its codec error. The choice ends when
//! no further encoding makes one of these two stages faster within budget and memory. Gradients that the
//! backward pass hides anyway stay raw. Here, equal blocks may get different codecs. The search itself
//! cannot express this, since its prices are the same for all equal blocks.
//!
//! Law: codec error stays within the budget, residuals stay within the memory, and no stage takes longer than
//! with raw gradients.

use std::collections::HashSet;
use std::ops::Range;

use thinwire_model::TensorId;

use super::chain::Chosen;
use super::{Exposed, Overlap, ParameterOverride};
use crate::cost::{Cost, GradientTransport, hull};

/// Settings by which stages are judged.
pub struct Terms {
    /// Micro-batches of a step.
    pub rounds: f64,
    /// Computation and communication that overlap.
    pub overlap: Overlap,
    /// Codec error that is allowed, in elements of parameters.
    pub budget: f64,
    /// Free memory on the devices of each stage, for residuals, in bytes.
    pub free_bytes: Vec<f64>,
}

impl Terms {
    /// Returns the seconds of a stage in a step.
    fn seconds(&self, cost: &Cost) -> f64 {
        self.rounds * cost.micro_s()
            + self.overlap.tail_s(cost)
            + self.overlap.exposed_all_gather_s(cost)
    }

    /// Returns the seconds of a change, assuming that gradient synchronisation is not hidden, and that
    /// the all-gather is hidden either completely or not at all.
    fn change(&self, change: &Cost, exposed: Exposed) -> f64 {
        let all_gather_s =
            if exposed.all_gather { change.all_gather_s } else { change.all_gather_handling_s };
        self.rounds * change.micro_s() + change.sync_s + change.optimizer_s + all_gather_s
    }
}

/// Upgrade of one gradient from its transport to the next.
struct Upgrade {
    overrides: ParameterOverride,
    change: Cost,
    seconds_per_error: f64,
}

/// Adds the gradients that are encoded in stages of these blocks to `overrides`, and updates the `costs` of
/// all blocks.
pub fn choose_codecs(
    chosen: Chosen<'_>,
    stages: &[Range<usize>],
    terms: &Terms,
    overrides: &mut Vec<ParameterOverride>,
    costs: &mut [Cost],
) {
    let total = |blocks: &Range<usize>| costs[blocks.clone()].iter().copied().sum();
    let mut sums: Vec<Cost> = stages.iter().map(total).collect();
    let steps_of = |(blocks, sum): (_, &Cost)| {
        steps(chosen, blocks, terms, overrides, terms.overlap.exposed(sum)).into_iter()
    };
    let mut steps: Vec<_> = stages.iter().zip(&sums).map(steps_of).collect();
    let (mut left, mut free_bytes) = (terms.budget, terms.free_bytes.clone());
    let mut closed: HashSet<(usize, TensorId)> = HashSet::new();
    loop {
        // An upgrade begins where the one before it of the same gradient ends, so a refused one
        // closes the gradient.
        let mut helps = |stage: usize, step: &Upgrade| {
            let changed = [sums[stage], step.change].into_iter().sum();
            let fits =
                step.change.codec_error <= left && step.change.state_bytes <= free_bytes[stage];
            let of = (step.overrides.block, step.overrides.tensor);
            let faster = terms.seconds(&changed) < terms.seconds(&sums[stage]);
            let helps = !closed.contains(&of) && fits && faster;
            if !helps {
                closed.insert(of);
            }
            helps
        };
        let mut next = |stage: usize| Some((stage, steps[stage].find(|one| helps(stage, one))?));
        let Some((stage, step)) = last(&sums, terms).into_iter().find_map(&mut next) else { break };
        left -= step.change.codec_error;
        free_bytes[stage] -= step.change.state_bytes;
        sums[stage] += step.change;
        costs[step.overrides.block] += step.change;
        step.overrides.put(overrides);
    }
}

/// Returns the stage that ends the step last after its micro-batches, and the stage that takes longest, since
/// both lengthen a step.
fn last(sums: &[Cost], terms: &Terms) -> [usize; 2] {
    let longest = |seconds: &dyn Fn(&Cost) -> f64| {
        let order = |a: &usize, b: &usize| seconds(&sums[*a]).total_cmp(&seconds(&sums[*b]));
        (0..sums.len()).max_by(order).expect("a plan has a stage")
    };
    [longest(&|cost| terms.overlap.tail_s(cost)), longest(&|cost| terms.seconds(cost))]
}

/// Returns all upgrades within a stage. Those that save the most for their codec error come first.
fn steps(
    chosen: Chosen<'_>,
    blocks: &Range<usize>,
    terms: &Terms,
    overrides: &[ParameterOverride],
    exposed: Exposed,
) -> Vec<Upgrade> {
    let mut all = Vec::new();
    for block in blocks.clone() {
        for options in chosen.transport_options(block) {
            let tensor = options.tensor;
            let known = overrides.iter().find(|one| (one.block, one.tensor) == (block, tensor));
            let now = known.map_or(Cost::ZERO, |one| one.transport.change);
            let hull =
                hull(options.transports.iter(), now, |at, way| rate(at, way, terms, exposed));
            all.extend(hull.into_iter().map(|(transport, change)| {
                let seconds_per_error =
                    -terms.change(&change, exposed) / change.codec_error.max(f64::MIN_POSITIVE);
                Upgrade {
                    overrides: ParameterOverride { block, tensor, transport },
                    change,
                    seconds_per_error,
                }
            }));
        }
    }
    all.sort_by(|a, b| b.seconds_per_error.total_cmp(&a.seconds_per_error));
    all
}

/// Returns the seconds that a transport saves over another one, per element of codec error; `None` if it
/// saves nothing, has a smaller error, or encodes nothing.
fn rate(at: &Cost, way: &GradientTransport, terms: &Terms, exposed: Exposed) -> Option<f64> {
    let saved_s = terms.change(at, exposed) - terms.change(&way.change, exposed);
    let lost = way.change.codec_error - at.codec_error;
    let better = way.coding.is_some() && saved_s > 0.0 && lost >= 0.0;
    better.then(|| saved_s / lost.max(f64::MIN_POSITIVE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::Settings;

    #[test]
    fn what_ends_last_counts_beside_what_takes_longest() {
        let overlap = Settings::default().overlap;
        let terms = Terms { rounds: 8.0, overlap, budget: 1.0, free_bytes: vec![0.0; 3] };
        let stage = |forward_s, sync_s| Cost { forward_s, sync_s, ..Cost::ZERO };
        let stages = [stage(1.0, 2.0), stage(1.5, 0.0), stage(1.0, 1.0)];
        assert_eq!(last(&stages, &terms), [0, 1]);
    }
}
