//! Orders of a pipeline: in which turns the stages take the micro-batches.
//!
//! A turn is forward or backward of one micro-batch through one chunk. GPipe runs all forwards
//! first (Huang et al., "GPipe"), 1F1B begins a backward as soon as it can and so keeps at most as
//! many micro-batches as there are stages (Narayanan et al., "PipeDream"), and the interleaved form
//! of it gives every stage several chunks, which makes the idle time at both ends shorter
//! (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
//! Megatron-LM", section 2.2). Zero-bubble puts off the gradients of weights, which nobody waits
//! for (Qi et al., "Zero Bubble Pipeline Parallelism").

use std::collections::HashSet;

use thinwire_plan::pipeline::{Kind, Pass as Planned, Schedule};

use super::plan::invalid;
use crate::error::Error;

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// From the data to the loss.
    Forward,
    /// From the loss to the gradients; of what comes in alone, where a plan has [`Pass::Weight`].
    Backward,
    /// The gradients of parameters, where they are apart.
    Weight,
}

/// One micro-batch through one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Turn {
    /// The direction.
    pub pass: Pass,
    /// The chunk of the pipeline.
    pub chunk: usize,
    /// The micro-batch.
    pub micro_batch: usize,
}

/// All forwards, then all backwards.
pub fn gpipe(stage: usize, stages: usize, chunks: usize, micro_batches: usize) -> Vec<Turn> {
    let mine = || (stage..chunks).step_by(stages);
    let turns =
        |pass, chunk| (0..micro_batches).map(move |micro_batch| Turn { pass, chunk, micro_batch });
    let forward = mine().flat_map(|chunk| turns(Pass::Forward, chunk));
    let backward = mine().rev().flat_map(|chunk| turns(Pass::Backward, chunk));
    forward.chain(backward).collect()
}

/// One forward, one backward; interleaved, if there are more chunks than stages.
///
/// # Panics
/// If it is interleaved, and chunks or micro-batches are no multiple of the stages.
pub fn one_forward_one_backward(
    stage: usize,
    stages: usize,
    chunks: usize,
    micro_batches: usize,
) -> Vec<Turn> {
    let per_stage = chunks / stages;
    assert!(
        per_stage <= 1 || [chunks, micro_batches].iter().all(|count| count.is_multiple_of(stages))
    );
    let total = micro_batches * per_stage;
    let ahead = match per_stage {
        1 => stages - stage - 1,
        _ => 2 * (stages - stage - 1) + (per_stage - 1) * stages,
    };
    let turn = |pass: Pass, count: usize| {
        let within = if per_stage == 1 { 0 } else { count / stages % per_stage };
        let micro_batch = match per_stage {
            1 => count,
            _ => count / (stages * per_stage) * stages + count % stages,
        };
        let local = if pass == Pass::Forward { within } else { per_stage - 1 - within };
        Turn { pass, chunk: local * stages + stage, micro_batch }
    };
    let ahead = ahead.min(total);
    let mut turns: Vec<Turn> = (0..ahead).map(|count| turn(Pass::Forward, count)).collect();
    for count in 0..total {
        if ahead + count < total {
            turns.push(turn(Pass::Forward, ahead + count));
        }
        turns.push(turn(Pass::Backward, count));
    }
    turns
}

/// 1F1B with the gradients of parameters put off.
///
/// # Panics
/// If there are more chunks than stages.
pub fn zero_bubble(stage: usize, stages: usize, chunks: usize, micro_batches: usize) -> Vec<Turn> {
    assert_eq!(chunks, stages, "zero-bubble has one chunk a stage");
    let mut orders = planned(Schedule::ZeroBubble, stages, micro_batches).unwrap_or_default();
    orders.swap_remove(stage)
}

/// The orders of all stages under a planner's schedule, if it can be.
pub fn planned(schedule: Schedule, stages: usize, micro_batches: usize) -> Option<Vec<Vec<Turn>>> {
    let turn = |stage: usize, planned: &Planned| {
        let pass = match planned.kind {
            Kind::Forward => Pass::Forward,
            Kind::Backward => Pass::Backward,
            Kind::Weight => Pass::Weight,
        };
        let chunk = planned.chunk * stages + stage;
        Turn { pass, chunk, micro_batch: planned.micro_batch }
    };
    let orders = schedule.orders(stages, micro_batches)?.into_iter().enumerate();
    let order = |(stage, order): (usize, Vec<Planned>)| {
        order.iter().map(|planned| turn(stage, planned)).collect()
    };
    Some(orders.map(order).collect())
}

/// Whether the gradients of parameters are apart.
pub(super) fn is_apart(orders: &[Vec<Turn>]) -> bool {
    orders.iter().flatten().any(|turn| turn.pass == Pass::Weight)
}

/// Whether the orders of all stages come to an end with everything done once.
pub(super) fn check(
    orders: &[Vec<Turn>],
    chunks: usize,
    micro_batches: usize,
) -> Result<(), Error> {
    let mut done: HashSet<Turn> = HashSet::new();
    let mut at = vec![0; orders.len()];
    let ready = |turn: &Turn, done: &HashSet<Turn>| match turn.pass {
        Pass::Forward => turn.chunk == 0 || done.contains(&Turn { chunk: turn.chunk - 1, ..*turn }),
        Pass::Backward if turn.chunk + 1 == chunks => {
            done.contains(&Turn { pass: Pass::Forward, ..*turn })
        }
        Pass::Backward => done.contains(&Turn { chunk: turn.chunk + 1, ..*turn }),
        // What weights' gradients read is freed after them, so they come last.
        Pass::Weight => {
            chunks == orders.len() && done.contains(&Turn { pass: Pass::Backward, ..*turn })
        }
    };
    loop {
        let mut moved = false;
        for (stage, order) in orders.iter().enumerate() {
            while let Some(turn) = order.get(at[stage]).filter(|turn| ready(turn, &done)) {
                if turn.chunk % orders.len() != stage || !done.insert(*turn) {
                    return Err(invalid(format!("stage {stage} has no place for {turn:?}")));
                }
                at[stage] += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let expected = if is_apart(orders) { 3 } else { 2 } * chunks * micro_batches;
    let planned: usize = orders.iter().map(Vec::len).sum();
    if done.len() != expected || planned != expected {
        let found = done.len();
        return Err(invalid(format!(
            "orders come to {found} of {planned} turns, expected {expected}"
        )));
    }
    Ok(())
}
