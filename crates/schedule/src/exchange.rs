//! Plain messages as schedules: all-to-all, and one message between two ranks.
//!
//! Nothing is merged. Sent and received elements are different parts of `values`: first the elements
//! that this rank sends to each rank, in rank order, then those that it receives from each.
//!
//! All-to-all, per rank: n-1 messages at once, which send and receive everything but its own part.

use std::ops::Range;

use thinwire_wire::{Rank, World};

use crate::builder::Builder;
use crate::{Operation, Schedule};

/// Returns the schedule that sends `sends[r]` elements to rank r and receives `recvs[r]` elements from
/// it. This rank's part for itself is not included: the caller copies it.
///
/// # Panics
/// If there is not one length per rank.
pub fn all_to_all(world: World, sends: &[usize], recvs: &[usize]) -> Schedule {
    assert!(sends.len() == world.size() && recvs.len() == world.size(), "a length per rank");
    let mut builder = Builder::default();
    let sent: usize = sends.iter().sum();
    let (outgoing, incoming) = (places(sends, 0), places(recvs, sent));
    for offset in 1..world.size() {
        let (to, from) = (world.after(offset), world.before(offset));
        push_send(&mut builder, to, outgoing[to.index()].clone());
        push_recv(&mut builder, from, incoming[from.index()].clone());
    }
    builder.finish()
}

/// Returns the schedule that sends all `elements` to one rank.
pub fn send(to: Rank, elements: usize) -> Schedule {
    let mut builder = Builder::default();
    push_send(&mut builder, to, 0..elements);
    builder.finish()
}

/// Returns the schedule that receives all `elements` from one rank.
pub fn recv(from: Rank, elements: usize) -> Schedule {
    let mut builder = Builder::default();
    push_recv(&mut builder, from, 0..elements);
    builder.finish()
}

/// Returns neighbouring ranges of these lengths, from `start` on.
fn places(lengths: &[usize], start: usize) -> Vec<Range<usize>> {
    let mut end = start;
    let place = |length: &usize| {
        end += length;
        end - length..end
    };
    lengths.iter().map(place).collect()
}

fn push_send(builder: &mut Builder, to: Rank, range: Range<usize>) {
    if range.is_empty() {
        return;
    }
    let slot = builder.slot(range.len());
    let encoded = builder.push(Operation::Encode { range, slot }, [].into_iter());
    builder.push(Operation::Send { slot, to, message: 0 }, [encoded].into_iter());
}

fn push_recv(builder: &mut Builder, from: Rank, range: Range<usize>) {
    if range.is_empty() {
        return;
    }
    let slot = builder.slot(range.len());
    let received = builder.push(Operation::Recv { slot, from, message: 0 }, [].into_iter());
    builder.push(Operation::Decode { slot, range }, [received].into_iter());
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
