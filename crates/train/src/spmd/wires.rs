//! The wires of a rank: collectives and messages under way, on a thread of their own.
//!
//! What is started goes on while this rank computes; whoever wants the result waits for it. Every
//! exchange has an address made of the step and of its number in the program, so nothing depends
//! on the order in which ranks come to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use thinwire_collective::{Address, Driver, Error as Failure, Group, Next, Program, Run};
use thinwire_schedule::{self as schedule, Shape};
use thinwire_wire::World;

use super::transfer::Reform;
use crate::error::Error;

/// A flat buffer on its way.
pub type Ticket = Receiver<Result<Vec<f32>, Failure>>;

/// One schedule of an exchange, and what becomes of the values after it.
pub type Leg = (Arc<Program>, Vec<Reform>);

/// The legs of an exchange are this far apart in their addresses' steps.
const LEG: u64 = 1 << 56;
/// The number of what all ranks tell each other, which no other exchange has.
const GATHER: u32 = 3 << 30;

/// The links of a rank.
#[derive(Debug)]
pub struct Wires {
    driver: Driver<Vec<f32>>,
    /// Bytes handed to the links by exchanges that are over.
    sent: Arc<AtomicU64>,
}

impl Wires {
    /// The wires of a group that has all ranks of the job.
    pub fn new(group: Group) -> Wires {
        Wires { driver: Driver::start(group), sent: Arc::default() }
    }

    /// Starts an exchange.
    pub fn start(&self, address: Address, values: Vec<f32>, legs: Vec<Leg>) -> Ticket {
        self.counted(address, values, legs, &self.sent)
    }

    /// The numbers of all ranks, which count for nothing. Every rank gives another moment each time.
    pub fn gather(&self, mine: &[f32], moment: u64) -> Ticket {
        let world = self.driver.world();
        let all = mine.len() * world.size();
        let shape = Shape { length: all, block: 1, partitions: 1 };
        let program = Program::new(schedule::all_gather(world, &shape), all, thinwire_codec::raw());
        let mut values = vec![0.0; all];
        values[world.rank().index() * mine.len()..][..mine.len()].copy_from_slice(mine);
        let address = Address { step: moment, tensor: GATHER, seed: 0, operation: "gather" };
        self.counted(address, values, vec![(Arc::new(program), Vec::new())], &Arc::default())
    }

    fn counted(
        &self,
        address: Address,
        values: Vec<f32>,
        legs: Vec<Leg>,
        sent: &Arc<AtomicU64>,
    ) -> Ticket {
        let (done, ticket) = channel();
        let (world, sent) = (self.driver.world(), Arc::clone(sent));
        let legs = legs.into_iter();
        let exchange = move |group: Result<&mut Group, Failure>| {
            next(group.map(|_| values), legs, (address, world), (done, sent))
        };
        self.driver.run(exchange);
        ticket
    }

    /// The group that they were made of.
    ///
    /// # Errors
    /// If a peer was lost.
    pub fn into_group(self) -> Result<Group, Error> {
        self.driver.into_group().map_err(Error::exchange)
    }

    /// Bytes handed to the links so far, headers included, by exchanges that are over.
    pub fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }
}

/// Waits for an exchange.
///
/// # Errors
/// If a peer is lost or disagrees.
pub fn finish(ticket: &Ticket) -> Result<Vec<f32>, Error> {
    match ticket.recv() {
        Ok(result) => result.map_err(Error::exchange),
        Err(gone) => Err(Error::exchange(gone)),
    }
}

/// The next leg of an exchange, or its end.
fn next(
    values: Result<Vec<f32>, Failure>,
    mut legs: std::vec::IntoIter<Leg>,
    (address, world): (Address, World),
    (done, sent): (Sender<Result<Vec<f32>, Failure>>, Arc<AtomicU64>),
) -> Next<Vec<f32>> {
    let (values, program, after) = match (values, legs.next()) {
        (Ok(values), Some((program, after))) => (values, program, after),
        (values, _) => {
            // Nobody waits for what was sent, nor on a rank that has failed.
            let _ = done.send(values);
            return Next::End;
        }
    };
    let run = Run::new(program, address, world, values, None);
    let address = Address { step: address.step + LEG, ..address };
    let then = move |run: Result<Run<Vec<f32>>, Failure>| {
        let reformed = |run: Run<Vec<f32>>| {
            sent.fetch_add(run.times().sent_bytes, Ordering::AcqRel);
            after.iter().fold(run.into_parts().0, |values, reform| reform.apply(values))
        };
        next(run.map(reformed), legs, (address, world), (done, sent))
    };
    Next::Run(run, Box::new(then))
}
