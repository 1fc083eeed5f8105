//! Candidates: the choices that are made before strategies are chosen.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::Rule;
use crate::cluster::Level;
use crate::cost::{Division, Sharding};
use crate::{Cluster, Error};

/// Pipeline of equal meshes, and the division of a step's batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Candidate {
    /// Number of stages, each on neighbouring devices.
    pub stages: usize,
    /// Mesh of every stage; the last dimension is over the nearest devices.
    pub mesh: Vec<usize>,
    /// Number of micro-batches of a step.
    pub micro_batches: usize,
    /// Sharding of parameters among ranks that share their work.
    pub division: Division,
    /// Rule for strategies.
    pub rule: Rule,
}

impl Candidate {
    /// Returns the number of devices at work. If the product overflows, it is the largest number.
    pub fn devices(&self) -> usize {
        self.mesh.iter().fold(self.stages, |devices, size| devices.saturating_mul(*size))
    }

    /// Orders candidates that are equally fast: those with fewer mesh dimensions of size 1 come first.
    pub(super) fn before(&self, other: &Candidate) -> Ordering {
        let ones = |of: &Candidate| of.mesh.iter().filter(|size| **size == 1).count();
        ones(self).cmp(&ones(other)).then_with(|| self.cmp(other))
    }

    /// Returns whether the mesh has more than two dimensions.
    pub fn is_deep(&self) -> bool {
        self.mesh.len() > 2
    }
}

/// Expert plans, which are always among the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expert {
    /// Data parallelism: every device has the whole model and a part of the batch.
    Data,
    /// Data parallelism with parameters, gradients and optimiser state sharded.
    Zero3,
    /// Pipelines of tensor-parallel groups, replicated for parts of the batch.
    Grid,
}

impl Expert {
    /// All expert plans.
    pub const ALL: [Expert; 3] = [Expert::Data, Expert::Zero3, Expert::Grid];

    /// Returns the usual name of the expert plan.
    pub fn name(self) -> &'static str {
        match self {
            Expert::Data => "data parallel",
            Expert::Zero3 => "ZeRO-3",
            Expert::Grid => "Megatron grid",
        }
    }
}

/// Largest ratio of a cluster's devices to the devices of a plan that uses only some of them.
const UNITS_MAX: usize = 32;

/// Number of a level's members up to which every smaller number is tried.
const MEMBERS_MAX: usize = 8;

pub use thinwire_program::file::MICRO_BATCHES_MAX;

/// Most sequences of a step; a larger number is refused as a mistake.
const BATCH_MAX: usize = 1 << 20;

/// Refuses counts that would make lists too long.
pub(super) fn check_counts(batch: usize, micro_batches: usize) -> Result<(), Error> {
    let counts =
        [("sequences", batch, BATCH_MAX), ("micro-batches", micro_batches, MICRO_BATCHES_MAX)];
    match counts.into_iter().find(|(_, found, most)| found > most) {
        None => Ok(()),
        Some((name, found, most)) => {
            let message = format!("a step of {found} {name}, expected at most {most}");
            Err(Error::impossible(message)
                .with_hint("a smaller batch of more steps learns the same"))
        }
    }
}

/// Limits on candidates.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Sequences of a step.
    pub batch: usize,
    /// Blocks of the model.
    pub blocks: usize,
    /// Whether devices may be left idle. Expert plans never leave any idle.
    pub idle: bool,
}

/// Returns all candidates within a scope.
pub fn candidates(cluster: &Cluster, scope: &Scope, divisions: &[Division]) -> Vec<Candidate> {
    let Scope { batch, blocks, idle } = *scope;
    let mut all = Vec::new();
    let counts = if idle { counts(cluster, batch) } else { vec![cluster.size()] };
    for devices in counts {
        // Other counts of devices are tried without rules only: grids copy products as well.
        let rules = match members(cluster).any(|some| some == devices) {
            true => &[Rule::Free, Rule::Grid][..],
            false => &[Rule::Free],
        };
        for stages in divisors(devices).filter(|stages| *stages <= blocks) {
            for mesh in flat(devices / stages) {
                for micro_batches in micro_batches(batch, mesh[0]) {
                    for division in divisions.iter().copied() {
                        let one = |rule: &Rule| {
                            let (mesh, rule) = (mesh.clone(), *rule);
                            Candidate { stages, mesh, micro_batches, division, rule }
                        };
                        all.extend(rules.iter().map(one));
                    }
                }
            }
        }
    }
    all
}

/// Returns numbers of devices in the first members of each level. Small parts of the cluster are left out,
/// since they are never as fast as all devices. For a level with many members, these are a few members, and
/// the divisors of their number.
fn members(cluster: &Cluster) -> impl Iterator<Item = usize> {
    let all = cluster.size();
    let inner = |inner: &mut usize, level: &Level| {
        Some([std::mem::replace(inner, *inner * level.size), level.size])
    };
    let levels = cluster.levels.iter().scan(1, inner);
    let some = |[unit, size]: [usize; 2]| {
        // All members of a level are one member of the next, or the whole cluster.
        let counts =
            (1..size).filter(move |count| *count <= MEMBERS_MAX || size.is_multiple_of(*count));
        counts.map(move |count| unit * count)
    };
    levels.flat_map(some).filter(move |devices| all / devices <= UNITS_MAX)
}

/// Returns the numbers of devices to plan for: all devices; some members of any level, so that slow links may
/// stay unused; and, if the number of all devices does not divide the batch, the largest number that does,
/// and the largest without a prime factor above 3.
fn counts(cluster: &Cluster, batch: usize) -> Vec<usize> {
    let devices = cluster.size();
    let mut all: Vec<usize> = members(cluster).chain([devices]).collect();
    if !batch.is_multiple_of(devices) {
        let most = |fits: &dyn Fn(usize) -> bool| (1..=devices).rev().find(|count| fits(*count));
        all.extend(most(&|count| batch.is_multiple_of(count)));
        all.extend(most(&|count| [2, 3].into_iter().fold(count, without) == 1));
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns a number divided by a prime factor as often as possible.
fn without(mut number: usize, prime: usize) -> usize {
    while number.is_multiple_of(prime) {
        number /= prime;
    }
    number
}

/// Returns the candidates of an expert plan within a scope.
pub fn experts(cluster: &Cluster, scope: &Scope, expert: Expert) -> Vec<Candidate> {
    let Scope { batch, blocks, .. } = *scope;
    let devices = cluster.size();
    let (rule, sharding) = match expert {
        Expert::Data => (Rule::Data, Sharding::None),
        Expert::Zero3 => (Rule::Data, Sharding::Parameters),
        Expert::Grid => (Rule::Grid, Sharding::Optimizer),
    };
    let division = Division::Alike(sharding);
    let mut all = Vec::new();
    let most = if expert == Expert::Grid { blocks } else { 1 };
    for stages in divisors(devices).filter(|stages| *stages <= most) {
        for mesh in flat(devices / stages) {
            // People keep tensor parallelism to the fastest links, those of the innermost level.
            let within = mesh[1..].iter().all(|inner| *inner <= cluster.levels[0].size);
            let allowed = (expert == Expert::Grid && within) || mesh.len() == 1;
            // Experts divide the batch equally, and leave no device idle.
            if allowed && batch.is_multiple_of(mesh[0]) {
                for micro_batches in micro_batches(batch, mesh[0]) {
                    let mesh = mesh.clone();
                    all.push(Candidate { stages, mesh, micro_batches, division, rule });
                }
            }
        }
    }
    all
}

/// Returns a candidate's refinements on meshes of three dimensions: in each, one of the candidate's two
/// dimensions is divided into two.
pub fn deeper(candidate: &Candidate) -> Vec<Candidate> {
    let [outer, inner] = candidate.mesh[..] else { return Vec::new() };
    let within = divisors(inner).map(|last| [outer, inner / last, last]);
    let around = divisors(outer).map(|middle| [outer / middle, middle, inner]);
    let deep = within.chain(around).filter(|mesh| mesh.iter().all(|size| *size > 1));
    let on = |mesh: [usize; 3]| Candidate { mesh: mesh.to_vec(), ..candidate.clone() };
    deep.map(on).collect()
}

fn divisors(of: usize) -> impl Iterator<Item = usize> {
    (1..=of).filter(move |divisor| of.is_multiple_of(*divisor))
}

/// Returns meshes of one or two dimensions.
fn flat(devices: usize) -> impl Iterator<Item = Vec<usize>> {
    divisors(devices).map(move |inner| match inner {
        1 => vec![devices],
        inner => vec![devices / inner, inner],
    })
}

/// Returns numbers of micro-batches with which each of `parts` parts has a power of two of sequences at a
/// time, or all of its sequences; one micro-batch if there are fewer sequences than parts.
fn micro_batches(batch: usize, parts: usize) -> Vec<usize> {
    let whole = batch.is_multiple_of(parts).then_some(batch / parts);
    let doubled = std::iter::successors(Some(1_usize), |sequences| sequences.checked_mul(2));
    let doubled = doubled.take_while(|sequences| sequences.saturating_mul(parts) <= batch);
    let sizes = doubled.chain(whole).map(|sequences| sequences * parts);
    let found = sizes.filter(|size| batch.is_multiple_of(*size)).map(|size| batch / size);
    let found = found.filter(|count| *count <= MICRO_BATCHES_MAX);
    let mut found: Vec<usize> = found.collect();
    // All of a part's own sequences may be a power of two as well.
    found.sort_unstable_by(|a, b| b.cmp(a));
    found.dedup();
    if found.is_empty() { vec![1] } else { found }
}
