//! Predictions and counts of a planned training, and the times of every rank's passes.

use anyhow::{Context, Result};
use thinwire_plan::report::PlanFile;
use thinwire_program::Plan;
use thinwire_program::pipeline::{Kind, Pass};
use thinwire_train::spmd::{Machine, Times, Went};

use crate::report::{Passed, Planned, PlannedRank};

/// Words of 16 bits that carry one number between ranks: f32 keeps each exactly.
const DIGITS: usize = 4;
const FIGURES: usize = 4;

/// Numbers that describe a pass: three small ones and three times.
const PASSED: usize = 6;
/// Of so many passes each rank tells at most: of more than a page draws.
const PASSES_MAX: usize = 8192;

/// Measurements of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Steps that were taken.
    pub steps: u64,
    /// Seconds of a step.
    pub step_s: f64,
    /// Seconds of a step without waiting.
    pub busy_s: f64,
    /// Bytes by which the process has grown.
    pub memory_bytes: u64,
}

/// The figures of all ranks, once everything has arrived.
///
/// # Errors
/// If a peer is lost.
pub fn gather(
    machine: &mut Machine<'_>,
    (file, plan): (&PlanFile, &Plan),
    measured: &Measured,
) -> Result<Planned> {
    let Measured { steps, step_s, busy_s, memory_bytes } = *measured;
    let predicted = machine.predicted_bytes();
    let mine = [predicted, machine.sent_bytes(), memory_bytes, (1e6 * busy_s).ceil() as u64];
    let digits: Vec<f32> = mine.iter().flat_map(|figure| digits(*figure)).collect();
    let all = machine.gather(&digits)?;
    let times = times(machine)?;
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
            passed: times[rank].0.clone(),
            end_s: times[rank].1,
        }
    };
    let ranks = all.chunks(FIGURES * DIGITS).enumerate().map(rank).collect();
    Ok(Planned { model: file.model.clone(), steps, predicted_step_s: file.step_s, step_s, ranks })
}

/// Returns every rank's passes in the last step, and its end, in seconds since the first one began.
fn times(machine: &mut Machine<'_>) -> Result<Vec<(Vec<Passed>, f64)>> {
    let mine = machine.times().clone();
    let told = mine.passes.len().min(PASSES_MAX);
    let counts = machine.gather(&[told as f32])?;
    let most = (counts.iter().copied().fold(0.0, f32::max) as usize).min(PASSES_MAX);
    let all = machine.gather(&numbers(&mine, most))?;
    let of_rank = |(numbers, count): (&[f32], &f32)| {
        let passed = numbers[1..].chunks(PASSED).take(*count as usize).map(passed);
        Ok((passed.collect::<Result<Vec<_>>>()?, f64::from(numbers[0])))
    };
    let ranks = all.chunks(1 + most * PASSED).zip(&counts).map(of_rank);
    let mut ranks = ranks.collect::<Result<Vec<_>>>()?;
    let starts = ranks.iter().filter_map(|(passed, _)| Some(passed.first()?.start_s));
    let zero_s = starts.fold(0.0, f64::min);
    for (passed, end_s) in &mut ranks {
        *end_s -= zero_s;
        for pass in passed {
            pass.start_s -= zero_s;
            pass.end_s -= zero_s;
        }
    }
    Ok(ranks)
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

/// Times as numbers, filled up to so many passes.
fn numbers(times: &Times, count: usize) -> Vec<f32> {
    let of_pass = |pass: &Passed| {
        let whole = [pass.kind as usize, pass.chunk, pass.micro_batch].map(|number| number as f32);
        let times = [pass.start_s, pass.end_s, pass.waited_s].map(|time| time as f32);
        [whole, times].concat()
    };
    let told = passes(times);
    let told = told.iter().take(count).flat_map(of_pass);
    let mut all: Vec<f32> = std::iter::once(times.end_s as f32).chain(told).collect();
    all.resize(1 + count * PASSED, 0.0);
    all
}

fn passed(numbers: &[f32]) -> Result<Passed> {
    let whole = |place: usize| numbers[place] as usize;
    let time = |place: usize| f64::from(numbers[place]);
    let kind = Kind::ALL.get(whole(0)).copied();
    Ok(Passed {
        kind: kind.with_context(|| format!("a rank told of a pass of kind {}", numbers[0]))?,
        chunk: whole(1),
        micro_batch: whole(2),
        start_s: time(3),
        end_s: time(4),
        waited_s: time(5),
    })
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
    fn passes_come_back_from_their_numbers() {
        let pass = Pass { kind: Kind::Weight, chunk: 3, micro_batch: 70 };
        let went = Went { pass, start_s: -2.5, end_s: -2.0, waited_s: 0.25 };
        let times = Times { passes: vec![went], end_s: 0.5 };
        let all = numbers(&times, 2);
        assert_eq!((all.len(), all[0]), (1 + 2 * PASSED, 0.5));
        let expected = Passed {
            kind: Kind::Weight,
            chunk: 3,
            micro_batch: 70,
            start_s: -2.5,
            end_s: -2.0,
            waited_s: 0.25,
        };
        assert_eq!(passed(&all[1..=PASSED]).unwrap(), expected);
    }

    #[test]
    fn numbers_travel_exactly() {
        for figure in [0, 1, 65_535, 65_536, u64::MAX, 0x0123_4567_89ab_cdef] {
            assert_eq!(number(&digits(figure)), figure);
        }
    }
}
