//! Carrying: which gradients are encoded, block by block, where everything else is chosen.
//!
//! Encoding a gradient buys seconds of its stage for a part of the error budget. The budget goes
//! where it counts: to the stage that ends last or takes longest, there to the gradients that save
//! most for what they lose, until that stage hides the rest or the budget is spent. So gradients
//! that backward hides anyway stay as they are. Equal blocks may be done differently here, which the
//! prices of the search, one for all equal blocks, cannot say.
//!
//! Law: what is lost stays within the budget, residuals within the memory, and no stage takes longer
//! than with raw gradients.

use std::collections::HashSet;
use std::ops::Range;

use thinwire_model::TensorId;

use super::chain::{Chain, Choice};
use super::hull::hull;
use super::overlap::{Exposed, Overlap};
use super::savings::ParameterOverride;
use crate::cost::{Cost, GradientTransport};

/// What stages are judged by.
pub struct Terms {
    /// Micro-batches of a step.
    pub rounds: f64,
    /// What may happen at the same time.
    pub overlap: Overlap,
    /// What may be lost, in elements.
    pub budget: f64,
    /// Bytes that are free on the devices of each stage, for residuals.
    pub room: Vec<f64>,
}

impl Terms {
    /// The seconds of a stage in a step.
    fn seconds(&self, cost: &Cost) -> f64 {
        self.rounds * cost.micro_s()
            + self.overlap.tail_s(cost)
            + self.overlap.exposed_all_gather_s(cost)
    }

    /// The same of a change, where of gradients nothing is hidden, and of new parameters nothing or
    /// all.
    fn change(&self, change: &Cost, exposed: Exposed) -> f64 {
        let all_gather_s =
            if exposed.all_gather { change.all_gather_s } else { change.all_gather_handling_s };
        self.rounds * change.micro_s() + change.sync_s + change.optimizer_s + all_gather_s
    }
}

/// One more step of encoding: from the step before it of the same gradient to this one.
struct Upgrade {
    overrides: ParameterOverride,
    change: Cost,
    seconds_per_error: f64,
}

/// Adds to `overrides` what is encoded in stages of these blocks; `costs` of all blocks become what
/// they are with it.
pub fn choose_codecs(
    chain: &Chain<'_>,
    choice: &Choice,
    stages: &[Range<usize>],
    terms: &Terms,
    (overrides, costs): (&mut Vec<ParameterOverride>, &mut [Cost]),
) {
    let total = |blocks: &Range<usize>| costs[blocks.clone()].iter().copied().sum();
    let mut sums: Vec<Cost> = stages.iter().map(total).collect();
    let steps_of = |(blocks, sum): (_, &Cost)| {
        steps((chain, choice), blocks, (terms, overrides), terms.overlap.exposed(sum)).into_iter()
    };
    let mut steps: Vec<_> = stages.iter().zip(&sums).map(steps_of).collect();
    let (mut left, mut room) = (terms.budget, terms.room.clone());
    let mut closed: HashSet<(usize, TensorId)> = HashSet::new();
    loop {
        // A step begins where the one before it of the same gradient ends.
        let mut helps = |stage: usize, step: &Upgrade| {
            let changed = [sums[stage], step.change].into_iter().sum();
            let fits = step.change.codec_error <= left && step.change.state_bytes <= room[stage];
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
        room[stage] -= step.change.state_bytes;
        sums[stage] += step.change;
        costs[step.overrides.block] += step.change;
        step.overrides.put(overrides);
    }
}

/// The stage that is last to end a step after its micro-batches, and the one that takes longest: both
/// make a step longer.
fn last(sums: &[Cost], terms: &Terms) -> [usize; 2] {
    let longest = |seconds: &dyn Fn(&Cost) -> f64| {
        let order = |a: &usize, b: &usize| seconds(&sums[*a]).total_cmp(&seconds(&sums[*b]));
        (0..sums.len()).max_by(order).expect("a plan has a stage")
    };
    [longest(&|cost| terms.overlap.tail_s(cost)), longest(&|cost| terms.seconds(cost))]
}

/// All steps within a stage, those that save most for what they lose first.
fn steps(
    (chain, choice): (&Chain<'_>, &Choice),
    blocks: &Range<usize>,
    (terms, overrides): (&Terms, &[ParameterOverride]),
    exposed: Exposed,
) -> Vec<Upgrade> {
    let mut all = Vec::new();
    for block in blocks.clone() {
        for options in chain.transport_options(choice, block) {
            let tensor = options.tensor;
            let known = overrides.iter().find(|one| (one.block, one.tensor) == (block, tensor));
            let now = known.map_or(Cost::ZERO, |one| one.transport.change);
            let hull =
                hull(options.transports.iter(), now, |at, way| rate(at, way, (terms, exposed)));
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

/// What a way saves beside another for each element that it loses more; none if it saves nothing,
/// loses less or encodes nothing.
fn rate(at: &Cost, way: &GradientTransport, (terms, exposed): (&Terms, Exposed)) -> Option<f64> {
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
        let terms = Terms { rounds: 8.0, overlap, budget: 1.0, room: vec![0.0; 3] };
        let stage = |forward_s, sync_s| Cost { forward_s, sync_s, ..Cost::ZERO };
        let stages = [stage(1.0, 2.0), stage(1.5, 0.0), stage(1.0, 1.0)];
        assert_eq!(last(&stages, &terms), [0, 1]);
    }
}
