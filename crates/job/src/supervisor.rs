//! Decisions of a launcher about the processes of its job, without processes and clocks.
//!
//! Where ranks cannot do without each other ([`Loss::Fatal`], a fixed number of them), the first that fails
//! ends the job; see `fatal`. The rest of this text is about elastic jobs, where the death of a member is no
//! failure while others live: it is replaced as long as restarts are left, and otherwise the job continues
//! with fewer. The job is done once a member reports that it has done the last step or, if no epoch has ever
//! been formed, exits with 0. The launcher then waits for the others, because rank 0 may still write the
//! result, and tells spares to leave. The job has failed when no member lives, or when fewer than the minimum
//! do and no other can come.
//!
//! Members that were asked to leave (by SIGTERM, or because the job was made smaller) exit with 0 before the
//! last step, or by the signal. They are not replaced, and are no failure.
//!
//! In both, a signal to the launcher ends all members, as [`Shutdown`] says, and a second one kills them.

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

/// Time that the others have after a member has failed, before they are told to end.
const GRACE: Duration = Duration::from_secs(4);
/// Time that members have after they were told to end, before they are killed.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Time that members have to leave: to end a step, and to write a checkpoint.
const LEAVING: Duration = Duration::from_secs(60);
/// Time that ranks have to end a step in good order where they get the launcher's signal; a grace, once one has
/// ended.
const PATIENCE: Duration = Duration::from_secs(14);
/// Time that members with servers have to leave. Under `sync`, one that is a step ahead of those that have
/// left waits for them in vain.
const LAST_PUSH: Duration = Duration::from_secs(5);

/// A member that dies within this time of its start may do so again.
const QUICK: Duration = Duration::from_secs(10);
/// Wait before a replacement if the last two members have died quickly; doubled for each further one.
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
        /// End of its process.
        end: End,
    },
    /// An epoch has started.
    Epoch(Epoch),
    /// The job should have another number of ranks.
    Resized {
        /// Number of ranks.
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
    /// The deadline has passed.
    Tick,
}

/// Members of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    /// Members that this launcher has started.
    pub members: BTreeSet<u32>,
    /// Rank 0, if it is one of them.
    pub first: Option<u32>,
    /// Number of members that somebody else has started.
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
        /// Members that get it.
        members: Vec<u32>,
        /// Number of the signal.
        signal: i32,
    },
    /// Tells people.
    Say(Notice),
}

/// End of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A member has finished the job.
    Done,
    /// A signal ended it: one to the launcher, or SIGTERM to each member.
    Interrupted(i32),
    /// This member was the first to die since the last epoch started, and none is left; or it has failed
    /// after the last step.
    Failed {
        /// Member that died.
        member: u32,
        /// End of its process.
        end: End,
    },
    /// Fewer members were left than the job needs.
    TooFew {
        /// Members that were left.
        have: u32,
        /// Fewest that train.
        min: u32,
        /// The first that died since the last epoch started, unless all others were told to leave.
        cause: Option<(u32, End)>,
    },
}

/// Bounds of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Fewest and most ranks that train.
    pub ranks: RangeInclusive<u32>,
    /// Most replacements of members that die.
    pub restarts: u32,
    /// Most members that this launcher starts for the first time or because the job has grown.
    pub here: u32,
    /// Members of other launchers.
    pub others: Others,
    /// Consequence of a member's death.
    pub loss: Loss,
    /// Manner in which members end when the launcher is told to.
    pub shutdown: Shutdown,
}

impl Limits {
    /// Returns the bounds of a job of a fixed number of ranks, all of which start here.
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

/// Members that somebody else starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// More such members may join where one has.
    Shown,
    /// Other launchers of the job may start members at any time. A launcher that is told to end takes only
    /// its own members with it.
    May,
}

/// Manner in which the launcher ends the members of a job together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Members get the signal, and then have a while to end a step in good order.
    Forward,
    /// The coordinator lets them leave, and they get a signal: the program may not know of the coordinator.
    Signal,
    /// The coordinator lets members leave, and they write a checkpoint. They get no signal: for members that
    /// somebody has signalled together with the launcher it would be the second one, and end them at once.
    Leave,
    /// Members get SIGTERM and the coordinator ends nothing: it would end the servers before the last pushes.
    Terminate,
}

/// The state of a job.
#[derive(Debug)]
pub struct Supervisor {
    /// Bounds, with the restarts that are left.
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
    /// Waits of replacements; none unless the last member to die died quickly.
    backoff: Option<Backoff>,
    /// The last epoch, once there was one.
    epoch: Option<Epoch>,
    /// First death since the last epoch started.
    cause: Option<(u32, End)>,
    /// Verdict, as soon as the job is to end.
    verdict: Option<Verdict>,
    deadline: Option<Deadline>,
    /// Actions that follow from the event at hand.
    actions: Vec<Action>,
}

/// Time at which members that have not ended get a signal: all, or spares alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deadline {
    at: Instant,
    /// Begin of the wait.
    since: Instant,
    /// SIGTERM, or SIGKILL after it.
    signal: i32,
}

impl Supervisor {
    /// Returns the state of a job that begins with as many members as it may have here, and their starts.
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

    /// Returns the word for a process of the job.
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

    /// Returns whether the job has an end, so that nobody is replaced.
    pub const fn is_over(&self) -> bool {
        self.verdict.is_some()
    }

    /// Returns whether the job's end is known, for better or worse.
    pub const fn is_decided(&self) -> bool {
        self.verdict.is_some() || self.cause.is_some()
    }

    /// Returns the job's end, once no member runs.
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

    /// Gives members some time to end, before they are told to by SIGTERM.
    fn wait(&mut self, time: Duration, now: Instant) {
        self.deadline = Some(Deadline { at: now + time, since: now, signal: SIGTERM });
    }

    /// A member of the last epoch that exits with an error fails the job, and so does rank 0 if it is killed:
    /// it may have been writing the result.
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

    /// The coordinator tells spares to leave; those that do not get a signal after a while.
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

    /// The first quick death may be chance; a program that always dies must not be started in a loop.
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

    /// Number of members that live or are about to start.
    fn have(&self) -> u32 {
        (self.live.len() + self.due.len()) as u32
    }

    /// Number of members in the last epoch that somebody else has started.
    fn others(&self) -> u32 {
        self.epoch.as_ref().map_or(0, |epoch| epoch.others)
    }

    /// Number of members that the job lacks here.
    fn missing(&self) -> u32 {
        let here = self.target.saturating_sub(self.others()).min(self.limits.here);
        here.saturating_sub(self.have())
    }

    fn start_due(&mut self, now: Instant) {
        let due = self.due.extract_if(.., |time| *time <= now).count();
        self.start(due as u32, now);
    }

    /// Members that somebody else has started show that more of them may come.
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

    /// Deaths before an epoch begins are not the cause of an end after it.
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

    /// Lines about signals are for elastic jobs, whose members may take a minute to leave.
    fn say_of_signal(&mut self, notice: Notice) {
        if self.limits.loss == Loss::Survivable {
            self.actions.push(Action::Say(notice));
        }
    }

    /// Lets all members leave, or those of this launcher if there are others.
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

    /// Kills all members that live, and waits for nothing more.
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
