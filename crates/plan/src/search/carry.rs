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
use super::overlap::{Beyond, Overlap};
use super::savings::Treated;
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
        self.rounds * cost.micro_s() + self.overlap.tail_s(cost) + self.overlap.away_s(cost)
    }

    /// The same of a change, where of gradients nothing is hidden, and of new parameters nothing or
    /// all.
    fn change(&self, change: &Cost, beyond: Beyond) -> f64 {
        let home_s = if beyond.home { change.home_s } else { change.home_handling_s };
        self.rounds * change.micro_s() + change.sync_s + change.optimizer_s + home_s
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
    let total = |blocks: &Range<usize>| costs[blocks.clone()].iter().copied().sum();
    let mut sums: Vec<Cost> = stages.iter().map(total).collect();
    let steps_of = |(blocks, sum): (_, &Cost)| {
        steps((chain, choice), blocks, (terms, treated), terms.overlap.beyond(sum)).into_iter()
    };
    let mut steps: Vec<_> = stages.iter().zip(&sums).map(steps_of).collect();
    let (mut left, mut room) = (terms.budget, terms.room.clone());
    let mut closed: HashSet<(usize, TensorId)> = HashSet::new();
    loop {
        // A step begins where the one before it of the same gradient ends.
        let mut helps = |stage: usize, step: &Step| {
            let changed = [sums[stage], step.change].into_iter().sum();
            let fits = step.change.loss <= left && step.change.state_bytes <= room[stage];
            let of = (step.treated.block, step.treated.tensor);
            let faster = terms.seconds(&changed) < terms.seconds(&sums[stage]);
            let helps = !closed.contains(&of) && fits && faster;
            if !helps {
                closed.insert(of);
            }
            helps
        };
        let mut next = |stage: usize| Some((stage, steps[stage].find(|one| helps(stage, one))?));
        let Some((stage, step)) = last(&sums, terms).into_iter().find_map(&mut next) else { break };
        left -= step.change.loss;
        room[stage] -= step.change.state_bytes;
        sums[stage] += step.change;
        costs[step.treated.block] += step.change;
        step.treated.put(treated);
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
    (terms, treated): (&Terms, &[Treated]),
    beyond: Beyond,
) -> Vec<Step> {
    let mut all = Vec::new();
    for block in blocks.clone() {
        for carried in chain.carried(choice, block) {
            let tensor = carried.tensor;
            let known = treated.iter().find(|one| (one.block, one.tensor) == (block, tensor));
            let now = known.map_or(Cost::ZERO, |one| one.carriage.change);
            let hull = hull(carried.ways.iter(), now, |at, way| rate(at, way, (terms, beyond)));
            all.extend(hull.into_iter().map(|(carriage, change)| {
                let seconds_per_loss =
                    -terms.change(&change, beyond) / change.loss.max(f64::MIN_POSITIVE);
                Step { treated: Treated { block, tensor, carriage }, change, seconds_per_loss }
            }));
        }
    }
    all.sort_by(|a, b| b.seconds_per_loss.total_cmp(&a.seconds_per_loss));
    all
}

/// What a way saves beside another for each element that it loses more; none if it saves nothing,
/// loses less or encodes nothing.
fn rate(at: &Cost, way: &Carriage, (terms, beyond): (&Terms, Beyond)) -> Option<f64> {
    let saved_s = terms.change(at, beyond) - terms.change(&way.change, beyond);
    let lost = way.change.loss - at.loss;
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
