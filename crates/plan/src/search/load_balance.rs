//! Load balance: the work of each device on a cluster of several kinds.
//!
//! Stages get layers in proportion to the speed of their devices, as far as memory allows. If the first
//! dimension of the mesh cuts only batches, its parts share nothing but gradients at the end of a step. So
//! each part may have the number of micro-batches that suits its devices; the sum is the same as if all parts
//! had the same number. With ZeRO 3, which gathers parameters with every micro-batch, and with interleaving,
//! which takes micro-batches in groups, all parts have the same number, and the slowest sets the pace.
//!
//! Law: no part of a batch is left out or computed twice.

use std::ops::Range;

use super::{Candidate, Chain, Choice, Recompute, Rule};
use crate::cost::{Cost, Costs, Division, Sharding};
use crate::pipeline::{Schedule, cut_by};
use crate::{Cluster, Error};

/// Costs of a candidate on each kind of device.
pub struct LoadBalance<'a> {
    /// Chains, by kind.
    chains: Vec<Chain<'a>>,
    /// Slowest kind of every part of the first dimension, by stage.
    kinds: Vec<Vec<usize>>,
    /// Smallest memory of the devices of every stage, in bytes.
    memory_bytes: Vec<f64>,
    /// Whether parts may have different numbers of micro-batches.
    uneven: bool,
    /// Micro-batches of a part if all parts have the same number.
    micro_batches: usize,
}

/// Assignment of micro-batches, with the costs of the part that ends last.
pub struct Assigned {
    /// Cost of every block on the part that ends last.
    pub blocks: Vec<Cost>,
    /// Micro-batches of every part; empty if all have the same number.
    pub shares: Vec<usize>,
    /// Micro-batches of the part that ends last.
    pub rounds: usize,
}

impl<'a> LoadBalance<'a> {
    /// Returns the load balance of a candidate; `None` on a cluster of one kind, or for an expert plan, in
    /// which the slowest device sets the pace.
    ///
    /// # Errors
    /// Returns the errors of [`Chain::new`].
    pub fn new(
        chain: &Chain<'a>,
        costs: &Costs<'_>,
        candidate: &Candidate,
    ) -> Result<Option<LoadBalance<'a>>, Error> {
        let cluster = costs.cluster;
        if cluster.kinds.is_empty() || candidate.rule != Rule::Free {
            return Ok(None);
        }
        let of_kind = |device| {
            let mut here = costs.clone();
            here.device = device;
            chain.on(&here)
        };
        let chains = cluster.devices.iter().cloned().map(of_kind).collect::<Result<_, _>>()?;
        let whole: usize = candidate.mesh.iter().product();
        let part = whole / candidate.mesh[0];
        let stage = |stage: usize| {
            let first = stage * whole;
            let part = |at: usize| slowest(cluster, first + at * part..first + (at + 1) * part);
            (0..candidate.mesh[0]).map(part).collect()
        };
        let memory = |stage: usize| memory_bytes(cluster, stage * whole..(stage + 1) * whole);
        Ok(Some(LoadBalance {
            chains,
            kinds: (0..candidate.stages).map(stage).collect(),
            memory_bytes: (0..candidate.stages).map(memory).collect(),
            micro_batches: candidate.micro_batches,
            // ZeRO 2 and 3 exchange with every micro-batch, and so may divisions by parameter.
            uneven: matches!(
                candidate.division,
                Division::Alike(Sharding::None | Sharding::Optimizer)
            ),
        }))
    }

    /// Returns the memory of every device of a stage, in bytes.
    pub fn memory_bytes(&self, stage: usize) -> f64 {
        self.memory_bytes[stage]
    }

    /// Returns the blocks of every stage such that the slowest stage is as fast as possible. `capacity` gives
    /// the first block from which on a stage has room for its blocks.
    pub fn cut(
        &self,
        choice: &Choice,
        recompute: Recompute,
        capacity: &dyn Fn(usize, usize) -> usize,
    ) -> Option<Vec<Range<usize>>> {
        let micro = self.micro(choice, recompute);
        let uneven = self.uneven && self.chains[0].cuts_batches(choice);
        let seconds = |stage: usize, block: usize| {
            let parts = self.kinds[stage].iter().map(|kind| micro[*kind][block]);
            match uneven {
                true => self.kinds[stage].len() as f64 / parts.map(f64::recip).sum::<f64>(),
                false => parts.fold(0.0, f64::max),
            }
        };
        cut_by(&seconds, capacity, [micro[0].len(), self.kinds.len()])
    }

    /// Assigns micro-batches to the parts of the first dimension.
    pub fn assign(
        &self,
        choice: &Choice,
        cuts: &[Range<usize>],
        schedule: Schedule,
        recompute: Recompute,
    ) -> Assigned {
        let micro = self.micro(choice, recompute);
        let parts = self.kinds[0].len();
        let stage_s = |part: usize, stage: usize| -> f64 {
            cuts[stage].clone().map(|block| micro[self.kinds[stage][part]][block]).sum()
        };
        let slowest = |part| (0..cuts.len()).map(|stage| stage_s(part, stage)).fold(0.0, f64::max);
        let seconds: Vec<f64> = (0..parts).map(slowest).collect();
        let alike = matches!(schedule, Schedule::Interleaved { .. });
        let uneven = self.uneven && !alike && self.chains[0].cuts_batches(choice);
        let shares = match uneven {
            true => shares(&seconds, parts * self.micro_batches),
            false => vec![self.micro_batches; parts],
        };
        let last = |part: &usize| shares[*part] as f64 * seconds[*part];
        let last = (0..parts).max_by(|a, b| last(a).total_cmp(&last(b))).unwrap_or(0);
        let all: Vec<Vec<Cost>> = self.chains.iter().map(|chain| chain.costs(choice)).collect();
        let kinds = cuts.iter().zip(&self.kinds).flat_map(|(blocks, kinds)| {
            // Without uneven shares all wait for the slowest of a stage: that which takes longest for the first block
            // is taken to do so for all.
            let worst = kinds
                .iter()
                .max_by(|a, b| micro[**a][blocks.start].total_cmp(&micro[**b][blocks.start]));
            let kind = if uneven { kinds[last] } else { *worst.unwrap_or(&0) };
            blocks.clone().map(move |block| (kind, block))
        });
        let blocks = kinds.map(|(kind, block)| all[kind][block]).collect();
        let rounds = shares[last];
        let equal = shares.iter().all(|share| *share == self.micro_batches);
        Assigned { blocks, shares: if equal { Vec::new() } else { shares }, rounds }
    }

    /// Returns the seconds of a micro-batch by kind and block.
    fn micro(&self, choice: &Choice, recompute: Recompute) -> Vec<Vec<f64>> {
        let micro = |cost: Cost| recompute.of_all(cost).micro_s();
        let of = |chain: &Chain<'_>| chain.costs(choice).into_iter().map(micro).collect();
        self.chains.iter().map(of).collect()
    }
}

/// Assigns micro-batches one by one to the part that ends first with them.
///
/// Law: no other assignment of the same number of micro-batches ends sooner.
fn shares(seconds: &[f64], micro_batches: usize) -> Vec<usize> {
    let rate: f64 = seconds.iter().map(|seconds| seconds.recip()).sum();
    let fair = |seconds: &f64| (micro_batches as f64 / (seconds * rate)).floor() as usize;
    // Each part gets at least its fair share, rounded down: only the rest is assigned one by one.
    let mut shares: Vec<usize> = seconds.iter().map(fair).collect();
    let given: usize = shares.iter().sum();
    for _ in given..micro_batches {
        let done = |part: &usize| (shares[*part] + 1) as f64 * seconds[*part];
        let next = (0..shares.len()).min_by(|a, b| done(a).total_cmp(&done(b)));
        shares[next.expect("a mesh has a part")] += 1;
    }
    shares
}

/// Returns the kinds of a range of devices.
fn kinds(cluster: &Cluster, devices: Range<usize>) -> impl Iterator<Item = usize> {
    let unit = cluster.levels[0].size;
    let units = devices.start / unit..devices.end.div_ceil(unit);
    units.map(|unit| cluster.kinds[unit])
}

fn slowest(cluster: &Cluster, devices: Range<usize>) -> usize {
    let rate = |kind: &usize| cluster.devices[*kind].flops_per_s;
    kinds(cluster, devices).min_by(|a, b| rate(a).total_cmp(&rate(b))).unwrap_or(0)
}

fn memory_bytes(cluster: &Cluster, devices: Range<usize>) -> f64 {
    kinds(cluster, devices).map(|kind| cluster.devices[kind].memory_bytes).fold(f64::MAX, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn shares_are_whole_and_the_last_is_as_soon_as_can_be(
            seconds in proptest::collection::vec(0.1_f64..10.0, 1..6),
            count in 1_usize..200,
        ) {
            let given = shares(&seconds, count);
            proptest::prop_assert_eq!(given.iter().sum::<usize>(), count);
            let done = |part: usize| given[part] as f64 * seconds[part];
            let last = (0..given.len()).map(done).fold(0.0, f64::max);
            // Sooner than that, each part can do so many at most: too few together.
            let sooner = last * (1.0 - 1e-9);
            let most: f64 = seconds.iter().map(|one| (sooner / one).floor()).sum();
            proptest::prop_assert!(most < count as f64);
        }
    }
}
