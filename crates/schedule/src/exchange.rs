//! Plain messages as schedules: all-to-all, and one message between two ranks.
//!
//! Nothing is merged. Sent and received elements are different ones of `values`: first those that this
//! rank sends to each rank, in rank order, then those that it receives from each.
//!
//! All-to-all, per rank: n-1 messages at once, everything but its own part sent and received.

use std::ops::Range;

use thinwire_wire::{Rank, World};

use crate::{Operation, Schedule, Slot, Task};

/// Returns the schedule that sends `sends[r]` elements to rank r and receives `recvs[r]` elements from it.
/// This rank's part for itself is not in it: whoever calls copies it.
///
/// # Panics
/// If there is not one length per rank.
pub fn all_to_all(world: World, sends: &[usize], recvs: &[usize]) -> Schedule {
    assert!(sends.len() == world.size() && recvs.len() == world.size(), "a length per rank");
    let mut schedule = Schedule::default();
    let sent: usize = sends.iter().sum();
    let (outgoing, incoming) = (places(sends, 0), places(recvs, sent));
    for offset in 1..world.size() {
        let (to, from) = (world.after(offset), world.before(offset));
        push_send(&mut schedule, to, outgoing[to.index()].clone());
        push_recv(&mut schedule, from, incoming[from.index()].clone());
    }
    schedule
}

/// Returns the schedule that sends all `elements` to one rank.
pub fn send(to: Rank, elements: usize) -> Schedule {
    let mut schedule = Schedule::default();
    push_send(&mut schedule, to, 0..elements);
    schedule
}

/// Returns the schedule that receives all `elements` from one rank.
pub fn recv(from: Rank, elements: usize) -> Schedule {
    let mut schedule = Schedule::default();
    push_recv(&mut schedule, from, 0..elements);
    schedule
}

/// Neighbouring ranges of these lengths from `start` on.
fn places(lengths: &[usize], start: usize) -> Vec<Range<usize>> {
    let mut end = start;
    let place = |length: &usize| {
        end += length;
        end - length..end
    };
    lengths.iter().map(place).collect()
}

fn push_send(schedule: &mut Schedule, to: Rank, range: Range<usize>) {
    if range.is_empty() {
        return;
    }
    let slot = new_slot(schedule, &range);
    let encoded = push(schedule, Operation::Encode { range, slot }, Vec::new());
    push(schedule, Operation::Send { slot, to, message: 0 }, vec![encoded]);
}

fn push_recv(schedule: &mut Schedule, from: Rank, range: Range<usize>) {
    if range.is_empty() {
        return;
    }
    let slot = new_slot(schedule, &range);
    let received = push(schedule, Operation::Recv { slot, from, message: 0 }, Vec::new());
    push(schedule, Operation::Decode { slot, range }, vec![received]);
}

fn new_slot(schedule: &mut Schedule, range: &Range<usize>) -> Slot {
    schedule.slots.push(range.len());
    Slot(schedule.slots.len() as u32 - 1)
}

fn push(schedule: &mut Schedule, operation: Operation, after: Vec<u32>) -> u32 {
    schedule.tasks.push(Task { operation, after, result: false });
    schedule.tasks.len() as u32 - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify;

    #[test]
    fn every_part_has_one_sender_and_one_receiver() {
        for size in [1, 2, 3, 5] {
            let length = |from: usize, to: usize| (from * 3 + to) % 4;
            let schedules: Vec<Schedule> = (0..size)
                .map(|rank| {
                    let world = World::new(rank as u32, size as u32).unwrap();
                    let sends: Vec<usize> = (0..size).map(|to| length(rank, to)).collect();
                    let recvs: Vec<usize> = (0..size).map(|from| length(from, rank)).collect();
                    all_to_all(world, &sends, &recvs)
                })
                .collect();
            verify(&schedules).unwrap();
        }
    }

    #[test]
    fn a_message_has_two_ends() {
        verify(&[send(Rank(1), 7), recv(Rank(0), 7)]).unwrap();
        assert!(verify(&[send(Rank(1), 7), Schedule::default()]).is_err());
    }
}
