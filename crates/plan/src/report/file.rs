//! The plan file for the result of a planner.

use thinwire_model::fingerprint;
use thinwire_program::PlanFile;
use thinwire_program::file::{FIRST_VERSION, Numbers, StageFile, VERSION, WayFile};

use super::activations::activations;
use super::codecs::codecs;
use super::graph_model::GraphModel;
use super::levels::crossed_by_activations;
use super::savings::{divisions, recomputed};
use crate::cost::Precision;
use crate::search::{Chain, Found, Outcome, Planner, StageOutcome, costs, zero_stage};
use crate::{Cluster, Error};

/// Returns the plan file for the result of a planner.
///
/// # Errors
/// If this planner has not made the plan.
pub fn plan_file(
    model: &str,
    sequence: usize,
    planner: &Planner,
    cluster: &Cluster,
    found: &Found,
) -> Result<PlanFile, Error> {
    let cluster = found.used(cluster);
    let Outcome { candidate, schedule, choice, stages, .. } = &found.best;
    let prepared = planner.prepared_of(&found.best)?;
    let graph = &prepared.graph;
    let costs = costs(cluster, candidate, &planner.settings_of(&found.best));
    let chain = Chain::new(prepared, &costs, candidate.rule)?;
    let way = |way: usize| {
        let used = choice.of_block.iter().enumerate().filter(|(_, of)| **of == way);
        let blocks: Vec<usize> = used.map(|(block, _)| block).collect();
        let class = prepared.of_block[blocks[0]];
        let first = prepared.of_block.iter().position(|of| *of == class).unwrap_or(0);
        let prefix = format!("{}.", graph.blocks[first].name);
        let nodes = chain.strategies(choice, way).into_iter().map(|(id, strategy)| {
            let name = &graph.nodes[id].name;
            let name = name.strip_prefix(&prefix).unwrap_or(name).to_owned();
            (name, graph.declaration(&graph.nodes[id]).describe(strategy))
        });
        let nodes = nodes.collect();
        let blocks = blocks.iter().map(|block| graph.blocks[*block].name.clone()).collect();
        WayFile { blocks, nodes }
    };
    let stage = |stage: &StageOutcome| StageFile {
        first: graph.blocks[stage.blocks.start].name.clone(),
        last: graph.blocks[stage.blocks.end - 1].name.clone(),
        memory_bytes: stage.bytes() as u64,
    };
    let (most, division) = divisions(prepared, &chain, &found.best);
    let mut file = PlanFile {
        model: model.to_owned(),
        version: FIRST_VERSION,
        fingerprint: format!("{:016x}", fingerprint(graph)),
        batch: planner.batch(),
        sequence,
        micro_batches: candidate.micro_batches,
        mesh: candidate.mesh.clone(),
        recompute: found.best.recomputed() == prepared.of_block.len(),
        recomputed: recomputed(prepared, &found.best),
        zero: zero_stage(most),
        precision: match planner.settings().precision == Precision::MIXED {
            true => Numbers::Mixed,
            false => Numbers::Single,
        },
        step_s: found.best.seconds,
        bound_s: found.bound_s,
        schedule: *schedule,
        stage: stages.iter().map(stage).collect(),
        shares: found.best.shares.clone(),
        devices: found.devices(),
        codec: codecs(prepared, cluster, planner.settings(), &found.best),
        activation: Vec::new(),
        division,
        way: (0..choice.variants.len()).map(way).collect(),
    };
    // Which levels activations cross, the step itself says; most plans encode none.
    if costs.activations.iter().any(Option::is_some) {
        let model = GraphModel::new(planner, &found.best, &file)?;
        let (_, bytes) = model.step()?;
        file.activation = activations(&costs, &crossed_by_activations(cluster, &costs, &bytes));
        file.version = if file.activation.is_empty() { FIRST_VERSION } else { VERSION };
    }
    Ok(file)
}
