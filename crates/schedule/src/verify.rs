//! The check that schedules keep their laws.
//!
//! [`verify`] checks the laws of the `schedule` module that can be checked without running
//! anything; [`simulate`](crate::simulate) shows that no task waits for ever. It is for tests,
//! since its time grows with the square of the number of tasks.

use std::collections::BTreeMap;

use thinwire_wire::Rank;

use crate::{Operation, Schedule};

/// A law of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Law {
    /// A task waits only for tasks before it in the list.
    WaitsForEarlier,
    /// Only results wait for results.
    ResultsLast,
    /// A slot is filled once, before it is read.
    FilledOnce,
    /// A slot holds as many elements as its range, at both ends of a message.
    Length,
    /// An element is encoded at most once.
    EncodedOnce,
    /// Of two tasks that touch the same values or the same slot, one waits for the other.
    Ordered,
    /// Every send has one recv, and the reverse.
    Matched,
    /// Every task can run in the end.
    Progress,
}

/// A task that breaks a law.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task {task} of {rank} {}", .law.breach())]
pub struct Violation {
    /// The rank whose schedule it is in.
    pub rank: Rank,
    /// The index of the task.
    pub task: u32,
    /// The law that the task breaks.
    pub law: Law,
}

impl Law {
    /// Returns a description of the breach, which follows the name of a task.
    fn breach(self) -> &'static str {
        match self {
            Law::WaitsForEarlier => "waits for a task that is not before it",
            Law::ResultsLast => "is no result and waits for one",
            Law::FilledOnce => "fills a slot again, or reads one that may not be filled yet",
            Law::Length => "has a range, a slot or a peer's slot of another length",
            Law::EncodedOnce => "encodes values that are encoded already",
            Law::Ordered => "shares values with an earlier task that it does not wait for",
            Law::Matched => "has no partner under its message number, or more than one",
            Law::Progress => "waits for ever",
        }
    }
}

/// Checks the schedules of all ranks, in order of ranks.
///
/// # Errors
/// The first task found to break a law.
pub fn verify(schedules: &[Schedule]) -> Result<(), Violation> {
    for (rank, schedule) in schedules.iter().enumerate() {
        verify_alone(schedule).map_err(|(task, law)| violation(rank, task, law))?;
    }
    verify_messages(schedules)
}

fn violation(rank: usize, task: usize, law: Law) -> Violation {
    Violation { rank: Rank(rank as u32), task: task as u32, law }
}

/// Checks what can be seen in one rank's schedule.
fn verify_alone(schedule: &Schedule) -> Result<(), (usize, Law)> {
    let mut ancestors: Vec<Vec<bool>> = Vec::new();
    for (index, task) in schedule.tasks.iter().enumerate() {
        let mut before = vec![false; index];
        for &after in &task.after {
            let after = after as usize;
            if after >= index {
                return Err((index, Law::WaitsForEarlier));
            }
            if schedule.tasks[after].result && !task.result {
                return Err((index, Law::ResultsLast));
            }
            before[after] = true;
            before.iter_mut().zip(&ancestors[after]).for_each(|(mine, theirs)| *mine |= theirs);
        }
        verify_task(schedule, index, &before)?;
        ancestors.push(before);
    }
    Ok(())
}

/// Checks one task against those before it; `ancestors` tells for which of them it waits.
fn verify_task(schedule: &Schedule, index: usize, ancestors: &[bool]) -> Result<(), (usize, Law)> {
    let operation = &schedule.tasks[index].operation;
    let length = schedule.slots.get(operation.slot().index()).copied();
    let elements = operation.range().map(ExactSizeIterator::len);
    if length.is_none_or(|length| length == 0) || (elements.is_some() && elements != length) {
        return Err((index, Law::Length));
    }
    let mut filled = false;
    for (earlier, &waits) in schedule.tasks.iter().zip(ancestors) {
        let earlier = &earlier.operation;
        if earlier.slot() == operation.slot() && earlier.fills() {
            if operation.fills() || !waits {
                return Err((index, Law::FilledOnce));
            }
            filled = true;
        }
        if share_values(earlier, operation) {
            let both = (earlier, operation);
            if matches!(both, (Operation::Encode { .. }, Operation::Encode { .. })) {
                return Err((index, Law::EncodedOnce));
            }
            if !waits {
                return Err((index, Law::Ordered));
            }
        }
    }
    if filled || operation.fills() { Ok(()) } else { Err((index, Law::FilledOnce)) }
}

fn share_values(one: &Operation, other: &Operation) -> bool {
    let (Some(one), Some(other)) = (one.range(), other.range()) else { return false };
    one.start < other.end && other.start < one.end
}

/// Checks that sends and recvs are pairs.
fn verify_messages(schedules: &[Schedule]) -> Result<(), Violation> {
    let mut sends = BTreeMap::new();
    let mut recvs = BTreeMap::new();
    for (rank, schedule) in schedules.iter().enumerate() {
        for (index, task) in schedule.tasks.iter().enumerate() {
            let length = schedule.slots[task.operation.slot().index()];
            let unique = match task.operation {
                Operation::Send { to, message, .. } => {
                    sends.insert((rank, to.index(), message), (rank, index, length)).is_none()
                }
                Operation::Recv { from, message, .. } => {
                    recvs.insert((from.index(), rank, message), (rank, index, length)).is_none()
                }
                _ => true,
            };
            if !unique {
                return Err(violation(rank, index, Law::Matched));
            }
        }
    }
    for (mine, theirs) in [(&sends, &recvs), (&recvs, &sends)] {
        for (message, &(rank, index, length)) in mine {
            let partner = theirs.get(message).ok_or(violation(rank, index, Law::Matched))?;
            if partner.2 != length || message.0 == message.1 {
                return Err(violation(rank, index, Law::Length));
            }
        }
    }
    Ok(())
}
