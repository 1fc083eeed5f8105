//! Decisions of a launcher about the processes of its job, without processes or clocks.
//!
//! If ranks cannot do without each other ([`Loss::Fatal`], a fixed number of ranks), the first rank that
//! fails ends the job; see `fatal`. The rest of this text is about elastic jobs, in which the death of a
//! member is no failure while others live. The member is replaced as long as restarts are left; otherwise the
//! job continues with fewer members. The job is done when a member reports that it has done the last step or,
//! if no epoch was ever formed, when a member exits with 0. The launcher then waits for the others, because
//! rank 0 may still write the result, and tells spares to leave. The job has failed when no member lives, or
//! when fewer members than the minimum live and no other can come.
//!
//! Members that were asked to leave (by SIGTERM, or because the job was made smaller) exit with 0 before the
//! last step, or end by the signal. They are not replaced, and do not count as failures.
//!
//! With both kinds of jobs, a signal to the launcher ends all members, as [`Shutdown`] says, and a second
//! signal kills them.

mod end;
mod fatal;
mod notice;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGKILL, SIGPIPE, SIGTERM};
use thinwire_link::Backoff;

pub use end::End;
pub use notice::Notice;

/// Time for which the others may continue after a member has failed, before they are told to end.
const GRACE: Duration = Duration::from_secs(4);
/// Time between telling members to end and killing them.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Time that members have to leave: they end a step, and write a checkpoint.
const LEAVING: Duration = Duration::from_secs(60);
/// Time that ranks have to end a step in good order after they got the launcher's signal. Once one rank has
/// ended, the others have only [`GRACE`].
const PATIENCE: Duration = Duration::from_secs(14);
/// Time that members of a job with servers have to leave. Under `sync`, a member that is a step ahead of
/// those that have left would wait for them forever.
const LAST_PUSH: Duration = Duration::from_secs(5);

/// A member that dies within this time after its start is likely to do so again.
const QUICK: Duration = Duration::from_secs(10);
/// Wait before a replacement if the last two members died quickly; doubled for each further one.
const BACKOFF: Duration = Duration::from_secs(1);
/// Longest wait before a replacement.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Event that reaches the launcher. Members are numbered in the order in which they were started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The process of a member has ended.
    Ended {
        /// Member that ended.
        member: u32,
        /// End of the member's process.
        end: End,
    },
    /// An epoch has started.
    Epoch(Epoch),
    /// The job should have another number of ranks.
    Resized {
        /// Number of ranks that the job should have.
        target: u32,
    },
    /// A member has done the last step, so that no epoch is formed any more.
    Complete,
    /// The launcher got a signal.
    Signal(i32),
    /// The reader of the job's output has closed it.
    Unread,
    /// A member was found stopped by a signal, after another one has failed.
    Stopped {
        /// Member that is stopped.
        member: u32,
    },
    /// The time of [`Supervisor::deadline`] has come.
    Tick,
}

/// Members of an epoch, by the launchers that started them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    /// Members that this launcher has started.
    pub members: BTreeSet<u32>,
    /// Rank 0, if it is one of them.
    pub first: Option<u32>,
    /// Number of members that other launchers or people have started.
    pub others: u32,
}

/// Action of the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Starts the process of a new member.
    Start {
        /// Number of the member.
        member: u32,
    },
    /// Tells the coordinator that a member does not come back, so that the others do not wait for it.
    Lost {
        /// Member that died.
        member: u32,
    },
    /// Lets all members leave after the same step.
    Dismiss,
    /// Sends a signal to members that live.
    Signal {
        /// Members that get the signal.
        members: Vec<u32>,
        /// Number of the signal.
        signal: i32,
    },
    /// Reports something to people.
    Say(Notice),
}

/// End of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A member has finished the job.
    Done,
    /// A signal ended the job: a signal to the launcher, or SIGTERM to each member.
    Interrupted(i32),
    /// This member was the first to die since the last epoch started, and no member is left; or it has
    /// failed after the last step.
    Failed {
        /// Member that died.
        member: u32,
        /// End of the member's process.
        end: End,
    },
    /// Fewer members were left than the job needs.
    TooFew {
        /// Members that were left.
        have: u32,
        /// Smallest number of members that can train.
        min: u32,
        /// The first member that died since the last epoch started, unless all others were told to leave.
        cause: Option<(u32, End)>,
    },
}

/// Limits of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Smallest and largest number of ranks that train.
    pub ranks: RangeInclusive<u32>,
    /// Largest number of replacements of members that die.
    pub restarts: u32,
    /// Largest number of members that this launcher starts, not counting replacements.
    pub here: u32,
    /// Members that other launchers may start.
    pub others: Others,
    /// Consequence of a member's death.
    pub loss: Loss,
    /// Manner in which members end when the launcher is told to.
    pub shutdown: Shutdown,
}

impl Limits {
    /// Returns the limits of a job with a fixed number of ranks, all of which start here.
    pub const fn fixed(ranks: u32) -> Limits {
        Limits {
            ranks: ranks..=ranks,
            restarts: 0,
            here: ranks,
            others: Others::Shown,
            loss: Loss::Fatal,
            shutdown: Shutdown::Forward,
        }
    }
}

/// Consequence of the death of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The job fails: its ranks cannot do without each other.
    Fatal,
    /// Others continue, as long as there are enough of them.
    Survivable,
}

/// Members that this launcher does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// Other launchers may start members only if the last epoch has a member that this launcher has not
    /// started.
    Shown,
    /// Other launchers of the job may start members at any time. A launcher that is told to end takes only
    /// its own members with it.
    May,
}

/// Way in which the launcher ends all members of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Members get the signal, and then have a while to end a step in good order.
    Forward,
    /// The coordinator lets members leave, and the launcher signals them too, since the program may not know
    /// of the coordinator.
    Signal,
    /// The coordinator lets members leave, and they write a checkpoint. The launcher does not signal them: if
    /// somebody has already signalled them together with the launcher, a second signal would end them at
    /// once.
    Leave,
    /// Members get SIGTERM. The coordinator does not end the job, since it would end the servers before the
    /// last pushes.
    Terminate,
}

/// The state of a job.
#[derive(Debug)]
pub struct Supervisor {
    /// Limits, with the number of restarts that are left.
    limits: Limits,
    /// Number of ranks that the job should have.
    target: u32,
    /// Number of the next member.
    next_member: u32,
    /// Members whose processes run, with the times of their starts.
    live: BTreeMap<u32, Instant>,
    /// Members that a signal has stopped, so that they cannot end by themselves.
    stopped: BTreeSet<u32>,
    /// Times at which replacements are started.
    due: Vec<Instant>,
    /// Backoff of replacements; `None` unless the last member that died died quickly.
    backoff: Option<Backoff>,
    /// The last epoch, once there was one.
    epoch: Option<Epoch>,
    /// First death since the last epoch started.
    cause: Option<(u32, End)>,
    /// Verdict, once the job has to end.
    verdict: Option<Verdict>,
    deadline: Option<Deadline>,
    /// Actions that follow from the current event.
    actions: Vec<Action>,
}

/// Time at which members that have not ended get a signal: all members, or only spares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deadline {
    at: Instant,
    /// Start of the wait.
    since: Instant,
    /// SIGTERM, or SIGKILL after it.
    signal: i32,
}

impl Supervisor {
    /// Returns the state of a job and the actions that start its first members, as many as may run here.
    pub fn begin(limits: Limits, now: Instant) -> (Supervisor, Vec<Action>) {
        let mut supervisor = Supervisor {
            target: *limits.ranks.end(),
            limits,
            next_member: 0,
            live: BTreeMap::new(),
            stopped: BTreeSet::new(),
            due: Vec::new(),
            backoff: None,
            epoch: None,
            cause: None,
            verdict: None,
            deadline: None,
            actions: Vec::new(),
        };
        supervisor.start(supervisor.limits.here, now);
        let starts = std::mem::take(&mut supervisor.actions);
        (supervisor, starts)
    }

    /// Returns whether any member runs or will be started.
    pub fn is_running(&self) -> bool {
        self.have() > 0
    }

    /// Returns the number of members that were started so far.
    pub const fn started(&self) -> u32 {
        self.next_member
    }

    /// Returns the noun for a process of the job.
    pub const fn word(&self) -> &'static str {
        match self.limits.loss {
            Loss::Fatal => "rank",
            Loss::Survivable => "member",
        }
    }

    /// Returns when [`Event::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.due.iter().copied().chain(self.deadline.map(|deadline| deadline.at)).min()
    }

    /// Returns whether the job is ending, so that no member is replaced.
    pub const fn is_over(&self) -> bool {
        self.verdict.is_some()
    }

    /// Returns whether the job has a verdict, or a member whose death is the cause of its end.
    pub const fn is_decided(&self) -> bool {
        self.verdict.is_some() || self.cause.is_some()
    }

    /// Returns the verdict. No member may be running.
    pub fn verdict(&self) -> Verdict {
        match (self.verdict, self.cause) {
            (Some(verdict), _) => verdict,
            (None, Some((member, end))) => Verdict::Failed { member, end },
            (None, None) => Verdict::Interrupted(SIGTERM),
        }
    }

    /// Handles an event at time `now`, and returns the actions that follow from it.
    pub fn on(&mut self, event: Event, now: Instant) -> Vec<Action> {
        match event {
            Event::Ended { member, end } => self.ended(member, end, now),
            Event::Stopped { member } => self.found_stopped(member),
            Event::Epoch(epoch) => self.epoch_started(epoch),
            Event::Complete => self.completed(now),
            Event::Resized { target } => self.resized(target, now),
            Event::Signal(signal) => self.signalled(signal, now),
            Event::Unread => {
                self.conclude(Verdict::Interrupted(SIGPIPE));
                self.kill();
            }
            Event::Tick => self.tick(now),
        }
        std::mem::take(&mut self.actions)
    }

    fn start(&mut self, count: u32, now: Instant) {
        for member in self.next_member..self.next_member + count {
            self.live.insert(member, now);
            self.actions.push(Action::Start { member });
        }
        self.next_member += count;
    }

    fn ended(&mut self, member: u32, end: End, now: Instant) {
        let Some(started) = self.live.remove(&member) else { return };
        match self.verdict {
            _ if self.limits.loss == Loss::Fatal => self.ended_among_dependents(member, end, now),
            // A member that has done the last step reports so before its process ends.
            None if end == End::Code(0) && self.epoch.is_none() => self.conclude(Verdict::Done),
            None if end == End::Code(0) || end.was_asked() => self.left(member, now),
            None => self.died(member, end, now.duration_since(started), now),
            Some(Verdict::Done) => self.ended_after_the_last_step(member, end, now),
            Some(_) => {}
        }
    }

    fn conclude(&mut self, verdict: Verdict) {
        self.verdict = Some(verdict);
        self.due.clear();
    }

    /// Gives members some time to end before they get SIGTERM.
    fn wait(&mut self, time: Duration, now: Instant) {
        self.deadline = Some(Deadline { at: now + time, since: now, signal: SIGTERM });
    }

    /// Handles the end of a member after the last step. The job fails if a member of the last epoch
    /// exits with an error. It also fails if rank 0 is killed, since rank 0 may have been writing the
    /// result.
    fn ended_after_the_last_step(&mut self, member: u32, end: End, now: Instant) {
        let first = self.epoch.as_ref().and_then(|epoch| epoch.first);
        let is_loss = matches!(end, End::Code(_)) || first == Some(member);
        if end == End::Code(0) || self.is_spare(member) {
            return;
        }
        if let Some(signal) = end.stopped_by() {
            // A signal to one member has stopped all of them before the last step.
            self.conclude(Verdict::Interrupted(signal));
        } else if is_loss && !end.was_asked() {
            self.conclude(Verdict::Failed { member, end });
            self.wait(GRACE, now);
        }
    }

    /// Waits for spares, which the coordinator tells to leave; those that do not leave in time get a signal.
    fn completed(&mut self, now: Instant) {
        if !self.is_over() {
            self.conclude(Verdict::Done);
            self.wait(GRACE, now);
        }
    }

    /// Returns whether there was an epoch, and a member is not in the last one.
    fn is_spare(&self, member: u32) -> bool {
        self.epoch.as_ref().is_some_and(|epoch| !epoch.members.contains(&member))
    }

    fn left(&mut self, member: u32, now: Instant) {
        let left = Action::Say(Notice::Left { member, live: self.live.len() });
        self.actions.extend([Action::Lost { member }, left]);
        self.give_up_if_too_few(now);
    }

    fn died(&mut self, member: u32, end: End, lived: Duration, now: Instant) {
        self.cause.get_or_insert((member, end));
        let is_replaced = self.limits.restarts > 0 && self.missing() > 0;
        let restarts = is_replaced.then(|| {
            self.limits.restarts -= 1;
            let wait = self.backoff(lived);
            self.due.push(now + wait);
            (self.limits.restarts, wait)
        });
        self.actions.push(Action::Lost { member });
        let live = self.live.len();
        // Otherwise nobody lives, and if the job ends with that, its verdict names the first death.
        if is_replaced || live > 0 {
            self.actions.push(Action::Say(Notice::Died { member, end, live, restarts }));
        }
        // A replacement may be due without a wait.
        self.start_due(now);
        self.give_up_if_too_few(now);
    }

    /// Returns the wait before a replacement. The first quick death may be chance, but a program that always
    /// dies must not be started in a loop.
    fn backoff(&mut self, lived: Duration) -> Duration {
        if lived >= QUICK {
            self.backoff = None;
            return Duration::ZERO;
        }
        match &mut self.backoff {
            Some(backoff) => backoff.pause(),
            None => {
                self.backoff = Some(Backoff::new(BACKOFF, BACKOFF_MAX));
                Duration::ZERO
            }
        }
    }

    /// Returns the number of members that live or are about to start.
    fn have(&self) -> u32 {
        (self.live.len() + self.due.len()) as u32
    }

    /// Returns the number of members in the last epoch that this launcher has not started.
    fn others(&self) -> u32 {
        self.epoch.as_ref().map_or(0, |epoch| epoch.others)
    }

    /// Returns the number of members that this launcher should still start.
    fn missing(&self) -> u32 {
        let here = self.target.saturating_sub(self.others()).min(self.limits.here);
        here.saturating_sub(self.have())
    }

    fn start_due(&mut self, now: Instant) {
        let due = self.due.extract_if(.., |time| *time <= now).count();
        self.start(due as u32, now);
    }

    /// Ends the job if too few members are left. If other launchers have started members, they may start
    /// more, so the job continues.
    fn give_up_if_too_few(&mut self, now: Instant) {
        let (have, min) = (self.have(), *self.limits.ranks.start());
        let may_come = self.others() > 0 || self.limits.others == Others::May;
        if have > 0 && have < min && !may_come {
            self.conclude(Verdict::TooFew { have, min, cause: self.cause });
            self.wait(self.leaving(), now);
            self.dismiss(SIGTERM);
        }
    }

    /// Returns the time that members have to leave.
    const fn leaving(&self) -> Duration {
        match self.limits.shutdown {
            Shutdown::Forward => PATIENCE,
            Shutdown::Signal | Shutdown::Leave => LEAVING,
            Shutdown::Terminate => LAST_PUSH,
        }
    }

    /// Records a new epoch. Deaths before it do not count as the cause of a later end.
    fn epoch_started(&mut self, epoch: Epoch) {
        if self.verdict == Some(Verdict::Done) {
            // A member that was late continues alone: it will finish the job or die.
            (self.verdict, self.deadline) = (None, None);
        }
        (self.epoch, self.cause) = (Some(epoch), None);
    }

    fn resized(&mut self, target: u32, now: Instant) {
        self.target = target;
        let started = self.missing();
        if !self.is_over() && started > 0 {
            self.actions.push(Action::Say(Notice::Growing { target, started }));
            self.start(started, now);
        }
    }

    fn signalled(&mut self, signal: i32, now: Instant) {
        match self.verdict {
            Some(Verdict::Interrupted(_)) => {
                self.say_of_signal(Notice::Killed);
                return self.kill();
            }
            // The job has failed already, and exits with that; members that are still ending get the signal too.
            Some(Verdict::Failed { .. } | Verdict::TooFew { cause: Some(_), .. }) => {
                return self.signal(self.live(), signal);
            }
            // All members were asked to leave, and so is the job.
            Some(Verdict::TooFew { cause: None, .. }) => {}
            None | Some(Verdict::Done) => self.wait(self.leaving(), now),
        }
        self.conclude(Verdict::Interrupted(signal));
        self.dismiss(signal);
        self.say_of_signal(Notice::Leaving);
    }

    /// Reports a signal to people in elastic jobs only, whose members may take a minute to leave.
    fn say_of_signal(&mut self, notice: Notice) {
        if self.limits.loss == Loss::Survivable {
            self.actions.push(Action::Say(notice));
        }
    }

    /// Lets all members leave, or only those of this launcher if other launchers have some.
    fn dismiss(&mut self, signal: i32) {
        let shutdown = match self.limits.others {
            Others::Shown => self.limits.shutdown,
            Others::May => Shutdown::Terminate,
        };
        if let Shutdown::Signal | Shutdown::Leave = shutdown {
            self.actions.push(Action::Dismiss);
        }
        match shutdown {
            Shutdown::Forward | Shutdown::Signal => self.signal(self.live(), signal),
            Shutdown::Terminate => self.signal(self.live(), SIGTERM),
            Shutdown::Leave => {}
        }
    }

    fn live(&self) -> Vec<u32> {
        self.live.keys().copied().collect()
    }

    fn signal(&mut self, members: Vec<u32>, signal: i32) {
        if !members.is_empty() {
            self.actions.push(Action::Signal { members, signal });
        }
    }

    /// Kills all living members, without waiting for anything else.
    fn kill(&mut self) {
        self.deadline = None;
        self.signal(self.live(), SIGKILL);
    }

    fn tick(&mut self, now: Instant) {
        self.start_due(now);
        let Some(Deadline { since, signal, .. }) = self.deadline.take_if(|it| it.at <= now) else {
            return;
        };
        let mut members = self.live();
        let is_done = self.verdict == Some(Verdict::Done);
        // Members of the last epoch may be writing the result, and have all the time that they need for it.
        if is_done {
            members.retain(|member| self.is_spare(*member));
        }
        if signal == SIGTERM {
            let at = now + if is_done { GRACE } else { LAST_WORDS };
            self.deadline = Some(Deadline { at, since, signal: SIGKILL });
            let is_told =
                matches!(self.verdict, Some(Verdict::Interrupted(_) | Verdict::TooFew { .. }));
            if is_told && !members.is_empty() {
                // Members that were told to leave may be writing a checkpoint, which a second signal cuts short.
                let (word, members) = (self.word(), members.clone());
                let overdue = Notice::Overdue { word, members, waited: now.duration_since(since) };
                self.actions.push(Action::Say(overdue));
            }
        }
        self.signal(members, signal);
    }
}

#[cfg(test)]
mod tests;
