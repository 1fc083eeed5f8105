//! One process of an elastic job.
//!
//! A separate thread exchanges messages with the coordinator, so that the coordinator gets reports of
//! the process while the framework computes. This thread owns the state machine,
//! [`thinwire_member::Member`]; the process's own thread reports to it what happens, and waits for
//! epochs.

mod connector;
mod meeting;
mod shared;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use thinwire_link::{self as link, Deadline, Link};
use thinwire_member::{Epoch, Id, Member, Options};
use thinwire_wire::{Rank, World};

use super::envelope::FIGURES_BYTES_MAX;
use super::job_address::JobAddress;
use super::job_spec::JobSpec;
use super::role::Role;
use super::steps::Wish;
use crate::environment::process;
use crate::error::Error;
use crate::meeting::Settings;
use crate::port::check_apart_here;
use crate::rendezvous::without_token;
use connector::Caller;
use meeting::Meeting;
pub(super) use shared::Participation;
use shared::{Found, Shared};
use worker::{Command, Worker};

/// The environment variable with the number by which a launcher names the process in its messages.
pub const NUMBER: &str = "THINWIRE_MEMBER_NUMBER";

/// Next action of a process of an elastic job.
#[derive(Debug)]
pub enum Next {
    /// Train in an epoch.
    Run(Box<Run>),
    /// End: the process has left a job that continues, or all steps are done.
    Left,
    /// End: the job is stopped, or this process has left and no other is known to continue with its state.
    /// The process has to save its state.
    Stopped,
}

/// Epoch that has started, and this process's part in it.
#[derive(Debug)]
pub struct Run {
    /// The epoch.
    pub epoch: Epoch,
    /// Rank of this process, and number of ranks.
    pub world: World,
    /// Connections to all other members.
    pub link: Link,
}

/// Membership of a process in an elastic job: a thread that exchanges messages with the coordinator
/// while the framework computes.
///
/// If it is dropped without [`Membership::leave`] or [`Membership::complete`], it looks to the others like a
/// process that was killed.
pub struct Membership {
    id: Id,
    shared: Arc<Shared>,
    commands: Option<Sender<Command>>,
    caller: Arc<Caller>,
    thread: Option<JoinHandle<()>>,
}

impl Membership {
    /// Joins a job: sends the coordinator `spec`, which must be equal on all processes of the job, and from
    /// then on asks to be in its epochs.
    ///
    /// The coordinator's heartbeat timeout replaces the one in `options`.
    ///
    /// # Errors
    /// If the coordinator does not answer within the timeout of `settings`, has another token, or has another
    /// job spec.
    pub fn join(
        job_address: &JobAddress,
        settings: &Settings,
        options: Options,
        spec: Vec<(String, String)>,
    ) -> Result<Membership, Error> {
        Membership::enter(Participation::Trains, job_address, settings, options, spec)
    }

    /// Joins a job as [`Membership::join`] does. A process with [`Participation::Follows`] waits for the
    /// coordinator without a time limit.
    pub(super) fn enter(
        participation: Participation,
        job_address: &JobAddress,
        settings: &Settings,
        options: Options,
        spec: Vec<(String, String)>,
    ) -> Result<Membership, Error> {
        check_apart_here(settings.port, &job_address.coordinator)?;
        let spec = JobSpec::new(spec)?;
        let fingerprint = spec.fingerprint();
        let caller = Arc::new(Caller::new(job_address, spec)?);
        let call = caller.call(settings.timeout);
        let call = call.map_err(|error| without_token(error, &job_address.token))?;
        let options = Options { silence: call.silence, ..options };
        let shared = Arc::new(Shared::new(match participation {
            Participation::Trains => settings.timeout,
            Participation::Follows => Duration::MAX,
        }));
        let member = Member::new(job_address.id, options, fingerprint);
        let (to_worker, to_caller) = (Arc::clone(&shared), Arc::clone(&caller));
        let mut worker = Worker::new(member, options, participation, to_worker, to_caller);
        let commands = Some(worker.sender());
        shared.meetings(Meeting::new(settings, &options, &caller, Role::of(job_address.id)));
        worker.connected(call);
        let thread = thread::Builder::new()
            .name("thinwire member".to_owned())
            .spawn(move || worker.run())
            .map_err(|error| Error::because("starting the thread of a membership", error))?;
        let membership =
            Membership { id: job_address.id, shared, commands, caller, thread: Some(thread) };
        // Host and process are worth knowing before there are other figures.
        membership.tell(Map::new());
        Ok(membership)
    }

    /// Returns the id of this process.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Waits for the next epoch and connects to its members. No run may be under way: call
    /// [`Membership::halted`] at the end of each run.
    ///
    /// # Errors
    /// If the coordinator refuses this process or does not answer for the whole timeout, or if the
    /// members of an epoch cannot connect for a reason that would persist in a later epoch.
    #[expect(
        clippy::should_implement_trait,
        reason = "epochs are waited for, and waiting may fail"
    )]
    pub fn next(&mut self) -> Result<Next, Error> {
        Ok(self.next_until(None)?.expect("without a deadline there is a next thing to do"))
    }

    /// Waits as [`Membership::next`] does, but returns `None` if no epoch has started within `timeout`, so
    /// that the process can check in between whether it was told to leave.
    ///
    /// # Errors
    /// As [`Membership::next`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Next>, Error> {
        self.next_until(Instant::now().checked_add(timeout))
    }

    fn next_until(&mut self, deadline: Option<Instant>) -> Result<Option<Next>, Error> {
        loop {
            let epoch = match self.shared.wait_for_epoch(deadline)? {
                None => return Ok(None),
                Some(Found::Left) => return Ok(Some(Next::Left)),
                Some(Found::Stopped) => return Ok(Some(Next::Stopped)),
                Some(Found::Epoch(epoch)) => epoch,
            };
            let world = epoch.world(self.id).expect("the epoch of a run has this process");
            match self.shared.meet(&epoch, world)? {
                Some(Ok(link)) => {
                    return Ok(Some(Next::Run(Box::new(Run { epoch, world, link }))));
                }
                Some(Err(error)) if is_final(&error) => return Err(error.into()),
                Some(Err(error)) => {
                    error.rank.into_iter().for_each(|rank| self.lost(rank));
                    self.halted();
                }
                // The epoch has ended before all had met.
                None => self.halted(),
            }
        }
    }

    /// Returns the state that the process and the thread share.
    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Connects to the other members of an epoch; returns `None` if the run is to end first.
    pub(super) fn meet(&self, epoch: &Epoch) -> Result<Option<Link>, Error> {
        let world = epoch.world(self.id).ok_or_else(|| {
            Error::invalid(format!("epoch {} does not have process {}", epoch.number, self.id))
        })?;
        self.shared.meet(epoch, world)?.transpose().map_err(Error::from)
    }

    /// Sets the callback that ends the present run at once, so that everything that waits in it fails. `stop`
    /// is called at most once, from another thread, or from this one if the run is to end already. It must
    /// not block.
    pub fn on_abort(&self, stop: impl Fn() + Send + 'static) {
        self.shared.on_abort(Box::new(stop));
    }

    /// Returns a text for users with the reason why this process is in no epoch: it is a spare, or no epoch
    /// can be formed at the moment. Each reason is returned once for as long as it lasts. A reason that
    /// concerns all processes is returned only after it has lasted a second.
    pub fn obstacle(&self) -> Option<String> {
        self.shared.obstacle()
    }

    /// Returns for how long the coordinator has been away, if it is.
    pub fn away(&self) -> Option<Duration> {
        self.shared.away()
    }

    /// Returns whether the job is over: all steps are done, or all processes are to leave.
    pub fn is_over(&self) -> bool {
        self.shared.is_over()
    }

    /// Returns the members that are not in the next epoch, once the coordinator has asked to end this one
    /// after a step that all agree on. Costs next to nothing.
    pub fn finishing(&self) -> Option<Vec<Id>> {
        self.shared.finishing()
    }

    /// Returns this process's [`Wish`] about the end of the epoch, in an epoch of `ranks` ranks.
    pub fn wish(&self, ranks: usize) -> Wish {
        match self.finishing() {
            Some(leavers) if leavers.len() == ranks => Wish::Stop,
            Some(_) => Wish::Change,
            None => Wish::Continue,
        }
    }

    /// Returns each leaver of an epoch that ends after a step that all agree on, with the rank that takes
    /// over its residuals. Waits until the coordinator has named the leavers, since this rank may have
    /// learnt of the end of the epoch from another rank first. Returns an empty list if the coordinator
    /// does not name them within two seconds.
    pub fn successors(&self) -> Vec<(Rank, Rank)> {
        let leavers = self.shared.wait_for_leavers(Instant::now() + Deadline::Shutdown.duration());
        successors(&self.shared.members(), &leavers)
    }

    /// Notes that the state of the epoch was received or loaded, with `done` as its last step.
    pub fn synced(&self, done: u64) {
        self.shared.done.store(done, Ordering::Release);
    }

    /// Notes that the step `done` was applied. Call it after every step; it costs next to nothing.
    pub fn applied(&self, done: u64) {
        self.shared.done.store(done, Ordering::Release);
    }

    /// Notes that a peer of the epoch does not answer.
    pub fn lost(&self, rank: Rank) {
        self.shared.member(rank).into_iter().for_each(|id| self.lose(id));
    }

    /// Notes that a member of the epoch does not answer.
    pub(super) fn lose(&self, id: Id) {
        if id != self.id {
            self.command(Command::Lost(id));
        }
    }

    /// Notes that the run has ended and applies no step any more, until [`Membership::next`] returns.
    pub fn halted(&self) {
        self.shared.run_ended();
        self.command(Command::Halted);
    }

    /// Asks to leave. The run continues until [`Membership::finishing`] or an abort ends it;
    /// [`Membership::next`] then returns [`Next::Left`].
    pub fn leave(&self) {
        self.command(Command::Leave);
    }

    /// Notes that the run takes no further step and that no process continues after it: the process saves
    /// its state together with its peers, however long that takes, and no abort ends their group.
    pub fn closing(&self) {
        self.shared.run_ended();
    }

    /// Leaves at once, without waiting for the coordinator's permission. Call it if no other process
    /// continues with this process's state, or if the state is saved.
    pub fn depart(&self) {
        self.command(Command::Depart);
        self.shared.wait_for_end(Instant::now() + Deadline::Shutdown.duration());
    }

    /// Reports that all steps are done: the job is over for every process. If the coordinator is away, it
    /// still receives the report if it comes back within ten seconds.
    ///
    /// # Errors
    /// If the coordinator has not received the report by then.
    pub fn complete(&self) -> Result<(), Error> {
        self.command(Command::Complete);
        if self.shared.wait_for_end(Instant::now() + Deadline::Reply.duration()) {
            return Ok(());
        }
        let (address, seconds) = (&self.caller.address(), Deadline::Reply.duration().as_secs());
        let context = format!(
            "the coordinator at {address} has not heard within {seconds} s that all steps are done"
        );
        let error = Error::from(link::Error::new(link::Kind::Unreachable, context));
        Err(error.with_hint(
            "when the coordinator is back, end it and remove its state: the job is complete",
        ))
    }

    /// Sends figures that users see, such as step and loss. They replace the last ones. `host` and `pid` of
    /// this process are added, and `member`, its launcher's number for it. Figures of more than 16 KiB of
    /// JSON are not sent.
    pub fn tell(&self, mut figures: Map<String, Value>) {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        figures.insert("host".to_owned(), json!(host));
        figures.insert("pid".to_owned(), json!(std::process::id()));
        if let Some(number) = process(NUMBER).and_then(|number| number.parse::<u32>().ok()) {
            figures.insert("member".to_owned(), json!(number));
        }
        let figures = Value::Object(figures).to_string();
        if figures.len() <= FIGURES_BYTES_MAX {
            self.command(Command::Figures(figures));
        }
    }

    fn command(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // The thread ends early only when the process has left.
            let _ = commands.send(command);
        }
        self.shared.wake();
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.shared.forget_change();
        self.command(Command::Quit);
        self.commands = None;
        self.caller.cancel();
        self.shared.run_ended();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Pairs leavers with members that stay, by turns, so that all ranks find the same pairs.
fn successors(members: &[Id], leavers: &[Id]) -> Vec<(Rank, Rank)> {
    let ranks = (0..).map(Rank).zip(members);
    let (going, staying): (Vec<_>, Vec<_>) = ranks.partition(|(_, id)| leavers.contains(id));
    let pairs = going.iter().zip(staying.iter().cycle());
    pairs.map(|((leaver, _), (heir, _))| (*leaver, *heir)).collect()
}

/// Returns whether no later epoch can help.
fn is_final(error: &link::Error) -> bool {
    use link::Kind::{Invalid, Limit, RankTaken, WorldMismatch};
    matches!(error.kind, Invalid | Limit | RankTaken | WorldMismatch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_leaver_has_an_heir_that_stays() {
        let members = [Id(5), Id(9), Id(2), Id(7), Id(4)];
        let pairs = |leavers: &[Id]| {
            successors(&members, leavers).iter().map(|(a, b)| (a.0, b.0)).collect::<Vec<_>>()
        };
        assert_eq!(pairs(&[]), []);
        assert_eq!(pairs(&[Id(9)]), [(1, 0)]);
        assert_eq!(pairs(&[Id(4), Id(5), Id(2)]), [(0, 1), (2, 3), (4, 1)]);
        assert_eq!(pairs(&members), []);
    }
}
