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

use thinwire_model::TensorId;

use super::candidate::Candidate;
use super::chain::{Chain, Choice};
use super::outcome::Overlap;
use crate::cost::{Carriage, Cost, Sharding};

/// A gradient that is encoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coded {
    /// The block.
    pub block: usize,
    /// The parameter, as the first block of the class calls it.
    pub tensor: TensorId,
    /// How its gradient travels.
    pub carriage: Carriage,
}

/// What stages are judged by.
pub struct Terms<'a> {
    /// What was fixed before.
    pub candidate: &'a Candidate,
    /// How often forward is computed.
    pub forwards: f64,
    /// What may happen at the same time.
    pub overlap: Overlap,
    /// What may be lost, in elements.
    pub budget: f64,
    /// Bytes that are free on the devices of each stage, for residuals.
    pub room: Vec<f64>,
}

impl Terms<'_> {
    /// The seconds of a stage that encoding shortens.
    fn seconds(&self, cost: &Cost) -> f64 {
        match self.candidate.sharding {
            Sharding::Parameters => {
                self.candidate.micro_batches as f64 * cost.micro_s(self.forwards)
            }
            Sharding::None | Sharding::Optimizer => {
                let exposed = cost.sync_s - self.overlap.sync * cost.backward_s;
                exposed.max(cost.handling_s) + cost.optimizer_s
            }
        }
    }

    /// The same of a change, where nothing is hidden.
    fn change(&self, change: &Cost) -> f64 {
        let micro_s = change.backward_s + change.backward_wire_s;
        self.candidate.micro_batches as f64 * micro_s + change.sync_s + change.optimizer_s
    }
}

/// One more step of encoding: from the step before it of the same gradient to this one.
struct Step {
    coded: Coded,
    change: Cost,
    seconds_per_loss: f64,
}

/// What is encoded in stages of these blocks; `costs` of all blocks become what they are with it.
pub fn carry(
    chain: &Chain<'_>,
    choice: &Choice,
    stages: &[Range<usize>],
    terms: &Terms<'_>,
    costs: &mut [Cost],
) -> Vec<Coded> {
    let mut steps: Vec<_> =
        stages.iter().map(|blocks| steps(chain, choice, blocks, terms).into_iter()).collect();
    let total = |blocks: &Range<usize>| costs[blocks.clone()].iter().copied().sum();
    let mut sums: Vec<Cost> = stages.iter().map(total).collect();
    let mut taken: Vec<Coded> = Vec::new();
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
        costs[step.coded.block] += step.change;
        let same =
            |one: &&mut Coded| (one.block, one.tensor) == (step.coded.block, step.coded.tensor);
        match taken.iter_mut().find(same) {
            Some(one) => one.carriage = step.coded.carriage,
            None => taken.push(step.coded),
        }
    }
    taken.sort_by_key(|coded| (coded.block, coded.tensor));
    taken
}

/// The stage that takes longest.
fn last(sums: &[Cost], terms: &Terms<'_>) -> Option<usize> {
    let seconds = |stage: &usize| terms.seconds(&sums[*stage]);
    (0..sums.len()).max_by(|a, b| seconds(a).total_cmp(&seconds(b)))
}

/// All steps within a stage, those that save most for what they lose first.
fn steps(
    chain: &Chain<'_>,
    choice: &Choice,
    blocks: &Range<usize>,
    terms: &Terms<'_>,
) -> Vec<Step> {
    let mut all = Vec::new();
    for block in blocks.clone() {
        for carried in chain.carried(choice, block) {
            let coded = |carriage| Coded { block, tensor: carried.tensor, carriage };
            all.extend(hull(&carried.ways, terms).into_iter().map(|(carriage, change)| {
                let seconds_per_loss = -terms.change(&change) / change.loss.max(f64::MIN_POSITIVE);
                Step { coded: coded(carriage), change, seconds_per_loss }
            }));
        }
    }
    all.sort_by(|a, b| b.seconds_per_loss.total_cmp(&a.seconds_per_loss));
    all
}

/// Ways that save ever more for ever more loss, each with what it changes beyond the one before.
fn hull(ways: &[Carriage], terms: &Terms<'_>) -> Vec<(Carriage, Cost)> {
    let mut found = Vec::new();
    let mut at = Cost::ZERO;
    let saves = |way: &Carriage, at: &Cost| terms.change(at) - terms.change(&way.change);
    loop {
        let better = ways.iter().filter(|way| saves(way, &at) > 0.0 && way.change.loss >= at.loss);
        let rate =
            |way: &&Carriage| saves(way, &at) / (way.change.loss - at.loss).max(f64::MIN_POSITIVE);
        let Some(next) = better.max_by(|a, b| rate(a).total_cmp(&rate(b))) else { return found };
        found.push((*next, next.change - at));
        at = next.change;
    }
}
