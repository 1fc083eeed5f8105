//! Stages of a plan: their blocks and their memory.

use std::ops::Range;

use thinwire_model::Graph;
use thinwire_program::counted;

use crate::Error;
use crate::error::size;
use crate::pipeline::deal;
use crate::search::{Outcome, Planner, StageOutcome};

/// Returns the blocks of every stage, by their places in the model: a range for each chunk.
///
/// # Errors
/// If this planner has not made the plan.
pub fn stage_blocks(planner: &Planner, outcome: &Outcome) -> Result<Vec<Vec<Range<usize>>>, Error> {
    let prepared = planner.prepared_of(outcome)?;
    let stages = outcome.stages.iter().map(|stage| stage.blocks.clone());
    let stages: Vec<Range<usize>> = stages.collect();
    let chunks = deal(&prepared.graph, &stages, outcome.schedule.chunks());
    let of_stage =
        |stage: usize| chunks.iter().skip(stage).step_by(stages.len()).cloned().collect();
    Ok((0..stages.len()).map(of_stage).collect())
}

/// Returns a line for every stage, or one for neighbouring stages with the same number of blocks and equal
/// memory.
pub(super) fn stages(planner: &Planner, outcome: &Outcome) -> Result<Vec<String>, Error> {
    let blocks = stage_blocks(planner, outcome)?;
    let prepared = planner.prepared_of(outcome)?;
    let ranges = |all: &[Range<usize>]| {
        let range = |range: &Range<usize>| named(&prepared.graph, range);
        all.iter().map(range).collect::<Vec<_>>().join(" and ")
    };
    let told = |at: usize| {
        let lengths: Vec<usize> = blocks[at].iter().map(Range::len).collect();
        (lengths, memory_of(&outcome.stages[at]))
    };
    let mut lines = Vec::new();
    let mut first = 0;
    for next in 1..=blocks.len() {
        if next < blocks.len() && told(next) == told(first) {
            continue;
        }
        let (last, (_, memory)) = (next - 1, told(first));
        lines.push(match last - first {
            0 => format!("stage {first:2}  {}  {memory}", ranges(&blocks[first])),
            _ => {
                let chunks = blocks[first].iter().zip(&blocks[last]);
                let chunks: Vec<_> = chunks.map(|(from, to)| from.start..to.end).collect();
                let each = blocks[first].iter().map(Range::len).sum();
                let (each, chunks) = (counted(each, "block"), ranges(&chunks));
                format!("stages {first} to {last}  {each} each of {chunks}  {memory}")
            }
        });
        first = next;
    }
    Ok(lines)
}

/// Returns the names of a range of blocks, such as "block.0 to block.3".
fn named(graph: &Graph, blocks: &Range<usize>) -> String {
    let name = |block: usize| &graph.blocks[block].name;
    match blocks.len() {
        1 => name(blocks.start).clone(),
        _ => format!("{} to {}", name(blocks.start), name(blocks.end - 1)),
    }
}

/// Describes the memory of a device of a stage.
fn memory_of(stage: &StageOutcome) -> String {
    let (bytes, state) = (stage.bytes(), stage.cost.state_bytes);
    let counted = (bytes - stage.fixed_bytes) / (1.0 + stage.slack);
    let besides = match bytes - counted {
        none if none < 1.0 => String::new(),
        besides => format!(", {} besides", size(besides)),
    };
    format!(
        "{} of {} a device: {} parameters and optimiser, {} waiting for backward{besides}",
        size(bytes),
        size(stage.memory_bytes),
        size(state),
        size((counted - state).max(0.0)),
    )
}
