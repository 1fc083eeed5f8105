//! What stages have: their blocks and their memory.

use std::ops::Range;

use super::counted::counted;
use crate::Error;
use crate::error::size;
use crate::pipeline::deal;
use crate::search::{Outcome, Planner, StageOutcome};

/// The blocks of every stage, by their places in the model: a range for each of its chunks.
///
/// # Errors
/// If the planner has not made this plan.
pub fn stage_blocks(planner: &Planner, outcome: &Outcome) -> Result<Vec<Vec<Range<usize>>>, Error> {
    let unplanned = || Error::impossible("the planner has not made this plan");
    let prepared = planner.prepared(&outcome.candidate).ok_or_else(unplanned)?;
    let stages = outcome.stages.iter().map(|stage| stage.blocks.clone());
    let stages: Vec<Range<usize>> = stages.collect();
    let chunks = deal(&prepared.graph, &stages, outcome.schedule.chunks());
    let of_stage =
        |stage: usize| chunks.iter().skip(stage).step_by(stages.len()).cloned().collect();
    Ok((0..stages.len()).map(of_stage).collect())
}

/// A line for every stage; of neighbours that have equally many blocks and equal memory, one.
pub(super) fn stages(planner: &Planner, outcome: &Outcome) -> Result<Vec<String>, Error> {
    let blocks = stage_blocks(planner, outcome)?;
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
            0 => format!("stage {first:2}  blocks {}  {memory}", ranges(&blocks[first])),
            _ => {
                format!("stages {first}..{last}, each {}:  {memory}", shares(&blocks[first..next]))
            }
        });
        first = next;
    }
    Ok(lines)
}

/// "0..3, 5..7".
fn ranges(blocks: &[Range<usize>]) -> String {
    let range = |Range { start, end }: &Range<usize>| format!("{start}..{end}");
    blocks.iter().map(range).collect::<Vec<_>>().join(", ")
}

/// How many blocks each of some stages has, and of which, chunk by chunk.
fn shares(stages: &[Vec<Range<usize>>]) -> String {
    let (Some(first), Some(last)) = (stages.first(), stages.last()) else { return String::new() };
    let share = |(first, last): (&Range<usize>, &Range<usize>)| {
        format!("{} of {}..{}", counted(first.len(), "block"), first.start, last.end)
    };
    first.iter().zip(last).map(share).collect::<Vec<_>>().join(" and ")
}

/// What a device of a stage has in its memory.
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
