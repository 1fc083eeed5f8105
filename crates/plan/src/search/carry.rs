//! Carrying: which gradients are encoded, block by block, where everything else is chosen.
//!
//! Encoding a gradient buys seconds of its stage for a part of the error budget. The budget goes
//! where it counts: to the stage that is last, there to the gradients that save most for what they
//! lose, until that stage hides the rest or the budget is spent. So gradients that backward hides
//! anyway stay as they are. Equal blocks may be done differently here, which the prices of the
//! search, one for all equal blocks, cannot say.
//!
//! Law: what is lost stays within the budget, residuals within the memory, and no stage takes longer than with raw gradients.

use std::ops::Range;

use super::chain::{Chain, Choice};
use super::hull::hull;
use super::outcome::Overlap;
use super::thrift::Treated;
use crate::cost::{Carriage, Cost};

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
        let exposed = cost.sync_s - self.overlap.sync * cost.backward_s;
        self.rounds * cost.micro_s() + exposed.max(cost.handling_s) + cost.optimizer_s
    }

    /// The same of a change, where nothing is hidden.
    fn change(&self, change: &Cost) -> f64 {
        self.rounds * change.micro_s() + change.sync_s + change.optimizer_s
    }
}

/// One more step of encoding: from the step before it of the same gradient to this one.
struct Step {
    treated: Treated,
    change: Cost,
    seconds_per_loss: f64,
}

/// Adds to `treated` what is encoded in stages of these blocks; `costs` of all blocks become what
/// they are with it.
pub fn carry(
    chain: &Chain<'_>,
    choice: &Choice,
    stages: &[Range<usize>],
    terms: &Terms,
    (treated, costs): (&mut Vec<Treated>, &mut [Cost]),
) {
    let steps_of = |blocks| steps(chain, choice, blocks, (terms, treated)).into_iter();
    let mut steps: Vec<_> = stages.iter().map(steps_of).collect();
    let total = |blocks: &Range<usize>| costs[blocks.clone()].iter().copied().sum();
    let mut sums: Vec<Cost> = stages.iter().map(total).collect();
    let (mut left, mut room) = (terms.budget, terms.room.clone());
    while let Some(last) = last(&sums, terms) {
        let now = terms.seconds(&sums[last]);
        let helps = |step: &Step| {
            let changed = [sums[last], step.change].into_iter().sum();
            let fits = step.change.loss <= left && step.change.state_bytes <= room[last];
            fits && terms.seconds(&changed) < now
        };
        let Some(step) = steps[last].find(helps) else { break };
        left -= step.change.loss;
        room[last] -= step.change.state_bytes;
        sums[last] += step.change;
        costs[step.treated.block] += step.change;
        step.treated.put(treated);
    }
}

/// The stage that takes longest.
fn last(sums: &[Cost], terms: &Terms) -> Option<usize> {
    let seconds = |stage: &usize| terms.seconds(&sums[*stage]);
    (0..sums.len()).max_by(|a, b| seconds(a).total_cmp(&seconds(b)))
}

/// All steps within a stage, those that save most for what they lose first.
fn steps(
    chain: &Chain<'_>,
    choice: &Choice,
    blocks: &Range<usize>,
    (terms, treated): (&Terms, &[Treated]),
) -> Vec<Step> {
    let mut all = Vec::new();
    for block in blocks.clone() {
        for carried in chain.carried(choice, block) {
            let tensor = carried.tensor;
            let known = treated.iter().find(|one| (one.block, one.tensor) == (block, tensor));
            let now = known.map_or(Cost::ZERO, |one| one.carriage.change);
            let hull = hull(carried.ways.iter(), now, |at, way| rate(at, way, terms));
            all.extend(hull.into_iter().map(|(carriage, change)| {
                let seconds_per_loss = -terms.change(&change) / change.loss.max(f64::MIN_POSITIVE);
                Step { treated: Treated { block, tensor, carriage }, change, seconds_per_loss }
            }));
        }
    }
    all.sort_by(|a, b| b.seconds_per_loss.total_cmp(&a.seconds_per_loss));
    all
}

/// What a way saves beside another for each element that it loses more; none if it saves nothing,
/// loses less or encodes nothing.
fn rate(at: &Cost, way: &Carriage, terms: &Terms) -> Option<f64> {
    let saved_s = terms.change(at) - terms.change(&way.change);
    let lost = way.change.loss - at.loss;
    let better = way.coding.is_some() && saved_s > 0.0 && lost >= 0.0;
    better.then(|| saved_s / lost.max(f64::MIN_POSITIVE))
}
