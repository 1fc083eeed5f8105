//! A run of all ranks' schedules in memory, in an adversarial order.
//!
//! Everything that is allowed to happen next may happen next: a seeded generator picks ready tasks and
//! messages, oldest first, newest first, at random, or with one rank lagging behind all others. It
//! serves tests of schedules and codecs; `collective` runs schedules on real links.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use thinwire_wire::Rank;
use thinwire_wire::random::Key;

use crate::verify::{Law, Violation};
use crate::{Operation, Schedule, Slot};

/// The relation of slots to values.
#[derive(Clone, Copy)]
pub enum Encoding<'a> {
    /// The codec `none` without copies: an encode does nothing, a message is read from the sender's
    /// values as late as when it is delivered, and values to be decoded are written to the receiver's
    /// values at that moment. Correct only if [`Schedule::in_place`] holds.
    InPlace,
    /// Encoding and then decoding values returns the result of this function, which has the length of
    /// its argument.
    Through(&'a dyn Fn(&[f32]) -> Vec<f32>),
}

impl fmt::Debug for Encoding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Encoding::InPlace => "InPlace",
            Encoding::Through(_) => "Through",
        })
    }
}

/// Runs the schedules of all ranks, in order of ranks, on their values. Equal seeds give
/// equal orders of events.
///
/// # Errors
/// If a task can never run, or a slot is read before it is filled.
///
/// # Panics
/// If there are not as many values as schedules, or a schedule goes beyond its values.
pub fn run(
    schedules: &[Schedule],
    values: &mut [Vec<f32>],
    encoding: Encoding<'_>,
    seed: u64,
) -> Result<(), Violation> {
    assert_eq!(schedules.len(), values.len(), "values of every rank");
    let ranks = schedules.iter().zip(values).map(|(schedule, values)| Host::new(schedule, values));
    let mut network =
        Network { hosts: ranks.collect(), posted: HashMap::new(), possible: Vec::new(), encoding };
    network.start();
    let mut adversary = Adversary { seed, steps: 0, laggard: seed as usize / 4 % schedules.len() };
    while !network.possible.is_empty() {
        let choice = adversary.choose(&network.possible);
        let (rank, task) = network.possible.remove(choice);
        network.perform(rank, task)?;
    }
    let stuck = |host: &Host<'_>| host.waits.iter().position(|waits| *waits != DONE);
    match network.hosts.iter().enumerate().find_map(|(rank, host)| Some((rank, stuck(host)?))) {
        Some((rank, task)) => Err(violation(rank, task, Law::Progress)),
        None => Ok(()),
    }
}

fn violation(rank: usize, task: usize, law: Law) -> Violation {
    Violation { rank: Rank(rank as u32), task: task as u32, law }
}

/// Decides which event happens next.
struct Adversary {
    seed: u64,
    steps: u64,
    laggard: usize,
}

impl Adversary {
    fn choose(&mut self, possible: &[(usize, usize)]) -> usize {
        self.steps += 1;
        let key = Key { seed: self.seed, step: 0, tensor: 0 };
        let random = key.below(self.steps, possible.len() as u32) as usize;
        match self.seed % 4 {
            0 => 0,
            1 => possible.len() - 1,
            2 => random,
            _ => {
                let mut quick = (random..possible.len()).chain(0..random);
                quick.find(|&choice| possible[choice].0 != self.laggard).unwrap_or(random)
            }
        }
    }
}

/// The waiting count of a task that is done.
const DONE: usize = usize::MAX;

/// Where a slot's contents are.
enum Content {
    Buffer(Vec<f32>),
    View(Range<usize>),
}

/// One rank.
struct Host<'a> {
    schedule: &'a Schedule,
    values: &'a mut Vec<f32>,
    slots: Vec<Option<Content>>,
    /// For every task, the number of tasks for which it still waits.
    waits: Vec<usize>,
}

impl<'a> Host<'a> {
    fn new(schedule: &'a Schedule, values: &'a mut Vec<f32>) -> Host<'a> {
        let slots = schedule.slots.iter().map(|_| None).collect();
        let waits = schedule.tasks.iter().map(|task| task.after.len()).collect();
        Host { schedule, values, slots, waits }
    }

    fn read(&self, slot: Slot) -> Option<Vec<f32>> {
        match self.slots[slot.index()].as_ref()? {
            Content::Buffer(elements) => Some(elements.clone()),
            Content::View(range) => Some(self.values[range.clone()].to_vec()),
        }
    }

    fn encode(&mut self, slot: Slot, range: &Range<usize>, encoding: Encoding<'_>) {
        self.slots[slot.index()] = Some(match encoding {
            Encoding::InPlace => Content::View(range.clone()),
            Encoding::Through(_) if self.schedule.is_raw(slot) => {
                Content::Buffer(self.values[range.clone()].to_vec())
            }
            Encoding::Through(codec) => Content::Buffer(codec(&self.values[range.clone()])),
        });
    }

    fn receive(&mut self, slot: Slot, elements: Vec<f32>, encoding: Encoding<'_>) {
        let decoded_to = |operation: &Operation| match operation {
            Operation::Decode { slot: decoded, range } if *decoded == slot => Some(range.clone()),
            _ => None,
        };
        let target = self.schedule.tasks.iter().find_map(|task| decoded_to(&task.operation));
        self.slots[slot.index()] = Some(match (encoding, target) {
            (Encoding::InPlace, Some(range)) => {
                self.values[range.clone()].copy_from_slice(&elements);
                Content::View(range)
            }
            _ => Content::Buffer(elements),
        });
    }

    fn merge(&mut self, slot: Slot, range: &Range<usize>) -> Option<()> {
        let elements = self.read(slot)?;
        self.values[range.clone()].iter_mut().zip(elements).for_each(|(value, add)| *value += add);
        Some(())
    }

    fn decode(&mut self, slot: Slot, range: &Range<usize>) -> Option<()> {
        let elements = self.read(slot)?;
        self.values[range.clone()].copy_from_slice(&elements);
        Some(())
    }
}

/// All ranks, and the messages between them.
struct Network<'a> {
    hosts: Vec<Host<'a>>,
    /// One end of a message whose other end is not ready: its rank and task.
    posted: HashMap<(usize, usize, u32), (usize, usize)>,
    /// The possible next events, oldest first: a task, or a recv whose message can be delivered.
    possible: Vec<(usize, usize)>,
    encoding: Encoding<'a>,
}

impl Network<'_> {
    fn start(&mut self) {
        for rank in 0..self.hosts.len() {
            for task in 0..self.hosts[rank].waits.len() {
                if self.hosts[rank].waits[task] == 0 {
                    self.ready(rank, task);
                }
            }
        }
    }

    /// Makes a task possible: all tasks that it waits for are done.
    fn ready(&mut self, rank: usize, task: usize) {
        let key = match self.hosts[rank].schedule.tasks[task].operation {
            Operation::Send { to, message, .. } => (rank, to.index(), message),
            Operation::Recv { from, message, .. } => (from.index(), rank, message),
            _ => return self.possible.push((rank, task)),
        };
        if self.posted.contains_key(&key) {
            let recv = if rank == key.1 { (rank, task) } else { self.posted[&key] };
            let send = if rank == key.0 { (rank, task) } else { self.posted[&key] };
            self.posted.insert(key, send);
            self.possible.push(recv);
        } else {
            self.posted.insert(key, (rank, task));
        }
    }

    fn perform(&mut self, rank: usize, task: usize) -> Result<(), Violation> {
        let unfilled = violation(rank, task, Law::FilledOnce);
        let (encoding, host) = (self.encoding, &mut self.hosts[rank]);
        match &host.schedule.tasks[task].operation {
            Operation::Encode { range, slot } => host.encode(*slot, range, encoding),
            Operation::Merge { slot, range } => host.merge(*slot, range).ok_or(unfilled)?,
            Operation::Decode { slot, range } => host.decode(*slot, range).ok_or(unfilled)?,
            Operation::Send { .. } => unreachable!("messages are delivered by their recv"),
            Operation::Recv { slot, from, message } => {
                let (_, send) = self.posted[&(from.index(), rank, *message)];
                self.deliver(from.index(), send, rank, *slot)?;
            }
        }
        self.done(rank, task);
        Ok(())
    }

    /// Carries out the task `send` of rank `from`, whose message fills a slot of rank `to`.
    fn deliver(
        &mut self,
        from: usize,
        send: usize,
        to: usize,
        slot: Slot,
    ) -> Result<(), Violation> {
        let sender = &self.hosts[from];
        let elements = sender.read(sender.schedule.tasks[send].operation.slot());
        let elements = elements.ok_or(violation(from, send, Law::FilledOnce))?;
        self.hosts[to].receive(slot, elements, self.encoding);
        self.done(from, send);
        Ok(())
    }

    fn done(&mut self, rank: usize, task: usize) {
        self.hosts[rank].waits[task] = DONE;
        let schedule = self.hosts[rank].schedule;
        for (later, next) in schedule.tasks.iter().enumerate().skip(task + 1) {
            if next.after.contains(&(task as u32)) {
                self.hosts[rank].waits[later] -= 1;
                if self.hosts[rank].waits[later] == 0 {
                    self.ready(rank, later);
                }
            }
        }
    }
}
