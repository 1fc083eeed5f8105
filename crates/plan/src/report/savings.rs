//! Savings of memory in a plan: recomputation and ZeRO, by the names of blocks and parameters.

use std::collections::{BTreeMap, HashMap};

use thinwire_model::TensorId;

use super::codecs::name;
use crate::cost::{Division, Sharding};
use crate::search::{Chain, Outcome, Prepared, zero_stage};
use thinwire_program::file::DivisionFile;

/// Returns the blocks that recompute the forward pass; an empty list if all do, or none does.
pub(super) fn recomputed(prepared: &Prepared, outcome: &Outcome) -> Vec<String> {
    let all = outcome.recomputed() == outcome.savings.recomputed.len();
    let again = outcome.savings.recomputed.iter().zip(&prepared.graph.blocks);
    let again = again.filter(|(again, _)| **again && !all);
    again.map(|(_, block)| block.name.clone()).collect()
}

/// Returns the way in which most elements of parameters are divided, and the parameters that are divided
/// differently.
pub(super) fn divisions(
    prepared: &Prepared,
    chain: &Chain<'_>,
    outcome: &Outcome,
) -> (Sharding, Vec<DivisionFile>) {
    let usual = outcome.candidate.division.usual();
    if let Division::Alike(sharding) = outcome.candidate.division {
        return (sharding, Vec::new());
    }
    let overrides = outcome.savings.overrides.iter();
    let overrides: HashMap<(usize, TensorId), Sharding> =
        overrides.map(|one| ((one.block, one.tensor), one.transport.sharding)).collect();
    // A parameter that several blocks share is divided as the block wants that divides it most.
    let mut by_name: BTreeMap<String, (Sharding, usize)> = BTreeMap::new();
    for block in 0..chain.blocks() {
        for carried in chain.transport_options(&outcome.choice, block) {
            let sharding = overrides.get(&(block, carried.tensor)).copied().unwrap_or(usual);
            let elements = prepared.graph.tensors[carried.tensor].elements();
            let name = name(prepared, block, carried.tensor);
            let known = by_name.entry(name).or_insert((sharding, elements));
            known.0 = known.0.max(sharding);
        }
    }
    let mut elements: BTreeMap<Sharding, usize> = BTreeMap::new();
    by_name.values().for_each(|(sharding, of)| *elements.entry(*sharding).or_default() += of);
    let most = elements.into_iter().max_by_key(|(_, elements)| *elements);
    let most = most.map_or(usual, |(sharding, _)| sharding);
    let mut all: BTreeMap<Sharding, Vec<String>> = BTreeMap::new();
    for (name, (sharding, _)) in by_name.into_iter().filter(|(_, (other, _))| *other != most) {
        all.entry(sharding).or_default().push(name);
    }
    let file = |(sharding, parameters)| DivisionFile { zero: zero_stage(sharding), parameters };
    (most, all.into_iter().map(file).collect())
}

/// Returns the ZeRO stages of a plan, in words.
pub fn zero_text(outcome: &Outcome) -> String {
    let usual = outcome.candidate.division.usual();
    let others = outcome.savings.overrides.iter().map(|one| one.transport.sharding);
    let mut all: Vec<Sharding> = others.chain([usual]).collect();
    all.sort_unstable();
    all.dedup();
    let all: Vec<String> = all.into_iter().map(|one| zero_stage(one).to_string()).collect();
    format!("ZeRO {}", all.join(" and "))
}

/// Returns in words how many blocks compute the forward pass twice.
pub fn recompute_text(outcome: &Outcome) -> String {
    match (outcome.recomputed(), outcome.savings.recomputed.len()) {
        (0, _) => String::new(),
        (count, all) if count == all => ", forward twice".to_owned(),
        (count, all) => format!(", forward twice in {count} of {all} blocks"),
    }
}
