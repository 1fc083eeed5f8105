//! Thrift: what a stage gives up of its time so that it fits its memory, block by block and
//! parameter by parameter.
//!
//! A block may compute forward again in place of keeping what backward reads; a parameter may be
//! divided further among the ranks that share its work. Each of these buys bytes for seconds. A
//! stage that is too full buys where a byte is cheapest until it fits, and then takes back what it
//! has bought too much. Stages differ: the first of a pipeline keeps the most micro-batches.
//!
//! Law: nothing is bought where everything fits.

use std::ops::Range;

use thinwire_model::TensorId;

use super::chain::{Chain, Choice};
use super::hull::hull;
use super::settings::Recompute;
use crate::cost::{Carriage, Cost};

/// A parameter that is divided otherwise than usual, or whose gradient is encoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Treated {
    /// The block.
    pub block: usize,
    /// The parameter, as the first block of the class calls it.
    pub tensor: TensorId,
    /// How it is divided and its gradient travels.
    pub carriage: Carriage,
}

impl Treated {
    /// Whether both are of one parameter.
    pub fn same(&self, other: &Treated) -> bool {
        (self.block, self.tensor) == (other.block, other.tensor)
    }

    /// Adds it to others, in the place of what was known of its parameter.
    pub fn put(self, others: &mut Vec<Treated>) {
        match others.iter_mut().find(|one| one.same(&self)) {
            Some(one) => *one = self,
            None => others.push(self),
        }
    }
}

/// What is given up, in all stages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spared {
    /// For every block, whether forward is computed again.
    pub again: Vec<bool>,
    /// Parameters that are divided otherwise than usual.
    pub treated: Vec<Treated>,
}

/// What a stage has to keep to.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Micro-batches of a step.
    pub rounds: f64,
    /// Micro-batches that wait for backward at most.
    pub in_flight: f64,
    /// Bytes of a device's memory.
    pub bytes: f64,
    /// Whether forward may be computed again.
    pub recompute: Recompute,
}

#[derive(Clone, Copy, Debug)]
enum Item {
    Again(usize),
    Treated(Treated),
}

/// One thing to buy: after the steps before it of the same parameter.
#[derive(Clone, Copy, Debug)]
struct Step {
    item: Item,
    /// What it changes; of a block that computes again, without the bytes of a single one.
    change: Cost,
    seconds_per_byte: f64,
}

/// A stage on its way to fit.
struct Stage<'a> {
    blocks: Range<usize>,
    whole: &'a [Cost],
    limits: Limits,
    sum: Cost,
    again: Vec<bool>,
}

/// Adds to `spared` what a stage of these blocks gives up. `whole` is what blocks cost that give up
/// nothing.
pub fn spare(
    (chain, choice): (&Chain<'_>, &Choice),
    blocks: &Range<usize>,
    limits: Limits,
    whole: &[Cost],
    spared: &mut Spared,
) {
    let sum = whole[blocks.clone()].iter().copied().sum();
    let again = vec![limits.recompute == Recompute::Always; blocks.len()];
    let mut stage = Stage { blocks: blocks.clone(), whole, limits, sum, again };
    if limits.recompute == Recompute::Always {
        stage.sum = blocks.clone().map(|block| whole[block].recomputed()).sum();
    }
    let mut taken: Vec<Step> = Vec::new();
    if !stage.fits() {
        let mut steps = stage.steps(chain, choice);
        steps.sort_by(|a, b| a.seconds_per_byte.total_cmp(&b.seconds_per_byte));
        for step in steps {
            stage.take(&step);
            taken.push(step);
            if stage.fits() {
                break;
            }
        }
        stage.give_back(&mut taken);
    }
    spared.again[blocks.clone()].copy_from_slice(&stage.again);
    for step in taken {
        let Item::Treated(treated) = step.item else { continue };
        treated.put(&mut spared.treated);
    }
}

impl Stage<'_> {
    /// All that can be bought, the steps of one parameter in their order.
    fn steps(&self, chain: &Chain<'_>, choice: &Choice) -> Vec<Step> {
        let mut steps = Vec::new();
        for block in self.blocks.clone() {
            if self.limits.recompute == Recompute::Free {
                steps.extend(self.computing_again(block));
            }
            for carried in chain.carried(choice, block) {
                let tensor = carried.tensor;
                let steps_of = self.hull(&carried.ways).into_iter();
                steps.extend(steps_of.map(|(carriage, change)| {
                    let item = Item::Treated(Treated { block, tensor, carriage });
                    Step { item, change, seconds_per_byte: self.price(&change) }
                }));
            }
        }
        steps
    }

    fn computing_again(&self, block: usize) -> Option<Step> {
        let change = self.whole[block].recomputed() - self.whole[block];
        let step = Step { item: Item::Again(block), change, seconds_per_byte: self.price(&change) };
        (change.kept_bytes < 0.0).then_some(step)
    }

    /// Ways that take ever fewer bytes for ever more seconds, the cheapest bytes first.
    fn hull(&self, ways: &[Carriage]) -> Vec<(Carriage, Cost)> {
        hull(ways.iter().rev(), Cost::ZERO, |at, way| {
            let less = way.coding.is_none() && way.change.state_bytes < at.state_bytes;
            less.then(|| -self.price(&(way.change - *at)))
        })
    }

    /// Seconds of a step for a byte.
    fn price(&self, change: &Cost) -> f64 {
        let seconds = self.limits.rounds * change.micro_s() + change.sync_s + change.optimizer_s;
        let bytes = -change.state_bytes - self.limits.in_flight * change.kept_bytes;
        seconds.max(0.0) / bytes
    }

    fn take(&mut self, step: &Step) {
        self.sum += step.change;
        if let Item::Again(block) = step.item {
            self.again[block - self.blocks.start] = true;
        }
    }

    /// Takes back what is not needed, the last first; of a parameter's steps none but the last.
    fn give_back(&mut self, taken: &mut Vec<Step>) {
        let mut kept: Vec<Step> = Vec::new();
        while let Some(step) = taken.pop() {
            let before = (self.sum, self.again.clone());
            let rests = |other: &Step| match (other.item, step.item) {
                (Item::Treated(a), Item::Treated(b)) => a.same(&b),
                _ => false,
            };
            if kept.iter().any(rests) {
                kept.push(step);
                continue;
            }
            self.sum = self.sum - step.change;
            if let Item::Again(block) = step.item {
                self.again[block - self.blocks.start] = false;
            }
            if !self.fits() {
                (self.sum, self.again) = before;
                kept.push(step);
            }
        }
        kept.reverse();
        *taken = kept;
    }

    fn fits(&self) -> bool {
        let scratch = scratch_bytes(&self.whole[self.blocks.clone()], &self.again);
        let waiting = self.limits.in_flight * self.sum.kept_bytes;
        self.sum.state_bytes + waiting + scratch <= self.limits.bytes
    }
}

/// The most that one block keeps which computes again, while backward goes through it.
pub fn scratch_bytes(whole: &[Cost], again: &[bool]) -> f64 {
    let flagged = whole.iter().zip(again).filter(|(_, again)| **again);
    flagged.map(|(cost, _)| cost.kept_bytes).fold(0.0, f64::max)
}

/// What blocks cost that give up so much.
pub fn spared_costs(
    (chain, choice): (&Chain<'_>, &Choice),
    whole: &[Cost],
    spared: &Spared,
) -> Vec<Cost> {
    let again = |(cost, again): (&Cost, &bool)| if *again { cost.recomputed() } else { *cost };
    let mut costs: Vec<Cost> = whole.iter().zip(&spared.again).map(again).collect();
    for treated in &spared.treated {
        costs[treated.block] += chain.like(choice, treated).map_or(Cost::ZERO, |way| way.change);
    }
    costs
}
