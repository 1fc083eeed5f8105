//! Candidates: what is fixed before strategies are chosen.

use serde::{Deserialize, Serialize};

use super::rule::Rule;
use crate::cluster::Cluster;
use crate::cost::Sharding;

/// A pipeline of equal meshes, and how a step's batch goes through it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// Stages, each on neighbouring devices.
    pub stages: usize,
    /// The mesh of every stage; the last dimension lies nearest.
    pub mesh: Vec<usize>,
    /// Into how many micro-batches a step's batch is cut.
    pub micro_batches: usize,
    /// What is divided among ranks that share a parameter's work.
    pub sharding: Sharding,
    /// What strategies are allowed.
    pub rule: Rule,
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

/// Sizes of micro-batches that are tried: sequences per part of a batch.
const SEQUENCES: [usize; 5] = [1, 2, 4, 8, 16];

/// All candidates for a batch of so many sequences and a model of so many blocks.
pub fn candidates(
    cluster: &Cluster,
    batch: usize,
    blocks: usize,
    shardings: &[Sharding],
) -> Vec<Candidate> {
    let devices = cluster.size();
    let mut all = Vec::new();
    for stages in divisors(devices).filter(|stages| *stages <= blocks) {
        for [outer, inner] in meshes(devices / stages) {
            let mesh = if inner == 1 { vec![outer] } else { vec![outer, inner] };
            for micro_batches in micro_batches(batch, outer) {
                for sharding in shardings.iter().copied() {
                    let (mesh, rule) = (mesh.clone(), Rule::Free);
                    all.push(Candidate { stages, mesh, micro_batches, sharding, rule });
                }
            }
        }
    }
    all
}

/// The candidates of an expert plan.
pub fn experts(cluster: &Cluster, batch: usize, blocks: usize, expert: Expert) -> Vec<Candidate> {
    let devices = cluster.size();
    let (rule, sharding) = match expert {
        Expert::Data => (Rule::Data, Sharding::None),
        Expert::Zero3 => (Rule::Data, Sharding::Parameters),
        Expert::Grid => (Rule::Grid, Sharding::Optimizer),
    };
    let mut all = Vec::new();
    let stages = divisors(devices).filter(|stages| expert == Expert::Grid && *stages <= blocks);
    let stages: Vec<usize> = if expert == Expert::Grid { stages.collect() } else { vec![1] };
    for stages in stages {
        for [outer, inner] in meshes(devices / stages) {
            let within = inner <= cluster.levels[0].size;
            let allowed = (expert == Expert::Grid && within) || inner == 1;
            if allowed && batch.is_multiple_of(outer) {
                for micro_batches in micro_batches(batch, outer) {
                    let mesh = if inner == 1 { vec![outer] } else { vec![outer, inner] };
                    all.push(Candidate { stages, mesh, micro_batches, sharding, rule });
                }
            }
        }
    }
    all
}

fn divisors(of: usize) -> impl Iterator<Item = usize> {
    (1..=of).filter(move |divisor| of.is_multiple_of(*divisor))
}

/// Meshes of one or two dimensions.
fn meshes(devices: usize) -> impl Iterator<Item = [usize; 2]> {
    divisors(devices).map(move |inner| [devices / inner, inner])
}

/// Numbers of micro-batches with which each of `parts` parts gets few sequences at a time; one
/// micro-batch where there are fewer sequences than parts.
fn micro_batches(batch: usize, parts: usize) -> Vec<usize> {
    let sizes = SEQUENCES.iter().map(|sequences| sequences * parts);
    let found: Vec<usize> =
        sizes.filter(|size| batch.is_multiple_of(*size)).map(|size| batch / size).collect();
    if found.is_empty() { vec![1] } else { found }
}
