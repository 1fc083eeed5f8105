//! Test of a rank's asynchronous exchanges: it measures their time, without and with simultaneous
//! computation.
//!
//! These are the executor's own exchanges, on the same kind of thread.

use thinwire_collective::{Address, Group};
use thinwire_model::{Collective, Reduction};
use thinwire_program::Encoding;
use thinwire_sync::Channel;
use thinwire_wire::{Rank, World};

use super::async_exchanges::{AsyncExchanges, BoundPhase, Exchange, Priority, Ticket, finish};
use super::value::Value;
use crate::error::Error;

/// Links under test.
#[derive(Debug)]
pub struct Probe {
    exchanges: AsyncExchanges,
    world: World,
    micro_batch_number: u64,
}

impl Probe {
    /// Returns a probe of the links of all ranks.
    pub fn new(group: Group) -> Probe {
        Probe {
            world: group.world(),
            exchanges: AsyncExchanges::new(Channel::new(group)),
            micro_batch_number: 0,
        }
    }

    /// Begins to sum `tensors` tensors of `elements` elements each over all ranks, all at the same time.
    pub fn begin(&mut self, tensors: usize, elements: usize) -> Vec<Ticket> {
        self.micro_batch_number += 1;
        let everybody: Vec<Rank> = (0..self.world.size() as u32).map(Rank).collect();
        let sum = Collective::AllReduce { reduction: Reduction::Sum };
        let value = Value::new(&[elements], vec![0.5; elements]);
        let start = |tensor: usize| {
            let transfer = Encoding::raw().transfer(sum, &[elements], self.world);
            let before = transfer.before.iter();
            let values = before.fold(value.floats().to_vec(), |values, one| one.apply(values));
            let (count, tensor) = (self.micro_batch_number, tensor as u32);
            let exchange = Exchange {
                address: Address::counted(count, tensor, "a measurement of links"),
                random_group: self.world,
                phases: transfer
                    .phases
                    .into_iter()
                    .map(|phase| BoundPhase::of_phase(phase, &everybody))
                    .collect(),
                residual: None,
                priority: Priority::Later,
            };
            self.exchanges.start(values, exchange).0
        };
        (0..tensors).map(start).collect()
    }

    /// Waits for exchanges that have begun.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn finish(&self, begun: &[Ticket]) -> Result<(), Error> {
        begun.iter().try_for_each(|ticket| finish(ticket).map(drop))
    }

    /// Gathers the numbers of all ranks, in the order of ranks.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn gather(&mut self, mine: &[f32]) -> Result<Vec<f32>, Error> {
        self.micro_batch_number += 1;
        finish(&self.exchanges.gather(mine, self.micro_batch_number))
    }

    /// Returns the bytes that completed exchanges have handed to the links so far, including headers.
    pub fn sent_bytes(&self) -> u64 {
        self.exchanges.sent_bytes()
    }

    /// Returns the group whose links were tested.
    ///
    /// # Errors
    /// If a peer was lost.
    pub fn into_group(self) -> Result<Group, Error> {
        self.exchanges.into_group()
    }
}
