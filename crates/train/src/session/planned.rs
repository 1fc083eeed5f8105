//! Predictions and measurements of a planned training, and the times of every rank's passes.

use thinwire_plan::report::PlanFile;
use thinwire_program::Plan;
use thinwire_program::pipeline::Pass;
use thinwire_report::training::{Passed, Planned, PlannedRank};

use crate::error::Error;
use crate::spmd::{Executor, Times, Went};

/// Largest number of passes whose times each rank sends: more than a page draws.
const PASSES_MAX: usize = 8192;

/// Measurements of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Number of steps that were taken.
    pub steps: u64,
    /// Seconds of a step.
    pub step_s: f64,
    /// Seconds of a step without waiting.
    pub busy_s: f64,
    /// Bytes by which the process has grown.
    pub memory_bytes: u64,
}

/// Returns the figures of all ranks, after all exchanges have ended.
///
/// # Errors
/// If a peer is lost.
pub fn gather(
    machine: &Executor<'_>,
    file: &PlanFile,
    plan: &Plan,
    measured: &Measured,
) -> Result<Planned, Error> {
    let Measured { steps, step_s, busy_s, memory_bytes } = *measured;
    let mut passed = passes(machine.times());
    passed.truncate(PASSES_MAX);
    let mine = PlannedRank {
        predicted_bytes: machine.predicted_bytes(),
        counted_bytes: machine.sent_bytes(),
        memory_bytes,
        // Of no steps there is no median.
        busy_s: if busy_s.is_nan() { 0.0 } else { busy_s },
        ..PlannedRank::default()
    };
    // A report leaves the times out.
    let mine = (mine, passed, machine.times().end_s);
    let all = machine.gather_bytes(serde_json::to_vec(&mine).map_err(Error::exchange)?)?;
    let per_stage = plan.stage_ranks();
    let told = |(rank, told): (usize, &Vec<u8>)| {
        let told: (PlannedRank, Vec<Passed>, f64) =
            serde_json::from_slice(told).map_err(|error| {
                Error::exchange(error)
                    .during(format!("rank {rank} reports its steps in another form"))
            })?;
        let (known, passed, end_s) = told;
        let stage = rank / per_stage;
        let predicted_memory_bytes = file.stage[stage].memory_bytes;
        Ok(PlannedRank { rank, stage, predicted_memory_bytes, passed, end_s, ..known })
    };
    let ranks = all.iter().enumerate().map(told).collect::<Result<_, Error>>()?;
    let ranks = since_the_first(ranks);
    Ok(Planned { model: file.model.clone(), steps, predicted_step_s: file.step_s, step_s, ranks })
}

/// Returns ranks with times relative to the start of the first pass on any rank.
fn since_the_first(mut ranks: Vec<PlannedRank>) -> Vec<PlannedRank> {
    let starts = ranks.iter().filter_map(|rank| Some(rank.passed.first()?.start_s));
    let zero_s = starts.fold(0.0, f64::min);
    for rank in &mut ranks {
        rank.end_s -= zero_s;
        for pass in &mut rank.passed {
            pass.start_s -= zero_s;
            pass.end_s -= zero_s;
        }
    }
    ranks
}

/// Returns a rank's passes in the last step.
pub fn passes(times: &Times) -> Vec<Passed> {
    let passed = |went: &Went| {
        let Pass { kind, chunk, micro_batch } = went.pass;
        let Went { start_s, end_s, waited_s, .. } = *went;
        Passed { kind, chunk, micro_batch, start_s, end_s, waited_s }
    };
    times.passes.iter().map(passed).collect()
}
