//! Candidates: what is fixed before strategies are chosen.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::rule::Rule;
use crate::Error;
use crate::cluster::{Cluster, Level};
use crate::cost::{Division, Sharding};

/// A pipeline of equal meshes, and how a step's batch goes through it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Candidate {
    /// Stages, each on neighbouring devices.
    pub stages: usize,
    /// The mesh of every stage; the last dimension lies nearest.
    pub mesh: Vec<usize>,
    /// Into how many micro-batches a step's batch is cut.
    pub micro_batches: usize,
    /// What is divided among ranks that share a parameter's work.
    pub division: Division,
    /// What strategies are allowed.
    pub rule: Rule,
}

impl Candidate {
    /// How many devices work; of more than can be counted, the most that can.
    pub fn devices(&self) -> usize {
        self.mesh.iter().fold(self.stages, |devices, size| devices.saturating_mul(*size))
    }

    /// Which of two that are as fast is taken: the one on a mesh with fewer dimensions of one rank.
    pub(super) fn before(&self, other: &Candidate) -> Ordering {
        let ones = |of: &Candidate| of.mesh.iter().filter(|size| **size == 1).count();
        ones(self).cmp(&ones(other)).then_with(|| self.cmp(other))
    }

    /// Whether its mesh has more than two dimensions.
    pub fn is_deep(&self) -> bool {
        self.mesh.len() > 2
    }
}

/// The expert plans, which are always among the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expert {
    /// Every device has the whole model and a part of the batch.
    Data,
    /// The same, with parameters, gradients and optimiser state divided.
    Zero3,
    /// Pipelines of tensor-parallel groups, repeated for parts of the batch.
    Grid,
}

impl Expert {
    /// All of them.
    pub const ALL: [Expert; 3] = [Expert::Data, Expert::Zero3, Expert::Grid];

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Expert::Data => "data parallel",
            Expert::Zero3 => "ZeRO-3",
            Expert::Grid => "Megatron grid",
        }
    }
}

/// The most sequences per part of a batch that micro-batches have at first; more are tried where as
/// many are best.
pub(super) const SEQUENCES: usize = 16;

/// Of so many units at most one alone is tried.
const UNITS_MAX: usize = 32;

pub use thinwire_program::file::MICRO_BATCHES_MAX;

/// More sequences of a step than this are taken for a slip.
const BATCH_MAX: usize = 1 << 20;

/// Refuses counts for which lists would grow too long.
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

/// All candidates for a batch of so many sequences and a model of so many blocks, where parameters
/// may be divided so, devices may be idle or not, and a part of a micro-batch has so many sequences
/// at most.
pub fn candidates(
    cluster: &Cluster,
    batch: usize,
    blocks: usize,
    (divisions, idle, sequences): (&[Division], bool, usize),
) -> Vec<Candidate> {
    let mut all = Vec::new();
    let counts = if idle { counts(cluster, batch) } else { vec![cluster.size()] };
    for devices in counts {
        // Experts' grids, which copy products as well, are else tried on all devices.
        let rules = match units(cluster).any(|unit| unit == devices) {
            true => &[Rule::Free, Rule::Grid][..],
            false => &[Rule::Free],
        };
        for stages in divisors(devices).filter(|stages| *stages <= blocks) {
            for mesh in flat(devices / stages) {
                for micro_batches in micro_batches(batch, mesh[0], sequences) {
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

/// The devices of one unit of each level, where there are few such units: of many no single one is as
/// fast as all.
fn units(cluster: &Cluster) -> impl Iterator<Item = usize> {
    let all = cluster.size();
    let inner =
        |inner: &mut usize, level: &Level| Some(std::mem::replace(inner, *inner * level.size));
    let units = cluster.levels.iter().scan(1, inner);
    units.filter(move |unit| *unit < all && all / unit <= UNITS_MAX)
}

/// With how many devices of a cluster a plan may work: with all; with those of one unit of any level,
/// so that slow links may stay unused; and where their number does not divide the batch, with the
/// most whose number does, and with the most that have no prime factor beyond 3.
fn counts(cluster: &Cluster, batch: usize) -> Vec<usize> {
    let devices = cluster.size();
    let mut all: Vec<usize> = units(cluster).chain([devices]).collect();
    if !batch.is_multiple_of(devices) {
        let most = |fits: &dyn Fn(usize) -> bool| (1..=devices).rev().find(|count| fits(*count));
        all.extend(most(&|count| batch.is_multiple_of(count)));
        all.extend(most(&|count| [2, 3].into_iter().fold(count, without) == 1));
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// A number without one of its prime factors.
fn without(mut number: usize, prime: usize) -> usize {
    while number.is_multiple_of(prime) {
        number /= prime;
    }
    number
}

/// The candidates of an expert plan, where a part of a micro-batch has so many sequences at most.
pub fn experts(
    cluster: &Cluster,
    (batch, sequences): (usize, usize),
    blocks: usize,
    expert: Expert,
) -> Vec<Candidate> {
    let devices = cluster.size();
    let (rule, sharding) = match expert {
        Expert::Data => (Rule::Data, Sharding::None),
        Expert::Zero3 => (Rule::Data, Sharding::Parameters),
        Expert::Grid => (Rule::Grid, Sharding::Optimizer),
    };
    let division = Division::Alike(sharding);
    let mut all = Vec::new();
    let stages = divisors(devices).filter(|stages| expert == Expert::Grid && *stages <= blocks);
    let stages: Vec<usize> = if expert == Expert::Grid { stages.collect() } else { vec![1] };
    for stages in stages {
        for mesh in flat(devices / stages) {
            let within = mesh[1..].iter().all(|inner| *inner <= cluster.levels[0].size);
            let allowed = (expert == Expert::Grid && within) || mesh.len() == 1;
            if allowed && batch.is_multiple_of(mesh[0]) {
                for micro_batches in micro_batches(batch, mesh[0], sequences) {
                    let mesh = mesh.clone();
                    all.push(Candidate { stages, mesh, micro_batches, division, rule });
                }
            }
        }
    }
    all
}

/// The same candidate on meshes of three dimensions: one of its two is cut in two.
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

/// Meshes of one or two dimensions.
fn flat(devices: usize) -> impl Iterator<Item = Vec<usize>> {
    divisors(devices).map(move |inner| match inner {
        1 => vec![devices],
        inner => vec![devices / inner, inner],
    })
}

/// Numbers of micro-batches with which each of `parts` parts gets so many sequences at a time at most;
/// one micro-batch where there are fewer sequences than parts.
fn micro_batches(batch: usize, parts: usize, most: usize) -> Vec<usize> {
    let whole = batch.is_multiple_of(parts).then_some(batch / parts);
    let doubled = std::iter::successors(Some(1_usize), |sequences| sequences.checked_mul(2));
    let doubled = doubled.take_while(|sequences| sequences.saturating_mul(parts) <= batch);
    let sequences = doubled.chain(whole).filter(|sequences| *sequences <= most);
    let sizes = sequences.map(|sequences| sequences * parts);
    let found = sizes.filter(|size| batch.is_multiple_of(*size)).map(|size| batch / size);
    let found = found.filter(|count| *count <= MICRO_BATCHES_MAX);
    let mut found: Vec<usize> = found.collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found.dedup();
    if found.is_empty() { vec![1] } else { found }
}
