//! Codecs of gradients, by the names of parameters and as one line.

use std::collections::{BTreeMap, BTreeSet};

use thinwire_model::TensorId;
use thinwire_program::file::CodecFile;

use crate::Cluster;
use crate::search::{Outcome, ParameterOverride, Planner, Prepared, Settings};

/// Returns every codec that a plan uses, level by level, with its parameters.
pub(super) fn codecs(
    prepared: &Prepared,
    cluster: &Cluster,
    settings: &Settings,
    outcome: &Outcome,
) -> Vec<CodecFile> {
    // A parameter that several blocks share travels as the block wants that loses least.
    let loss = |coding: usize| settings.codings[coding].loss;
    let mut by_name: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (parameter, coding) in coded(outcome) {
        let known =
            by_name.entry(name(prepared, parameter.block, parameter.tensor)).or_insert(coding);
        if loss(coding.0) < loss(known.0) {
            *known = coding;
        }
    }
    let mut all: BTreeMap<(usize, usize), Vec<String>> = BTreeMap::new();
    for (name, coding) in by_name {
        all.entry(coding).or_default().push(name);
    }
    let file = |((coding, level), parameters): ((usize, usize), Vec<String>)| CodecFile {
        name: settings.codings[coding].to_string(),
        level: (level > 0).then(|| cluster.levels[level].name.clone()),
        within: (level > 0)
            .then(|| cluster.levels[..level].iter().map(|inner| inner.size).product()),
        parameters,
    };
    all.into_iter().map(file).collect()
}

/// Describes the share of elements that each codec encodes, and the loss; returns `None` if nothing is
/// encoded.
pub(super) fn describe(planner: &Planner, outcome: &Outcome) -> Option<String> {
    let settings = planner.settings();
    let prepared = planner.prepared(&outcome.candidate)?;
    let mut shares = vec![0.0; settings.codings.len()];
    // What two blocks read is one gradient.
    let mut counted = BTreeSet::new();
    for (parameter, (coding, _)) in coded(outcome) {
        if counted.insert(name(prepared, parameter.block, parameter.tensor)) {
            shares[coding] += prepared.graph.tensors[parameter.tensor].elements() as f64;
        }
    }
    let used = settings.codings.iter().zip(shares).filter(|(_, elements)| *elements > 0.0);
    let share = |elements: f64| 100.0 * elements / prepared.parameters;
    let used: Vec<String> =
        used.map(|(coding, elements)| format!("{:.0} % as {coding}", share(elements))).collect();
    let lost = outcome.codec_error() / prepared.parameters;
    let budget = settings.error_budget;
    let text = || {
        format!(
            "gradients travel {}; {lost:.4} of them is lost, within a budget of {budget}",
            used.join(", ")
        )
    };
    (!used.is_empty()).then(text)
}

/// Returns the gradients that are encoded, each with its coding and the innermost level on which it is used.
fn coded(outcome: &Outcome) -> impl Iterator<Item = (&ParameterOverride, (usize, usize))> {
    let overrides = outcome.savings.overrides.iter();
    overrides.filter_map(|one| Some((one, one.transport.coding?)))
}

/// Returns the name of a block's parameter. `tensor` is the parameter of the first block of the class; the
/// name is that of the parameter at the same place in this block.
pub(super) fn name(prepared: &Prepared, block: usize, tensor: TensorId) -> String {
    let graph = &prepared.graph;
    let class = &prepared.classes[prepared.of_block[block]];
    let shift = graph.blocks[block].nodes.start - class.nodes.start;
    let reads = class.nodes.clone().find_map(|id| {
        let place = graph.nodes[id].inputs.iter().position(|input| *input == tensor)?;
        Some(graph.nodes[id + shift].inputs[place])
    });
    graph.tensors[reads.unwrap_or(tensor)].name.clone()
}
