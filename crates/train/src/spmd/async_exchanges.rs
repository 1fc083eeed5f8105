//! The asynchronous exchanges of a rank: collectives and messages that run on a separate thread.
//!
//! An exchange continues while this rank computes; a reader of the result waits for it. Every exchange
//! is identified by the step and by its number in the program, so the order in which ranks begin
//! exchanges does not matter.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use thinwire_collective::{
    Address, Error as Failure, FailedRun, Group, Next, Program, Run, all_gather_bytes,
};
use thinwire_program::{Phase, Rearrange};
use thinwire_schedule::{self as schedule, Shape};
use thinwire_sync::{Channel, Tensor};
use thinwire_wire::{Rank, World};

use crate::error::Error;

/// Handle for a flat buffer that is under way.
pub type Ticket = Receiver<Result<Vec<f32>, Failure>>;

/// One schedule of an exchange, and the rearrangements of its result.
#[derive(Debug)]
pub struct BoundPhase {
    /// The schedule with its codec.
    pub program: Arc<Program>,
    /// For a reduce-scatter, the range of elements that stay on this rank and are not encoded.
    pub own: Option<Range<usize>>,
    /// Rearrangements of the result.
    pub after: Vec<Rearrange>,
}

impl BoundPhase {
    /// Binds a phase of a collective to the ranks of its group, numbered within the whole job.
    pub fn of_phase(phase: Phase, members: &[Rank]) -> BoundPhase {
        let Phase { schedule, elements, codec, feedback, own, after } = phase.among(members);
        let program = match feedback {
            true => Program::new(schedule, elements, codec),
            false => Program::plain(schedule, elements, codec),
        };
        BoundPhase { program: Arc::new(program), own, after }
    }
}

/// Several schedules, which run one after the other.
#[derive(Debug)]
pub struct Exchange {
    /// Address of the exchange.
    pub address: Address,
    /// Random group: ranks with equal values draw the same random numbers for codecs.
    pub random_group: World,
    /// The schedules.
    pub phases: Vec<BoundPhase>,
    /// Residual, if a phase has feedback.
    pub residual: Option<Vec<f32>>,
    /// Priority of the exchange.
    pub priority: Priority,
}

/// Priority of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// The next computation waits for the result, so this exchange overtakes others.
    Next,
    /// The result is needed at the end of the step, or in the next one, such as gradients and new parameters.
    Later,
}

/// Sent bytes of exchanges, and whether they met non-finite numbers.
#[derive(Clone, Debug, Default)]
struct Tally {
    /// Bytes that completed exchanges have passed to the links.
    sent: Arc<AtomicU64>,
    /// Whether a codec has met a value that is not finite.
    nonfinite: Arc<AtomicBool>,
}

/// Distance between the phases of an exchange in the step numbers of their addresses.
const PHASE: u64 = 1 << 56;
/// Number of the exchange by which all ranks gather values; no other exchange has it.
const GATHER: u32 = 3 << 30;

/// The async exchanges of a rank over its links.
#[derive(Debug)]
pub struct AsyncExchanges {
    channel: Channel,
    tally: Tally,
    /// Whether exchanges that start from now on are counted.
    pub counts: bool,
}

impl AsyncExchanges {
    /// Returns the async exchanges over a channel of all ranks of the job.
    pub fn new(channel: Channel) -> AsyncExchanges {
        AsyncExchanges { channel, tally: Tally::default(), counts: true }
    }

    /// Returns this rank among those of the channel.
    pub fn world(&self) -> World {
        self.channel.world()
    }

    /// Starts an exchange. The second ticket is for the residual after the exchange.
    pub fn start(&self, values: Vec<f32>, exchange: Exchange) -> (Ticket, Ticket) {
        self.counted(values, exchange, self.tally())
    }

    /// Gathers the numbers of all ranks, without counting the exchange. Every call must have a different
    /// micro-batch number.
    pub fn gather(&self, mine: &[f32], micro_batch_number: u64) -> Ticket {
        let world = self.channel.world();
        let all = mine.len() * world.size();
        let shape = Shape { length: all, block: 1, partitions: 1 };
        let program = Program::new(schedule::all_gather(world, &shape), all, thinwire_codec::raw());
        let mut values = vec![0.0; all];
        values[world.rank().index() * mine.len()..][..mine.len()].copy_from_slice(mine);
        let address = Address::counted(micro_batch_number, GATHER, "an exchange of all ranks");
        let phases = vec![BoundPhase { program: Arc::new(program), own: None, after: Vec::new() }];
        let exchange = Exchange {
            address,
            random_group: world,
            phases,
            residual: None,
            priority: Priority::Next,
        };
        self.counted(values, exchange, Tally::default()).0
    }

    /// Gathers the bytes of all ranks, in the order of ranks. No other exchange may be under way.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn gather_bytes(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        let gather = move |group: &mut Group| all_gather_bytes(group, &mine);
        self.channel.driver().call(gather).map_err(Error::exchange)
    }

    fn counted(&self, values: Vec<f32>, exchange: Exchange, tally: Tally) -> (Ticket, Ticket) {
        let ((done, ticket), (owes, owed)) = (channel(), channel());
        let Exchange { address, random_group, phases, residual, priority } = exchange;
        let phases = phases.into_iter();
        let under_way =
            UnderWay { phases, address, random_group, residual, priority, done, owes, tally };
        self.channel
            .driver()
            .run(move |group: Result<&mut Group, Failure>| under_way.next(group.map(|_| values)));
        (ticket, owed)
    }

    fn tally(&self) -> Tally {
        if self.counts { self.tally.clone() } else { Tally::default() }
    }

    /// Ends the async exchanges, and returns the group over which they ran.
    ///
    /// # Errors
    /// If a peer was lost.
    pub fn into_group(self) -> Result<Group, Error> {
        self.channel.into_group().map_err(Error::exchange)
    }

    /// Returns the bytes that completed exchanges have passed to the links so far, including headers.
    pub fn sent_bytes(&self) -> u64 {
        self.tally.sent.load(Ordering::Acquire)
    }

    /// Returns whether all values that codecs have read since the last call were finite. It covers
    /// completed exchanges of this rank's groups, on all ranks of these groups.
    pub fn take_finite(&self) -> bool {
        !self.tally.nonfinite.swap(false, Ordering::AcqRel)
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

/// An exchange between two phases.
struct UnderWay {
    phases: std::vec::IntoIter<BoundPhase>,
    address: Address,
    random_group: World,
    residual: Option<Vec<f32>>,
    priority: Priority,
    done: Sender<Result<Vec<f32>, Failure>>,
    owes: Sender<Result<Vec<f32>, Failure>>,
    tally: Tally,
}

impl UnderWay {
    /// Returns the next phase, or the end.
    fn next(mut self, values: Result<Vec<f32>, Failure>) -> Next<Tensor> {
        let (values, phase) = match (values, self.phases.next()) {
            (Ok(values), Some(phase)) => (values, phase),
            (values, _) => {
                // Nobody waits for what was sent, nor on a rank that has failed.
                let _ = self.residual.take().map(|residual| self.owes.send(Ok(residual)));
                let _ = self.done.send(values);
                return Next::End;
            }
        };
        let BoundPhase { program, own, after } = phase;
        let residual = if program.feedback() { self.residual.take() } else { None };
        let (values, residual) = (Tensor::Owned(values), residual.map(Tensor::Owned));
        let run = Run::new(program, self.address, self.random_group, values, residual);
        let run = if self.priority == Priority::Later { run.bulk() } else { run };
        self.address.step += PHASE;
        let then = move |run: Result<Run<Tensor>, FailedRun<Tensor>>| {
            let ended = run.map_err(|broken| broken.error).and_then(|run| self.end(run, own));
            let reform = |values| after.iter().fold(values, |values, reform| reform.apply(values));
            self.next(ended.map(reform))
        };
        Next::Run(run, Box::new(then))
    }

    /// Returns the result of a phase, and keeps the residual after it.
    fn end(
        &mut self,
        mut run: Run<Tensor>,
        own: Option<Range<usize>>,
    ) -> Result<Vec<f32>, Failure> {
        self.tally.sent.fetch_add(run.take_times().sent_bytes, Ordering::AcqRel);
        self.tally.nonfinite.fetch_or(!run.is_finite(), Ordering::AcqRel);
        if !run.program().feedback() {
            return Ok(run.into_parts().0.into_owned());
        }
        let codec = Arc::clone(run.program().codec());
        let (result, residual) = run.commit()?;
        let (mut result, mut residual) = (result.into_owned(), residual.into_owned());
        if let Some(own) = own {
            // What stays here was not encoded, so nothing of it is owed.
            let mine = &mut residual[own.clone()];
            codec.canonicalise(mine);
            thinwire_codec::kernel::add(&mut result[own.clone()], mine);
            mine.fill(0.0);
            codec.canonicalise(&mut result[own]);
        }
        self.residual = Some(residual);
        Ok(result)
    }
}
