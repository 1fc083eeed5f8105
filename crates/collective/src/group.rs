//! The ranks of a job, ready to run collectives together.

mod adapter;

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use thinwire_link::{Deadline, Link, Waker};
use thinwire_schedule::Schedule;
use thinwire_wire::{Rank, Tag, World};

pub(crate) use self::adapter::PortAdapter;
use self::adapter::deliver;
use crate::Buffer;
use crate::buffer::Pool;
use crate::driver::Stop;
use crate::error::{
    BETWEEN, CALLS, COUNTS, Error, MESSAGES, NUMBERS, SUBGROUPS, counted, different_steps, is_call,
};
use crate::inbox::Inbox;
use crate::run::{Address, Asked, Run};

/// Largest number of times that a group polls its link before it lets the thread sleep: a peer on this
/// machine usually answers within this time, and sleeping costs more. If it does not answer, the number
/// is halved.
const SPINS_MAX: u32 = 32;

/// If a sleep was shorter than this, polling a few more times would have been better.
const SHORT_SLEEP: Duration = Duration::from_micros(60);

/// Bytes within a timeout that count as progress although no run here waits for them yet: a peer
/// that is ahead may take long to send them, and the awaited message is behind them. Fewer bytes do
/// not count, so that a peer cannot defeat the timeout by sending a frame now and then.
const EARLY_PROGRESS_BYTES: usize = 256 << 10;

/// One rank's membership in a group. After an error, all further calls return that error.
pub struct Group {
    link: Link,
    inbox: Inbox,
    pool: Pool,
    /// Wakes this group's thread when a device has done its work.
    waker: std::task::Waker,
    epoch: u32,
    calls: u64,
    /// Number of calls that have begun.
    begun: u64,
    /// Messages so far, by sender, receiver and number.
    messages: HashMap<(Rank, Rank, u32), u32>,
    /// The ranks among which calls are made, if these are not all ranks; and the number of calls of
    /// each such subgroup.
    subgroup: Option<Subgroup>,
    subgroup_calls: HashMap<Arc<[Rank]>, u64>,
    timeout: Duration,
    /// The tensor of exchanges that other ranks begin, and the last message of one that waits for this rank.
    answered: Option<u32>,
    asked: Option<Asked>,
    /// The time of the last progress for a run, and the number of bytes received since then that no run
    /// awaits.
    moved: Instant,
    early_bytes: usize,
    spins: u32,
    spins_max: u32,
    stop: Stop,
    /// The time at which each rank was found to have said goodbye.
    left: Arc<[OnceLock<Instant>]>,
    /// The training step of the newest run, to name in an error between runs.
    step: Option<u64>,
    error: Option<Error>,
}

/// Some ranks of a group, while calls are made among them.
struct Subgroup {
    /// This rank among the members.
    world: World,
    /// The members by their numbers in the group.
    members: Arc<[Rank]>,
}

impl Group {
    /// Returns the group of all ranks that `link` connects.
    pub fn new(link: Link) -> Group {
        Group {
            stop: Stop::new(link.waker()),
            left: link.world().ranks().map(|_| OnceLock::new()).collect(),
            waker: Arc::new(link.waker()).into(),
            inbox: Inbox::new(link.world().size()),
            epoch: link.epoch(),
            link,
            pool: Pool::default(),
            calls: 0,
            begun: 0,
            messages: HashMap::new(),
            subgroup: None,
            subgroup_calls: HashMap::new(),
            timeout: Duration::from_secs(60),
            answered: None,
            asked: None,
            moved: Instant::now(),
            early_bytes: 0,
            spins: 0,
            spins_max: SPINS_MAX,
            step: None,
            error: None,
        }
    }

    /// Sets the time after which a wait ends with an error if nothing awaited has moved.
    pub fn with_timeout(mut self, timeout: Duration) -> Group {
        self.timeout = timeout;
        self
    }

    /// Returns this rank and the number of ranks. Within [`Group::among`], only the members are counted.
    pub fn world(&self) -> World {
        self.subgroup.as_ref().map_or_else(|| self.link.world(), |subgroup| subgroup.world)
    }

    /// Runs `call` as if `members`, in this order, were all ranks. All members make the same calls;
    /// other ranks do not take part.
    ///
    /// # Errors
    /// The error of `call`.
    ///
    /// # Panics
    /// If this rank is not a member.
    pub fn among<T>(
        &mut self,
        members: &Arc<[Rank]>,
        call: impl FnOnce(&mut Group) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let world = self.link.world().among(members).expect("a rank calls among its own group");
        self.subgroup = Some(Subgroup { world, members: Arc::clone(members) });
        let result = call(self);
        self.subgroup = None;
        result
    }

    /// Returns whether another rank runs on the host of this one, as their addresses show.
    pub fn shares_host(&self, peer: Rank) -> bool {
        self.link.shares_host(self.of_link(peer))
    }

    /// Returns the number in the link of a rank among which calls are made.
    fn of_link(&self, rank: Rank) -> Rank {
        self.subgroup.as_ref().map_or(rank, |subgroup| subgroup.members[rank.index()])
    }

    /// Returns a schedule of the ranks among which calls are made, with their numbers in the link.
    pub(crate) fn bind(&self, schedule: Schedule) -> Schedule {
        match &self.subgroup {
            Some(subgroup) => schedule.among(&subgroup.members),
            None => schedule,
        }
    }

    /// Returns a handle that ends [`Group::wait`] from another thread.
    pub fn waker(&self) -> Waker {
        self.link.waker()
    }

    /// Returns a handle by which any thread can end the group.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Returns the times at which ranks were found to have said goodbye, by rank, filled in as they
    /// come.
    pub(crate) fn left(&self) -> Arc<[OnceLock<Instant>]> {
        Arc::clone(&self.left)
    }

    /// Returns a rank that has begun a call of `operation` with this description (see
    /// `Run::called`), if this rank has not begun that call.
    pub fn caller(&self, operation: &str, words: &str) -> Option<Rank> {
        let checksum = |text: &str| thinwire_wire::checksum(text.as_bytes());
        self.inbox.caller(checksum(operation) ^ checksum(words), CALLS | self.calls)
    }

    /// Lets messages of counted exchanges of a tensor wait until this rank takes part in them.
    pub(crate) fn answer(&mut self, tensor: u32) {
        self.answered = Some(tensor);
    }

    /// Returns a message that waits for this rank since the last [`Group::advance`].
    pub(crate) fn asked(&self) -> Option<Asked> {
        self.asked
    }

    /// Returns the bytes sent and received over the group's whole life.
    pub fn counters(&self) -> thinwire_link::Counters {
        self.link.counters()
    }

    /// Returns the address of the next plain call; equal on all ranks that make the same calls.
    pub fn next_call(&mut self, operation: &'static str) -> Address {
        let mut words = operation.as_bytes().to_vec();
        if let Some(Subgroup { members, .. }) = &self.subgroup {
            // A rank may be a member of several subgroups whose calls have the same count.
            words.extend(members.iter().flat_map(|rank| rank.0.to_le_bytes()));
            let tensor = thinwire_wire::checksum(&words);
            let count = self.subgroup_calls.entry(Arc::clone(members)).or_default();
            *count += 1;
            return Address {
                seed: *count,
                ..Address::counted(SUBGROUPS + *count, tensor, operation)
            };
        }
        self.calls += 1;
        let tensor = thinwire_wire::checksum(&words);
        Address { step: CALLS | self.calls, tensor, seed: self.calls, operation }
    }

    /// Returns the address of the next message numbered `number` between two ranks; equal at both ends.
    ///
    /// # Errors
    /// If the number does not fit into an address.
    pub fn next_message(
        &mut self,
        from: Rank,
        to: Rank,
        number: u32,
        operation: &'static str,
    ) -> Result<Address, Error> {
        if number >= NUMBERS {
            let detail = format!("message number {number}, expected one below {NUMBERS}");
            return Err(Error::invalid(operation, detail));
        }
        let (from, to) = (self.of_link(from), self.of_link(to));
        let count = self.messages.entry((from, to, number)).or_default();
        *count += 1;
        let step = MESSAGES | u64::from(number) << 32 | u64::from(*count);
        Ok(Address { step, tensor: from.0 << 16 | to.0, seed: 0, operation })
    }

    /// Begins a run, and gives it the messages that have come for it already.
    ///
    /// # Errors
    /// If an early message does not fit.
    pub fn admit<V: Buffer>(&mut self, run: &mut Run<V>) -> Result<(), Error> {
        self.check()?;
        self.moved = Instant::now();
        if run.address.step < COUNTS {
            self.step = Some(run.address.step);
        }
        self.begun += u64::from(is_call(run.address.step));
        if self.inbox.is_empty() {
            return Ok(());
        }
        if let Some((from, theirs)) = self.inbox.behind(run.address.step) {
            let (operation, mine) = (run.address.operation, run.address.step);
            let detail = different_steps(from, theirs, mine);
            return Err(self.fail(Error::corrupt(operation, Some(mine), Some(from), detail)));
        }
        let other = self.inbox.other(run.address.step, run.address.tensor);
        if let Some(fault) = other.and_then(|(from, header)| run.fault(from, header)) {
            return Err(self.fail(fault));
        }
        let arrivals: Vec<(Rank, u32)> = run.arrivals().collect();
        for (from, message) in arrivals {
            let tag = Tag { step: run.address.step, tensor: run.address.tensor, message };
            if let Some(early) = self.inbox.take(from, &tag) {
                let result = deliver(run, from, &early.header, &early.bytes, &mut self.pool);
                result.map_err(|error| self.fail(error))?;
            }
        }
        Ok(())
    }

    /// Moves what can be moved and computes at most one task, without blocking. Returns true if
    /// anything happened.
    ///
    /// # Errors
    /// If a peer is lost or misbehaves. Every peer is told, and the group has ended.
    pub fn advance<V: Buffer>(&mut self, runs: &mut [Run<V>]) -> Result<bool, Error> {
        self.check()?;
        self.hand_over(runs);
        let begun = if self.begun == self.calls { CALLS | self.calls } else { CALLS };
        let mut adapter = PortAdapter::new(runs, &mut self.inbox, &mut self.pool, begun);
        (adapter.epoch, adapter.answered) = (self.epoch, self.answered);
        let moved = self.link.progress(&mut adapter);
        let (refusal, progress) = (adapter.refusal.take(), adapter.progress);
        self.asked = adapter.asked;
        let mut active = match (moved, refusal) {
            (_, Some(error)) => return Err(self.fail(error)),
            (Err(error), None) => return Err(self.link_failed(runs, error)),
            (Ok(moved), None) => moved,
        };
        self.hand_over(runs);
        let mut computed = false;
        for run in runs.iter_mut() {
            match run.compute(&mut self.pool, &self.waker) {
                Ok(false) => {}
                Ok(true) => {
                    (active, computed) = (true, true);
                    break;
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
        if active {
            self.spins = 0;
            self.early_bytes += progress.early_bytes;
            // Enough early bytes are progress, too.
            if progress.awaited || computed || self.early_bytes >= EARLY_PROGRESS_BYTES {
                self.moved = Instant::now();
                self.early_bytes = 0;
            }
            self.judge(runs)?;
        }
        Ok(active)
    }

    /// Fails if there was no progress for too long although `runs` are waiting.
    fn judge<V: Buffer>(&mut self, runs: &[Run<V>]) -> Result<(), Error> {
        // Another rank answers once it has answered others, which may take any time: it is lost by its silence alone.
        let is_asked = |run: &Run<V>| {
            counted(run.address().step).is_some() && self.answered == Some(run.address().tensor)
        };
        let waiting = runs.iter().any(|run| !run.is_done() && !is_asked(run));
        match waiting && self.moved.elapsed() > self.timeout {
            true => Err(self.timed_out(runs)),
            false => Ok(()),
        }
    }

    /// Sleeps until something may happen, at most `patience`; first looks again a few times.
    ///
    /// # Errors
    /// If nothing has moved for the group's timeout although `runs` are waiting.
    pub fn wait<V: Buffer>(&mut self, runs: &[Run<V>], patience: Duration) -> Result<(), Error> {
        self.spins += 1;
        if self.spins < self.spins_max {
            std::thread::yield_now();
            return Ok(());
        }
        if let Some(gone) =
            runs.iter().flat_map(Run::awaited).find(|rank| self.link.has_left(*rank))
        {
            return Err(self.link_failed(runs, thinwire_link::Error::left(gone)));
        }
        self.judge(runs)?;
        for rank in self.link.world().peers().filter(|rank| self.link.has_left(*rank)) {
            self.left[rank.index()].get_or_init(Instant::now);
        }
        let asleep = Instant::now();
        let waited = self.link.wait(patience.min(self.timeout));
        self.spins_max = match asleep.elapsed() < SHORT_SLEEP {
            true => (2 * self.spins_max).min(SPINS_MAX),
            false => (self.spins_max / 2).max(1),
        };
        waited.map_err(|error| self.link_failed(runs, error))
    }

    /// Completes the runs, in this thread.
    ///
    /// # Errors
    /// As [`Group::advance`] and [`Group::wait`].
    pub fn complete<V: Buffer>(&mut self, runs: &mut [Run<V>]) -> Result<(), Error> {
        for run in runs.iter_mut() {
            self.admit(run)?;
        }
        while !runs.iter().all(Run::is_done) {
            if !self.advance(runs)? {
                self.wait(runs, Duration::from_secs(1))?;
            }
        }
        Ok(())
    }

    /// Tells all peers that this rank leaves in good order, and waits for them for a short time.
    /// Dropping the group does the same.
    pub fn leave(self) {}

    /// Ends the group because of a failure outside of it: every peer gets `reason`.
    pub fn abort(&mut self, reason: &str) {
        if self.error.is_none() {
            let error = Error::stopped(reason.to_owned());
            self.link.poison(&error.for_peers());
            self.error = Some(error);
        }
    }

    /// Returns the operation and step to name in an error: those of the first run that is not done.
    fn doing<V: Buffer>(&self, runs: &[Run<V>]) -> (&'static str, Option<u64>) {
        let run = runs.iter().find(|run| !run.is_done());
        run.map_or((BETWEEN, self.step), |run| (run.address.operation, Some(run.address.step)))
    }

    /// Fails if the group has ended, or is to end now.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        match self.stop.reason() {
            Some(reason) => Err(self.fail(Error::stopped(reason))),
            None => Ok(()),
        }
    }

    fn hand_over<V: Buffer>(&mut self, runs: &mut [Run<V>]) {
        for run in runs {
            while let Some((to, header)) = run.next_send(self.epoch) {
                match run.bulk {
                    true => self.link.send_bulk(to, header),
                    false => self.link.send(to, header),
                }
            }
        }
    }

    fn fail(&mut self, error: Error) -> Error {
        if self.error.is_none() {
            self.link.poison(&error.for_peers());
            self.error = Some(error.clone());
        }
        error
    }

    fn link_failed<V: Buffer>(&mut self, runs: &[Run<V>], error: thinwire_link::Error) -> Error {
        let (operation, step) = self.doing(runs);
        self.fail(Error::link(operation, step, error))
    }

    fn timed_out<V: Buffer>(&mut self, runs: &[Run<V>]) -> Error {
        let mut awaited: Vec<Rank> = runs.iter().flat_map(Run::awaited).collect();
        awaited.sort_unstable();
        awaited.dedup();
        let names: Vec<String> = awaited.iter().map(Rank::to_string).collect();
        let (operation, step) = self.doing(runs);
        let first = runs.iter().find(|run| !run.is_done());
        let late = match first.is_some_and(Run::is_computing) {
            true => "a device has not finished its work".to_owned(),
            false => format!("nothing came from {}", names.join(", ")),
        };
        let mut detail = format!("{late} before the timeout of {:?}", self.timeout);
        for rank in &awaited {
            if let Some((mine, theirs)) =
                step.and_then(|mine| Some((mine, self.inbox.ahead(*rank, mine)?)))
            {
                let _ = write!(detail, "; {}", different_steps(*rank, theirs, mine));
            }
            if let Some(held) = self.inbox.full_of(*rank) {
                let (messages, mib) = (held.messages, held.charged_bytes >> 20);
                let _ = write!(
                    detail,
                    "; {rank} is {messages} messages ahead ({mib} MiB), and no more are accepted"
                );
            }
        }
        self.fail(Error::timeout(
            operation,
            step.unwrap_or(CALLS),
            awaited.first().copied(),
            detail,
        ))
    }
}

impl Drop for Group {
    /// Says goodbye, so that peers can tell an end from a loss; or sends the reason for which the group
    /// was stopped.
    fn drop(&mut self) {
        let going_on = self.check().is_ok();
        if going_on && !std::thread::panicking() {
            // Whoever is still busy will find the goodbye when it looks.
            let _ = self.link.finish(Deadline::Shutdown.duration());
        }
    }
}
