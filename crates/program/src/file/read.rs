//! Converts the planner's file to a plan that can be run.
//!
//! The file has the blocks of each stage. With an interleaved schedule, each stage has several chunks,
//! and blocks are assigned to the stages in turn, in the file's proportions. Everything is checked,
//! since a file may have been edited, or may be for another model.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use thinwire_model::Graph;

use super::{ActivationFile, PlanFile};
use crate::pipeline::{Pass, Schedule, deal};
use crate::{BlockPlan, Coding, Error, MeshDim, Plan, Sharding, Share, Transport};

/// Largest number of ranks or micro-batches; a larger one is refused as a mistake.
const COUNT_MAX: usize = 1 << 16;
/// The largest number of micro-batches, over all parts and stages, for which orders fit in memory.
const PASSES_MAX: usize = 1 << 22;

impl Plan {
    /// Reads a file as the plan of the model that it names; `graph` is this model for one micro-batch.
    ///
    /// # Errors
    /// If the file is for another model, contradicts itself, or cannot be run.
    pub fn of_file(file: &PlanFile, graph: &Graph) -> Result<Plan, Error> {
        check_counts(file)?;
        let strategies = file.strategies(graph)?;
        let stages = file.stage.len();
        let chunks = chunks(file, graph)?;
        let recomputed = recomputed(file, graph)?;
        let block = |block: usize| {
            let chunk = chunks.iter().position(|chunk| chunk.contains(&block));
            let chunk = chunk.expect("chunks have all blocks");
            BlockPlan { chunk, recompute: recomputed[block] }
        };
        let names = ["outer", "inner"].iter().map(|name| (*name).to_owned());
        let names = names.chain((2..).map(|dim| format!("dimension {dim}")));
        let mesh = file.mesh.iter().zip(names).map(|(size, name)| MeshDim { name, size: *size });
        Ok(Plan {
            mesh: mesh.collect(),
            stages,
            strategies,
            blocks: (0..graph.blocks.len()).map(block).collect(),
            sharding: shardings(file, graph)?,
            codecs: codecs(file, graph)?,
            activations: activations(file)?,
            micro_batches: file.micro_batches,
            orders: orders(file.schedule, stages, file.micro_batches)?,
            shares: shares(file)?,
        })
    }
}

/// Checks the number of ranks, so that no product in the file overflows.
///
/// # Errors
/// If there are no ranks, or too many to be counted.
fn ranks(file: &PlanFile) -> Result<(), Error> {
    let sizes = file.mesh.iter().chain([&file.micro_batches]).copied().chain([file.stage.len()]);
    if let Some(size) = sizes.into_iter().find(|size| !(1..=COUNT_MAX).contains(size)) {
        let expected = format!("expected 1 to {COUNT_MAX} each");
        let (mesh, stages, micro) = (&file.mesh, file.stage.len(), file.micro_batches);
        return Err(Error::invalid(format!(
            "mesh {mesh:?}, {stages} stages, {micro} micro-batches: {size} is too few or too many, {expected}"
        )));
    }
    let ranks = file.mesh.iter().try_fold(file.stage.len(), |ranks, size| ranks.checked_mul(*size));
    match ranks {
        Some(..=COUNT_MAX) => Ok(()),
        _ => Err(Error::invalid(format!("mesh {:?} has too many ranks", file.mesh))),
    }
}

fn check_counts(file: &PlanFile) -> Result<(), Error> {
    ranks(file)?;
    let (batch, micro_batches) = (file.batch, file.micro_batches);
    if batch == 0 || !batch.is_multiple_of(micro_batches) {
        let message =
            format!("batch of {batch} does not divide into {micro_batches} micro-batches");
        return Err(Error::invalid(message));
    }
    let parts = file.shares.iter().fold(0_usize, |sum, share| sum.saturating_add(*share));
    let passes = parts.max(micro_batches).saturating_mul(file.stage.len());
    if passes > PASSES_MAX {
        let message = format!("{passes} micro-batches of all parts on all stages");
        return Err(Error::invalid(format!("{message}, expected at most {PASSES_MAX}")));
    }
    Ok(())
}

/// Returns the index of the block with this name.
fn block(graph: &Graph, name: &str) -> Result<usize, Error> {
    let found = graph.blocks.iter().position(|block| block.name == name);
    found.ok_or_else(|| Error::invalid(format!("the model has no block '{name}'")))
}

/// Returns for every block whether its forward pass is computed again.
fn recomputed(file: &PlanFile, graph: &Graph) -> Result<Vec<bool>, Error> {
    let mut all = vec![file.recompute; graph.blocks.len()];
    for name in &file.recomputed {
        all[block(graph, name)?] = true;
    }
    Ok(all)
}

/// Returns the index of every parameter in the order of parameters, by name; if a name is repeated, the first
/// one counts.
fn parameters(graph: &Graph) -> HashMap<&str, usize> {
    let mut places = HashMap::new();
    for (place, (_, tensor)) in graph.parameters().enumerate() {
        places.entry(&tensor.name[..]).or_insert(place);
    }
    places
}

fn place(places: &HashMap<&str, usize>, name: &str) -> Result<usize, Error> {
    let unknown = || Error::invalid(format!("the model has no parameter '{name}'"));
    places.get(name).copied().ok_or_else(unknown)
}

/// Returns the sharding of every parameter.
fn shardings(file: &PlanFile, graph: &Graph) -> Result<Vec<Sharding>, Error> {
    let places = parameters(graph);
    let mut all = vec![sharding(file.zero)?; graph.parameters().count()];
    for given in &file.division {
        let sharding = sharding(given.zero)?;
        for name in &given.parameters {
            all[place(&places, name)?] = sharding;
        }
    }
    Ok(all)
}

fn sharding(zero: u8) -> Result<Sharding, Error> {
    match zero {
        0 => Ok(Sharding::None),
        1 => Ok(Sharding::Optimizer),
        2 => Ok(Sharding::Gradients),
        3 => Ok(Sharding::Parameters),
        other => Err(Error::invalid(format!("zero = {other}, expected 0, 1, 2 or 3"))),
    }
}

/// Returns the transport of every parameter's gradient.
fn codecs(file: &PlanFile, graph: &Graph) -> Result<Vec<Transport>, Error> {
    let places = parameters(graph);
    let mut codecs = vec![Transport::raw(); graph.parameters().count()];
    for given in &file.codec {
        let within = within(&given.name, given.level.as_deref(), given.within)?;
        let coding = Coding::parse(&given.name)?;
        for name in &given.parameters {
            codecs[place(&places, name)?] = Transport { codec: Arc::clone(coding.codec()), within };
        }
    }
    Ok(codecs)
}

/// Returns the transports of activations and their gradients.
fn activations(file: &PlanFile) -> Result<Vec<Transport>, Error> {
    let transport = |given: &ActivationFile| {
        let within = within(&given.name, given.level.as_deref(), given.within)?;
        let coding = Coding::of_activations(&given.name)?;
        Ok(Transport { codec: Arc::clone(coding.codec()), within })
    };
    file.activation.iter().map(transport).collect()
}

/// Returns the number of neighbours within which a codec is not used.
fn within(name: &str, level: Option<&str>, within: Option<usize>) -> Result<usize, Error> {
    match (level, within) {
        (None, _) => Ok(1),
        (Some(_), Some(within)) => Ok(within),
        (Some(level), None) => {
            let message = format!("codec {name} from level '{level}' on");
            let expected = "expected the number of devices within which the codec is not used";
            Err(Error::invalid(format!("{message}, {expected}: within = 8")))
        }
    }
}

/// Returns the work of every part of the batch, if parts have unequal work.
fn shares(file: &PlanFile) -> Result<Vec<Share>, Error> {
    if file.shares.iter().all(|share| *share == file.micro_batches) {
        return Ok(Vec::new());
    }
    let share = |micro_batches: &usize| {
        if *micro_batches > COUNT_MAX {
            let message = format!("a part of the mesh has {micro_batches} micro-batches");
            return Err(Error::invalid(format!("{message}, expected at most {COUNT_MAX}")));
        }
        let orders = orders(file.schedule, file.stage.len(), *micro_batches)?;
        Ok(Share { micro_batches: *micro_batches, orders })
    };
    file.shares.iter().map(share).collect()
}

fn orders(
    schedule: Schedule,
    stages: usize,
    micro_batches: usize,
) -> Result<Vec<Vec<Pass>>, Error> {
    let impossible = || {
        let found = format!("schedule {schedule} of {stages} stages");
        Error::invalid(format!(
            "{found} with {micro_batches} micro-batches, expected a multiple of the stages"
        ))
    };
    schedule.orders(stages, micro_batches).ok_or_else(impossible)
}

/// Returns the blocks of every chunk of the pipeline.
fn chunks(file: &PlanFile, graph: &Graph) -> Result<Vec<Range<usize>>, Error> {
    let stages = stages(file, graph)?;
    let per_stage = file.schedule.chunks();
    let count = per_stage.saturating_mul(stages.len());
    if per_stage == 0 || count > graph.blocks.len() {
        let blocks = graph.blocks.len();
        return Err(Error::invalid(format!("{per_stage} chunks a stage for {blocks} blocks")));
    }
    Ok(deal(graph, &stages, per_stage))
}

/// Returns the blocks of every stage; together they are all blocks, in order.
fn stages(file: &PlanFile, graph: &Graph) -> Result<Vec<Range<usize>>, Error> {
    let mut stages: Vec<Range<usize>> = Vec::new();
    for (at, stage) in file.stage.iter().enumerate() {
        let (first, last) = (block(graph, &stage.first)?, block(graph, &stage.last)?);
        let next = stages.last().map_or(0, |before| before.end);
        if first != next || last < first {
            let expected = graph.blocks.get(next).map_or("no more blocks", |block| &block.name);
            let found = format!("'{}' to '{}'", stage.first, stage.last);
            return Err(Error::invalid(format!(
                "stage {at} has {found}, expected it from '{expected}'"
            )));
        }
        stages.push(first..last + 1);
    }
    match stages.last().map(|stage| stage.end) {
        Some(end) if end == graph.blocks.len() => Ok(stages),
        end => {
            let missing = &graph.blocks[end.unwrap_or(0)].name;
            Err(Error::invalid(format!("no stage has block '{missing}'")))
        }
    }
}
