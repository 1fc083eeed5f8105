//! What was predicted of a planned training beside what was counted.

use serde::Serialize;

use crate::figures::{bytes, ratio, seconds};
use crate::table::Table;

/// A planned training.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Planned {
    /// The model.
    pub model: String,
    /// Steps that were counted.
    pub steps: u64,
    /// What the plan predicts of a step.
    pub predicted_step_s: f64,
    /// The median of the second half of the steps.
    pub step_s: f64,
    /// Every rank.
    pub ranks: Vec<PlannedRank>,
}

/// One rank of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PlannedRank {
    /// Which.
    pub rank: usize,
    /// Its stage of the pipeline.
    pub stage: usize,
    /// Bytes that its program sends in all steps, headers included.
    pub predicted_bytes: u64,
    /// Bytes that it has handed to its links.
    pub counted_bytes: u64,
    /// What the plan says that it needs.
    pub predicted_memory_bytes: u64,
    /// By how much the process has grown, at its peak.
    pub memory_bytes: u64,
    /// Seconds of a step in which it waited for nobody, on average.
    pub busy_s: f64,
}

/// The table of all ranks.
pub fn table(planned: &Planned) -> String {
    let mut table = Table::new([
        "rank",
        "stage",
        "sent, predicted",
        "sent, counted",
        "memory, predicted",
        "memory, grown",
        "busy",
    ]);
    let steps = planned.steps.max(1) as f64;
    for rank in &planned.ranks {
        table.row([
            rank.rank.to_string(),
            rank.stage.to_string(),
            bytes(rank.predicted_bytes as f64 / steps),
            bytes(rank.counted_bytes as f64 / steps),
            bytes(rank.predicted_memory_bytes as f64),
            bytes(rank.memory_bytes as f64),
            seconds(rank.busy_s),
        ]);
    }
    let equal = planned.ranks.iter().all(|rank| rank.predicted_bytes == rank.counted_bytes);
    let verdict = if equal { "as many as predicted" } else { "NOT as many as predicted" };
    let (predicted, measured) = (planned.predicted_step_s, planned.step_s);
    format!(
        "{}\nbytes sent in {} steps: {verdict}\nstep: {} predicted, {} measured ({} of it)\n",
        table,
        planned.steps,
        seconds(predicted),
        seconds(measured),
        ratio(measured / predicted)
    )
}
