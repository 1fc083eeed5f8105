//! Memory fitting: trades time of a stage for memory until the stage fits, block by block and parameter by
//! parameter.
//!
//! A block may recompute its forward pass instead of keeping its activations; a parameter may be sharded
//! further among the ranks that share its work. Each saving frees bytes and costs seconds. A stage that
//! needs too much memory takes the savings that cost the fewest seconds per byte until it fits. It then
//! gives up savings that turn out not to be needed. Stages differ: the first stage of a pipeline holds
//! the most micro-batches.
//!
//! Law: no saving is taken if everything fits, and none costs more seconds than the cheapest bytes take.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use thinwire_model::TensorId;

use super::chain::Chosen;
use super::{ParameterOverride, Recompute, Savings};
use crate::cost::{Cost, GradientTransport, hull};
use crate::stage::TransportOptions;

/// Limits of a stage.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Micro-batches of a step.
    pub rounds: f64,
    /// Largest number of micro-batches whose activations wait for the backward pass at the same time.
    pub in_flight: f64,
    /// Memory of a device, in bytes.
    pub bytes: f64,
    /// Whether the forward pass may be recomputed.
    pub recompute: Recompute,
}

/// Block or parameter that a saving is about.
#[derive(Clone, Copy, Debug)]
enum Item {
    Recompute(usize),
    Override(ParameterOverride),
}

/// Saving that can be taken after the earlier savings of the same parameter.
#[derive(Clone, Copy, Debug)]
struct Saving {
    item: Item,
    /// Change of the cost. For a recomputed block, it does not include the activations that exist while
    /// the block is being recomputed.
    change: Cost,
    seconds_per_byte: f64,
}

impl Saving {
    fn parameter(&self) -> Option<ParameterOverride> {
        match self.item {
            Item::Override(parameter) => Some(parameter),
            Item::Recompute(_) => None,
        }
    }
}

/// Stage that is being fitted.
struct StageFit<'a> {
    blocks: Range<usize>,
    whole: &'a [Cost],
    limits: Limits,
    sum: Cost,
    recomputed: Vec<bool>,
    /// Activations of recomputed blocks, as bits of a float, with the number of blocks that have this many.
    scratch: BTreeMap<u64, usize>,
}

/// Adds the savings of a stage of these blocks. `whole` are the costs of blocks without savings.
pub fn fit_stage(
    chosen: Chosen<'_>,
    blocks: &Range<usize>,
    limits: Limits,
    whole: &[Cost],
    savings: &mut Savings,
) {
    let mut stage = StageFit::new(blocks.clone(), whole, limits);
    let steps = if stage.fits() { Vec::new() } else { stage.steps(chosen) };
    let taken = stage.buy(&steps);
    savings.recomputed[blocks.clone()].copy_from_slice(&stage.recomputed);
    let mut places: HashMap<(usize, TensorId), usize> = HashMap::new();
    for parameter in taken.iter().filter_map(Saving::parameter) {
        // A parameter is sharded in steps, of which the last one that was taken counts.
        let place = *places.entry(parameter.of()).or_insert(savings.overrides.len());
        match savings.overrides.get_mut(place) {
            Some(before) => *before = parameter,
            None => savings.overrides.push(parameter),
        }
    }
}

impl<'a> StageFit<'a> {
    fn new(blocks: Range<usize>, whole: &'a [Cost], limits: Limits) -> StageFit<'a> {
        let always = limits.recompute == Recompute::Always;
        let sum = whole[blocks.clone()].iter().map(|cost| limits.recompute.of_all(*cost)).sum();
        let (recomputed, scratch) = (vec![false; blocks.len()], BTreeMap::new());
        let mut stage = StageFit { blocks, whole, limits, sum, recomputed, scratch };
        stage.blocks.clone().filter(|_| always).for_each(|block| stage.recompute(block));
        stage
    }

    /// Takes the savings with the cheapest bytes until the stage fits, and returns those that are kept.
    fn buy(&mut self, steps: &[Saving]) -> Vec<Saving> {
        let mut taken: Vec<Saving> = Vec::new();
        // Each step of a parameter is at least as dear as the one before, and a stable sort keeps equal ones in order.
        let mut sorted: Vec<&Saving> = steps.iter().collect();
        sorted.sort_by(|a, b| a.seconds_per_byte.total_cmp(&b.seconds_per_byte));
        for step in sorted {
            if self.fits() {
                break;
            }
            self.take(step);
            taken.push(*step);
        }
        self.give_back(&mut taken);
        taken
    }

    /// Returns all savings that can be taken; those of one parameter are in order.
    fn steps(&self, chosen: Chosen<'_>) -> Vec<Saving> {
        let mut steps = Vec::new();
        let mut known: HashMap<usize, Vec<(TensorId, GradientTransport, Cost)>> = HashMap::new();
        for block in self.blocks.clone() {
            if self.limits.recompute == Recompute::Free {
                steps.extend(self.recomputing(block));
            }
            let of_block = || self.of_block(chosen, block);
            let ways = known.entry(chosen.choice.of_block[block]).or_insert_with(of_block);
            steps.extend(ways.iter().map(|(tensor, transport, change)| {
                let (tensor, transport) = (*tensor, *transport);
                let item = Item::Override(ParameterOverride { block, tensor, transport });
                Saving { item, change: *change, seconds_per_byte: self.price(change) }
            }));
        }
        steps
    }

    /// Returns the ways to shard the parameters of a block further; they are the same for equal blocks.
    fn of_block(
        &self,
        chosen: Chosen<'_>,
        block: usize,
    ) -> Vec<(TensorId, GradientTransport, Cost)> {
        let steps = |options: &TransportOptions| {
            let (tensor, hull) = (options.tensor, self.hull(&options.transports));
            hull.into_iter().map(move |(transport, change)| (tensor, transport, change))
        };
        chosen.transport_options(block).flat_map(steps).collect()
    }

    /// Returns the saving of recomputing a block, if it frees any memory.
    fn recomputing(&self, block: usize) -> Option<Saving> {
        let change = self.whole[block].recomputed() - self.whole[block];
        let step =
            Saving { item: Item::Recompute(block), change, seconds_per_byte: self.price(&change) };
        (change.activation_bytes < 0.0).then_some(step)
    }

    /// Returns transports in an order in which each takes fewer bytes and more seconds than the previous
    /// one. Savings that cost the fewest seconds per byte come first.
    fn hull(&self, ways: &[GradientTransport]) -> Vec<(GradientTransport, Cost)> {
        hull(ways.iter().rev(), Cost::ZERO, |at, way| {
            let less = way.coding.is_none() && way.change.state_bytes < at.state_bytes;
            less.then(|| -self.price(&(way.change - *at)))
        })
    }

    /// Returns the seconds of a step that a byte costs.
    fn price(&self, change: &Cost) -> f64 {
        let seconds = self.limits.rounds * change.micro_s() + change.once_s();
        let bytes = -change.state_bytes - self.limits.in_flight * change.activation_bytes;
        seconds.max(0.0) / bytes
    }

    /// Applies a saving.
    fn take(&mut self, step: &Saving) {
        self.sum += step.change;
        if let Item::Recompute(block) = step.item {
            self.recompute(block);
        }
    }

    /// Lets a block that has kept its activations recompute the forward pass.
    fn recompute(&mut self, block: usize) {
        self.recomputed[block - self.blocks.start] = true;
        *self.scratch.entry(self.kept_bits(block)).or_default() += 1;
    }

    /// Lets a block that has recomputed the forward pass keep its activations.
    fn keep(&mut self, block: usize) {
        self.recomputed[block - self.blocks.start] = false;
        let kept = self.kept_bits(block);
        match self.scratch.get_mut(&kept) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.scratch.remove(&kept)),
        }
    }

    /// Returns the activations of a block as the bits of a float; for numbers that are not negative, bits and
    /// numbers have the same order.
    fn kept_bits(&self, block: usize) -> u64 {
        self.whole[block].activation_bytes.max(0.0).to_bits()
    }

    /// Gives up savings that are not needed. It begins with the last saving; for each parameter, only
    /// the last one can be given up.
    fn give_back(&mut self, taken: &mut Vec<Saving>) {
        let mut kept: Vec<Saving> = Vec::new();
        let mut rest: HashSet<(usize, TensorId)> = HashSet::new();
        while let Some(step) = taken.pop() {
            let of = step.parameter().map(|parameter| parameter.of());
            // A later saving of the parameter is kept and builds on this one.
            if of.is_some_and(|of| rest.contains(&of)) {
                kept.push(step);
                continue;
            }
            let before = self.sum;
            self.sum = self.sum - step.change;
            if let Item::Recompute(block) = step.item {
                self.keep(block);
            }
            if !self.fits() {
                self.sum = before;
                if let Item::Recompute(block) = step.item {
                    self.recompute(block);
                }
                kept.push(step);
                rest.extend(of);
            }
        }
        kept.reverse();
        *taken = kept;
    }

    /// Returns whether the stage fits.
    fn fits(&self) -> bool {
        let scratch = self.scratch.last_key_value().map_or(0.0, |(bits, _)| f64::from_bits(*bits));
        let waiting = self.limits.in_flight * self.sum.activation_bytes;
        self.sum.state_bytes + waiting + scratch <= self.limits.bytes
    }
}

/// Returns the activations of the largest block that recomputes, in bytes. A device holds them while the
/// backward pass runs through this block.
pub fn scratch_bytes(whole: &[Cost], recomputed: &[bool]) -> f64 {
    let flagged = whole.iter().zip(recomputed).filter(|(_, recomputed)| **recomputed);
    flagged.map(|(cost, _)| cost.activation_bytes).fold(0.0, f64::max)
}

/// Returns the costs of blocks with their savings.
pub(super) fn priced(whole: &[Cost], savings: &Savings) -> Vec<Cost> {
    let recomputed =
        |(cost, recomputed): (&Cost, &bool)| if *recomputed { cost.recomputed() } else { *cost };
    let mut costs: Vec<Cost> = whole.iter().zip(&savings.recomputed).map(recomputed).collect();
    for parameter in &savings.overrides {
        costs[parameter.block] += parameter.transport.change;
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::capacity::{Need, first_that_fits};

    const LIMITS: Limits =
        Limits { rounds: 4.0, in_flight: 2.0, bytes: 0.0, recompute: Recompute::Free };

    fn seconds(steps: &[Saving]) -> f64 {
        steps.iter().map(|step| step.change.micro_s()).sum()
    }

    proptest::proptest! {
        #[test]
        fn the_cheapest_bytes_are_bought_where_they_are_needed(
            blocks in proptest::collection::vec((0.1_f64..9.0, 1.0_f64..9.0), 1..9),
            part in 0.1_f64..1.2,
        ) {
            let block = |(forward_s, activation_bytes): &(f64, f64)| {
                Cost { forward_s: *forward_s, activation_bytes: *activation_bytes, checkpoint_bytes: 0.1, ..Cost::ZERO }
            };
            let whole: Vec<Cost> = blocks.iter().map(block).collect();
            let sum: Cost = whole.iter().copied().sum();
            let limits = Limits { bytes: part * LIMITS.in_flight * sum.activation_bytes, ..LIMITS };
            let mut stage = StageFit::new(0..whole.len(), &whole, limits);
            let mut steps: Vec<Saving> =
                (0..whole.len()).filter_map(|block| stage.recomputing(block)).collect();
            let taken = stage.buy(&steps);
            proptest::prop_assert!(part < 1.0 || taken.is_empty());
            let needs: Vec<Need> = whole.iter().map(Need::of).collect();
            let has_capacity = first_that_fits(&needs, whole.len(), limits.bytes, limits.in_flight, limits.recompute) == 0;
            proptest::prop_assert!(stage.fits() || !has_capacity);
            proptest::prop_assert!(stage.fits() || taken.len() == steps.len());
            // The cheapest bytes that would do.
            let key = |step: &Saving| step.change.micro_s() / -step.change.activation_bytes;
            steps.sort_by(|a, b| key(a).total_cmp(&key(b)));
            let fits = |count: &usize| {
                let mut stage = StageFit::new(0..whole.len(), &whole, limits);
                steps[..*count].iter().for_each(|step| stage.take(step));
                stage.fits()
            };
            let enough = (0..=steps.len()).find(fits).unwrap_or(steps.len());
            proptest::prop_assert!(seconds(&taken) <= seconds(&steps[..enough]) * (1.0 + 1e-9));
        }
    }
}
