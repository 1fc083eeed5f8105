//! Pairs: the partner of a rank in each round, and the exchanges with it, for which a rank never waits.
//!
//! In every round the lower rank of each pair asks the other. Its communication thread sends its
//! published parameters. The partner's communication thread takes part as soon as the first bytes have
//! come. Both move their published parameters by half of the distance ([`published`]), and the training
//! threads take up the result after their next step. A rank with an exchange under way skips a round,
//! and others that ask it for one wait on their connections. So a rank has at most two copies of its
//! parameters in addition to the published ones, however far ahead others are.
//!
//! Before a state is saved, all ranks settle ([`Pairs::settle`]) in four steps: each waits for the exchange that it has
//! asked for; all meet; each ends the exchange in which it answers, and takes up its result; all meet again. From the
//! first meeting to the second, no rank trains or asks.
//!
//! Law: after settling, the parameters of training contain both halves of an exchange, or none.

mod published;

use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use thinwire_collective::{
    Address, Asked, Error as Failure, FailedRun, Group, Next, Run, all_reduce,
};
use thinwire_schedule::Algorithm;
use thinwire_wire::random::Key;
use thinwire_wire::{Rank, World};

use self::published::{Ended, Published, Side};
use super::replica::{Replica, RoundRecord, flat, put};
use crate::Error;
use crate::buffer::Tensor;
use crate::channel::Channel;
use crate::exchange::route::Ranks;
use crate::worker::sum;

/// The tensor number of exchanges and of random draws, so that nothing else has or draws the same.
const PAIR: u32 = u32::from_be_bytes(*b"pair");
/// The tensor number of meetings.
const MEETING: u32 = u32::from_be_bytes(*b"even");
/// The name of both operations in an error.
const OPERATION: &str = "pair averaging";

/// Returns the rank with which this one averages in a round. All ranks draw the same perfect matching,
/// with each matching equally likely, and so agree without a message. If the number of ranks is odd,
/// one has no partner.
///
/// Law: the partner of a rank's partner is the rank itself.
pub fn partner(world: World, seed: u64, round: u64) -> Option<Rank> {
    let key = Key { seed, step: round, tensor: PAIR };
    let mut order: Vec<Rank> = world.ranks().collect();
    for last in (1..order.len()).rev() {
        order.swap(last, key.below(last as u64, last as u32 + 1) as usize);
    }
    let place = order.iter().position(|rank| *rank == world.rank())?;
    order.get(place ^ 1).copied()
}

/// The exchanges of a rank with its partners.
#[derive(Debug)]
pub(super) struct Pairs {
    seed: u64,
    /// Elements of each parameter.
    lengths: Vec<usize>,
    shared: Arc<Shared>,
    /// Exchanges that this rank has asked for, and how the last of them ends while it is under way.
    asked: u64,
    underway: Option<Receiver<Result<(), Error>>>,
    /// Meetings of all ranks.
    met: u64,
    /// Whether an exchange had ended by the end of the last step.
    has_come: bool,
}

/// State that the training and the communication thread share.
#[derive(Debug)]
struct Shared {
    published: Mutex<Published>,
    /// Notified when an exchange is over.
    over: Condvar,
}

impl Pairs {
    /// Publishes the parameters of this rank, and answers from now on.
    pub(super) fn start(
        channel: &Channel,
        seed: u64,
        lengths: Vec<usize>,
        replica: &impl Replica,
    ) -> Pairs {
        let shared = Shared::answering(channel, Published::new(flat(replica, &lengths)));
        let (asked, underway, met, has_come) = (0, None, 0, false);
        Pairs { seed, lengths, shared, asked, underway, met, has_come }
    }

    /// Continues among the ranks of another channel; an exchange under way is dropped.
    pub(super) fn reform(&mut self, channel: &Channel) {
        let published = self.shared.lock().renewed();
        self.shared = Shared::answering(channel, published);
        (self.asked, self.underway, self.met) = (0, None, 0);
    }

    /// Publishes the parameters of this rank, which were replaced.
    pub(super) fn publish(&mut self, replica: &impl Replica) {
        self.shared.lock().replace(self.flat(replica));
    }

    /// Returns all parameters, one after the other.
    pub(super) fn flat(&self, replica: &impl Replica) -> Vec<f32> {
        flat(replica, &self.lengths)
    }

    /// Replaces all parameters, and publishes them.
    pub(super) fn put(&mut self, values: &[f32], replica: &mut impl Replica) {
        put(values, &self.lengths, replica);
        self.publish(replica);
    }

    /// Returns whether an exchange that this rank has asked for is under way.
    pub(super) fn is_underway(&self) -> bool {
        self.underway.is_some()
    }

    /// Returns whether the end of the next step takes up the movement of exchanges.
    pub(super) fn has_come(&self) -> bool {
        self.has_come
    }

    /// Ends a step of this rank without waiting: takes up the movement of exchanges that had ended by
    /// the end of the step before. If a round is due, publishes the parameters and asks the partner.
    ///
    /// # Errors
    /// If a peer is lost.
    pub(super) fn step(
        &mut self,
        channel: &Channel,
        round: Option<u64>,
        replica: &mut impl Replica,
    ) -> Result<RoundRecord, Error> {
        self.look(channel)?;
        let mut record = RoundRecord::default();
        if self.has_come || round.is_some() {
            record = self.take_up(replica);
        }
        let asks = round.is_some_and(|round| self.ask(channel, round));
        record.begun = u32::from(asks);
        self.has_come = self.shared.lock().has_ended();
        Ok(record)
    }

    /// Waits until all exchanges of all ranks have ended, and takes up their movement; a collective
    /// call.
    ///
    /// # Errors
    /// If a peer is lost.
    pub(super) fn settle(
        &mut self,
        channel: &Channel,
        replica: &mut impl Replica,
    ) -> Result<RoundRecord, Error> {
        if let Some(underway) = self.underway.take() {
            underway.recv().unwrap_or(Err(Error::Stopped))?;
        }
        // Once all ranks are here, nobody asks any more.
        self.meet(channel)?;
        // The rank that has asked has its answer, but what it gave may still be on the way.
        self.shared.wait_while_answering();
        let record = self.take_up(replica);
        // A rank that went on now would ask those that have not taken up yet, and move what they save.
        self.meet(channel)?;
        Ok(record)
    }

    /// Waits until all ranks are here.
    fn meet(&mut self, channel: &Channel) -> Result<(), Error> {
        let ranks = channel.ranks(&[]).expect("all ranks of a channel are of it");
        let program = ranks.sum(Algorithm::Gather.into(), 1);
        let address = Address::counted(self.met, MEETING, OPERATION);
        self.met += 1;
        let met = sum(channel, ranks.world, program, address, vec![0.0]);
        met.recv().unwrap_or(Err(Error::Stopped)).map(drop)
    }

    /// Notes how the exchange that this rank has asked for has ended, if it has.
    fn look(&mut self, channel: &Channel) -> Result<(), Error> {
        match self.underway.as_ref().map(Receiver::try_recv) {
            None | Some(Err(TryRecvError::Empty)) => {}
            Some(Ok(ended)) => {
                self.underway = None;
                ended?;
            }
            Some(Err(TryRecvError::Disconnected)) => return Err(Error::Stopped),
        }
        channel.driver().failure().map_or(Ok(()), |error| Err(Error::Collective(error)))
    }

    fn take_up(&mut self, replica: &mut impl Replica) -> RoundRecord {
        let mut values = self.flat(replica);
        let Ended { exchanges, skipped } = self.shared.lock().take_up(&mut values);
        if exchanges > skipped {
            put(&values, &self.lengths, replica);
        }
        self.has_come = false;
        let sent_bytes = 4 * values.len() as u64 * u64::from(exchanges);
        RoundRecord { ended: exchanges, skipped, sent_bytes, ..RoundRecord::default() }
    }

    /// Asks the partner of a round, if this rank is the one that asks and nothing is under way; returns
    /// whether it did.
    fn ask(&mut self, channel: &Channel, round: u64) -> bool {
        let (world, link) = (channel.world(), channel.driver().world());
        let other = partner(world, self.seed, round).map(|other| channel.of_link(other));
        let Some(other) = other.filter(|other| *other > link.rank()) else { return false };
        let Some(mine) = self.shared.lock().begin(Side::Asking) else { return false };
        let count = count_of(link.rank(), self.asked, link);
        let exchange = Exchange { link, is_bulk: channel.is_bulk(), other, count };
        let (reply, underway) = mpsc::channel();
        (self.asked, self.underway) = (self.asked + 1, Some(underway));
        let shared = Arc::clone(&self.shared);
        channel.driver().run(move |group| {
            // Whoever asked may be gone already.
            let reply = move |ended| drop(reply.send(ended));
            match group {
                Ok(_) => exchange.begin(&shared, mine, reply),
                Err(error) => {
                    reply(shared.end(&mine, Err(error)));
                    Next::End
                }
            }
        });
        true
    }
}

/// Returns the count of a rank's exchange among those of all ranks of the link.
fn count_of(asking: Rank, number: u64, link: World) -> u64 {
    number * link.size() as u64 + u64::from(asking.0)
}

/// An exchange with another rank.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    link: World,
    is_bulk: bool,
    /// The other rank, by its number in the link.
    other: Rank,
    count: u64,
}

impl Exchange {
    /// Sends `mine` to the other rank, and moves the published parameters when the sum of both has
    /// come.
    fn begin(
        self,
        shared: &Arc<Shared>,
        mine: Vec<f32>,
        reply: impl FnOnce(Result<(), Error>) + Send + 'static,
    ) -> Next<Tensor> {
        let Exchange { link, is_bulk, other, count } = self;
        let pair = [link.rank().min(other), link.rank().max(other)];
        let ranks = Ranks::among(&pair, link).expect("this rank is of the pair");
        let program = ranks.sum(Algorithm::TwoShot.into(), mine.len());
        let address = Address::counted(count, PAIR, OPERATION);
        let run = Run::new(program, address, ranks.world, Tensor::Owned(mine.clone()), None);
        let run = if is_bulk { run.bulk() } else { run };
        let shared = Arc::clone(shared);
        let then = move |run: Result<Run<Tensor>, FailedRun<Tensor>>| {
            let sum = run.map(|run| run.into_parts().0.into_owned());
            reply(shared.end(&mine, sum.map_err(|broken| broken.error)));
            Next::End
        };
        Next::Run(run, Box::new(then))
    }
}

impl Shared {
    /// Shares the published parameters with the communication thread of a channel, which answers from
    /// now on.
    fn answering(channel: &Channel, published: Published) -> Arc<Shared> {
        let shared = Arc::new(Shared { published: published.into(), over: Condvar::new() });
        let (link, is_bulk) = (channel.driver().world(), channel.is_bulk());
        let answering = Arc::clone(&shared);
        channel.driver().answer(PAIR, move |Asked { from, count }| {
            // Ranks that waited for each other in a circle would wait for ever.
            if from > link.rank() || count_of(from, count / link.size() as u64, link) != count {
                let reason = format!("{from} requests an average that another rank should request");
                return Some(Next::Wait(Box::new(move |_| Err(reason.clone()))));
            }
            let mine = answering.lock().begin(Side::Answering)?;
            let exchange = Exchange { link, is_bulk, other: from, count };
            Some(exchange.begin(&answering, mine, drop))
        });
        shared
    }

    fn lock(&self) -> MutexGuard<'_, Published> {
        self.published.lock().expect("no holder panics")
    }

    /// Ends an exchange in which this rank gave `mine`.
    fn end(&self, mine: &[f32], sum: Result<Vec<f32>, Failure>) -> Result<(), Error> {
        let ended = match sum {
            Ok(sum) => {
                self.lock().end(mine, &sum);
                Ok(())
            }
            Err(error) => {
                self.lock().lose();
                Err(Error::Collective(error))
            }
        };
        self.over.notify_all();
        ended
    }

    fn wait_while_answering(&self) {
        let over = self.over.wait_while(self.lock(), |published| published.is_answering());
        drop(over.expect("no holder panics"));
    }
}

/// Returns the mean of the values of all ranks that have finite ones; this rank's own if none has.
pub(super) fn mean(channel: &Channel, own: Vec<f32>) -> Result<Vec<f32>, Error> {
    let is_finite = own.iter().all(|value| value.is_finite());
    let mut mine = if is_finite { own.clone() } else { vec![0.0; own.len()] };
    // The last number counts those ranks.
    mine.push(f32::from(u8::from(is_finite)));
    let sum = move |group: &mut Group| {
        all_reduce(group, &mut mine, &thinwire_collective::Options::default()).map(|()| mine)
    };
    let mut values = channel.call(sum)?;
    let count = values.pop().expect("it has a count");
    if count == 0.0 {
        return Ok(own);
    }
    values.iter_mut().for_each(|value| *value /= count);
    Ok(values)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_partner_of_a_partner_is_the_rank_itself(size in 1_u32..20, seed: u64, round: u64) {
            let of = |rank: Rank| partner(World::new(rank.0, size).unwrap(), seed, round);
            let mut alone = 0;
            for rank in (0..size).map(Rank) {
                match of(rank) {
                    Some(other) => {
                        prop_assert_ne!(other, rank);
                        prop_assert_eq!(of(other), Some(rank));
                    }
                    None => alone += 1,
                }
            }
            prop_assert_eq!(alone, size % 2);
        }
    }

    #[test]
    fn every_other_rank_is_equally_likely() {
        let mut met = [0_u32; 5];
        for round in 0..4000 {
            let other = partner(World::new(2, 5).unwrap(), 7, round);
            met[other.map_or(2, Rank::index)] += 1;
        }
        // 800 of each are expected, with a deviation of 25.
        assert!(met.iter().all(|count| (680..920).contains(count)), "{met:?}");
    }
}
