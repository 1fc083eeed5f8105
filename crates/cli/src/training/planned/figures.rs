//! What was predicted of a planned training, and what was counted.

use anyhow::Result;
use thinwire_plan::output::PlanFile;
use thinwire_train::spmd::{Machine, Plan};

use crate::report::{Planned, PlannedRank};

/// What a rank tells of itself, as numbers of 16 bits, which f32 keeps.
const DIGITS: usize = 4;
const FIGURES: usize = 4;

/// The figures of all ranks, once everything has arrived.
///
/// # Errors
/// If a peer is lost.
pub fn gather(
    machine: &mut Machine<'_>,
    (file, plan): (&PlanFile, &Plan),
    (steps, step_s, busy_s): (u64, f64, f64),
    memory_bytes: u64,
) -> Result<Planned> {
    let predicted = machine.program().sent_bytes() * steps;
    let mine = [predicted, machine.sent_bytes(), memory_bytes, (1e6 * busy_s).ceil() as u64];
    let digits: Vec<f32> = mine.iter().flat_map(|figure| digits(*figure)).collect();
    let all = machine.gather(&digits)?;
    let per_stage = plan.stage_ranks();
    let rank = |(rank, digits): (usize, &[f32])| {
        let figures: Vec<u64> = digits.chunks(DIGITS).map(number).collect();
        PlannedRank {
            rank,
            stage: rank / per_stage,
            predicted_bytes: figures[0],
            counted_bytes: figures[1],
            predicted_memory_bytes: file.stage[rank / per_stage].memory_bytes,
            memory_bytes: figures[2],
            busy_s: figures[3] as f64 / 1e6,
        }
    };
    let ranks = all.chunks(FIGURES * DIGITS).enumerate().map(rank).collect();
    Ok(Planned { model: file.model.clone(), steps, predicted_step_s: file.step_s, step_s, ranks })
}

fn digits(figure: u64) -> [f32; DIGITS] {
    std::array::from_fn(|place| f32::from((figure >> (16 * place)) as u16))
}

fn number(digits: &[f32]) -> u64 {
    digits.iter().rev().fold(0, |number, digit| number << 16 | *digit as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_travel_exactly() {
        for figure in [0, 1, 65_535, 65_536, u64::MAX, 0x0123_4567_89ab_cdef] {
            assert_eq!(number(&digits(figure)), figure);
        }
    }
}
