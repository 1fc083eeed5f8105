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

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

pub use end::{End, SIGINT, SIGKILL, SIGPIPE, SIGTERM};
pub use notice::Notice;

/// Time that the others have after a member has failed, before they are told to end.
const GRACE: Duration = Duration::from_secs(4);
/// Time that members have after they were told to end, before they are killed.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Time that members have to leave: to end a step, and to write a checkpoint.
const LEAVING: Duration = Duration::from_secs(60);
/// Time that members have to end a step in good order before the grace begins, where they get the launcher's
/// signal.
const PATIENCE: Duration = Duration::from_secs(10);
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
    Epoch {
        /// Members that this launcher has started.
        members: BTreeSet<u32>,
        /// Rank 0, if it is one of them.
        first: Option<u32>,
        /// Number of members that somebody else has started.
        others: u32,
    },
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
    /// Kills all members that live.
    Kill,
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
    min: u32,
    target: u32,
    restarts: u32,
    here: u32,
    launchers: Others,
    loss: Loss,
    shutdown: Shutdown,
    /// Number of the next member.
    next_member: u32,
    /// Members whose processes run, with the times of their starts.
    live: Vec<(u32, Instant)>,
    /// Members that a signal has stopped, so that they cannot end by themselves.
    stopped: BTreeSet<u32>,
    /// Times at which replacements are started.
    due: Vec<Instant>,
    /// Members that died quickly, one after the other.
    quick_deaths: u32,
    /// Members of the last epoch, once there was one.
    epoch: Option<BTreeSet<u32>>,
    /// Rank 0 of that epoch.
    first: Option<u32>,
    /// Members of that epoch that somebody else has started.
    others: u32,
    /// First death since the last epoch started.
    cause: Option<(u32, End)>,
    /// Verdict, as soon as the job is to end.
    verdict: Option<Verdict>,
    deadline: Option<(Instant, Last)>,
}

/// Means by which members that do not end are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// SIGTERM, to all or to spares alone.
    Terminate,
    Kill,
}

impl Supervisor {
    /// Returns the state of a job that begins with as many members as it may have here, and their starts.
    pub fn begin(limits: &Limits, now: Instant) -> (Supervisor, Vec<Action>) {
        let mut supervisor = Supervisor {
            min: *limits.ranks.start(),
            target: *limits.ranks.end(),
            restarts: limits.restarts,
            here: limits.here,
            launchers: limits.others,
            loss: limits.loss,
            shutdown: limits.shutdown,
            next_member: 0,
            live: Vec::new(),
            stopped: BTreeSet::new(),
            due: Vec::new(),
            quick_deaths: 0,
            epoch: None,
            first: None,
            others: 0,
            cause: None,
            verdict: None,
            deadline: None,
        };
        let starts = (0..supervisor.here).map(|_| supervisor.start(now)).collect();
        (supervisor, starts)
    }

    /// Whether any member runs or will be started.
    pub fn is_running(&self) -> bool {
        !self.live.is_empty() || !self.due.is_empty()
    }

    /// Returns the number of members that were started so far.
    pub fn started(&self) -> u32 {
        self.next_member
    }

    /// Returns when [`Event::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let last = self.deadline.map(|(deadline, _)| deadline);
        self.due.iter().copied().chain(last).min()
    }

    /// Whether the job's end is known, for better or worse.
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
            Event::Epoch { members, first, others } => {
                (self.first, self.others) = (first, others);
                self.epoch_started(members);
                Vec::new()
            }
            Event::Complete => {
                self.completed(now);
                Vec::new()
            }
            Event::Resized { target } => self.resized(target, now),
            Event::Signal(signal) => self.signalled(signal, now),
            Event::Unread => {
                self.conclude(Verdict::Interrupted(SIGPIPE));
                vec![Action::Kill]
            }
            Event::Stopped { member } => {
                self.found_stopped(member, now);
                Vec::new()
            }
            Event::Tick => self.tick(now),
        }
    }

    fn start(&mut self, now: Instant) -> Action {
        let member = self.next_member;
        self.next_member += 1;
        self.live.push((member, now));
        Action::Start { member }
    }

    fn ended(&mut self, member: u32, end: End, now: Instant) -> Vec<Action> {
        let Some(place) = self.live.iter().position(|(live, _)| *live == member) else {
            return Vec::new();
        };
        let (_, started) = self.live.remove(place);
        if self.loss == Loss::Fatal {
            self.ended_among_dependents(member, end, now);
            return Vec::new();
        }
        match self.verdict {
            None => {}
            Some(Verdict::Done) => return self.ended_after_the_last_step(member, end, now),
            Some(_) => return Vec::new(),
        }
        match self.meaning(end) {
            Meaning::Finished => {
                self.conclude(Verdict::Done);
                Vec::new()
            }
            Meaning::Left => self.left(member, now),
            Meaning::Died => self.died(member, end, started, now),
        }
    }

    /// A member that has done the last step reports so before its process ends.
    fn meaning(&self, end: End) -> Meaning {
        match end {
            End::Code(0) if self.epoch.is_none() => Meaning::Finished,
            End::Code(0) => Meaning::Left,
            _ if end.was_asked() => Meaning::Left,
            _ => Meaning::Died,
        }
    }

    /// Whether the job has an end, so that nobody is replaced.
    pub const fn is_over(&self) -> bool {
        self.verdict.is_some()
    }

    fn conclude(&mut self, verdict: Verdict) {
        self.verdict = Some(verdict);
        self.due.clear();
    }

    /// A member of the last epoch that exits with an error fails the job, and so does rank 0 if it is killed:
    /// it may have been writing the result.
    fn ended_after_the_last_step(&mut self, member: u32, end: End, now: Instant) -> Vec<Action> {
        let is_spare = self.epoch.as_ref().is_some_and(|epoch| !epoch.contains(&member));
        let is_loss = matches!(end, End::Code(_)) || self.first == Some(member);
        if let Some(signal) = end.stopped_by().filter(|_| !is_spare) {
            // A signal to one member has stopped all of them before the last step.
            self.conclude(Verdict::Interrupted(signal));
        } else if end != End::Code(0) && !end.was_asked() && !is_spare && is_loss {
            self.conclude(Verdict::Failed { member, end });
            self.deadline = Some((now + GRACE, Last::Terminate));
        }
        Vec::new()
    }

    /// The coordinator tells spares to leave; those that do not get a signal after a while.
    fn completed(&mut self, now: Instant) {
        if !self.is_over() {
            self.conclude(Verdict::Done);
            self.deadline = Some((now + GRACE, Last::Terminate));
        }
    }

    /// Members that live and are not in the last epoch, if there was one.
    fn spares(&self) -> Vec<u32> {
        let Some(epoch) = &self.epoch else { return Vec::new() };
        self.numbers().into_iter().filter(|member| !epoch.contains(member)).collect()
    }

    fn numbers(&self) -> Vec<u32> {
        self.live.iter().map(|(member, _)| *member).collect()
    }

    fn left(&mut self, member: u32, now: Instant) -> Vec<Action> {
        let left = Action::Say(Notice::Left { member, live: self.live.len() });
        let mut actions = vec![Action::Lost { member }, left];
        actions.extend(self.give_up_if_too_few(now));
        actions
    }

    fn died(&mut self, member: u32, end: End, started: Instant, now: Instant) -> Vec<Action> {
        self.cause.get_or_insert((member, end));
        let is_replaced = self.restarts > 0 && self.missing() > 0;
        let replaced = is_replaced.then(|| {
            self.restarts -= 1;
            let wait = self.backoff(now.duration_since(started));
            self.due.push(now + wait);
            (self.restarts, wait)
        });
        let mut actions = vec![Action::Lost { member }];
        if is_replaced || !self.live.is_empty() {
            let live = self.live.len();
            let notice = Notice::Died { member, end, live, restarts: replaced };
            actions.push(Action::Say(notice));
        }
        actions.extend(self.start_due(now));
        actions.extend(self.give_up_if_too_few(now));
        actions
    }

    /// The first quick death may be chance; a program that always dies must not be started in a loop.
    fn backoff(&mut self, lived: Duration) -> Duration {
        if lived >= QUICK {
            self.quick_deaths = 0;
            return Duration::ZERO;
        }
        self.quick_deaths += 1;
        match self.quick_deaths {
            1 => Duration::ZERO,
            deaths => (BACKOFF * 2_u32.saturating_pow(deaths - 2).min(1 << 8)).min(BACKOFF_MAX),
        }
    }

    /// Number of members that the job lacks, not counting replacements that are about to start.
    fn missing(&self) -> u32 {
        let have = (self.live.len() + self.due.len()) as u32;
        self.target.saturating_sub(self.others).min(self.here).saturating_sub(have)
    }

    fn start_due(&mut self, now: Instant) -> Vec<Action> {
        let due = self.due.iter().filter(|time| **time <= now).count();
        self.due.retain(|time| *time > now);
        (0..due).map(|_| self.start(now)).collect()
    }

    /// Members that somebody else has started show that more of them may come.
    fn give_up_if_too_few(&mut self, now: Instant) -> Vec<Action> {
        let have = (self.live.len() + self.due.len()) as u32;
        let may_come = self.others > 0 || self.launchers == Others::May;
        if have == 0 || have >= self.min || may_come {
            return Vec::new();
        }
        self.conclude(Verdict::TooFew { have, min: self.min, cause: self.cause });
        self.deadline = Some((now + self.leaving(), Last::Terminate));
        self.dismiss(SIGTERM)
    }

    /// Returns the time that members have to leave.
    fn leaving(&self) -> Duration {
        match self.shutdown {
            Shutdown::Forward => PATIENCE + GRACE,
            Shutdown::Signal | Shutdown::Leave => LEAVING,
            Shutdown::Terminate => LAST_PUSH,
        }
    }

    /// Deaths before an epoch begins are not the cause of an end after it.
    fn epoch_started(&mut self, members: BTreeSet<u32>) {
        if self.verdict == Some(Verdict::Done) {
            // A member that was late goes on alone: it will finish the job or die.
            (self.verdict, self.deadline) = (None, None);
        }
        (self.epoch, self.cause) = (Some(members), None);
    }

    fn resized(&mut self, target: u32, now: Instant) -> Vec<Action> {
        self.target = target;
        let started = self.missing();
        if self.is_over() || started == 0 {
            return Vec::new();
        }
        let mut actions = vec![Action::Say(Notice::Growing { target, started })];
        actions.extend((0..started).map(|_| self.start(now)));
        actions
    }

    fn signalled(&mut self, signal: i32, now: Instant) -> Vec<Action> {
        match self.verdict {
            Some(Verdict::Interrupted(_)) => {
                let mut actions = self.say(Notice::Killed);
                actions.push(Action::Kill);
                return actions;
            }
            Some(Verdict::Failed { .. } | Verdict::TooFew { cause: Some(_), .. }) => {
                return vec![Action::Signal { members: self.numbers(), signal }];
            }
            // All members were asked to leave, and so is the job.
            Some(Verdict::TooFew { cause: None, .. }) => {}
            None | Some(Verdict::Done) => {
                self.deadline = Some((now + self.leaving(), Last::Terminate));
            }
        }
        self.conclude(Verdict::Interrupted(signal));
        let mut actions = self.dismiss(signal);
        actions.extend(self.say(Notice::Leaving));
        actions
    }

    /// Lines about signals are for elastic jobs, whose members may take a minute to leave.
    fn say(&self, notice: Notice) -> Vec<Action> {
        match self.loss {
            Loss::Fatal => Vec::new(),
            Loss::Survivable => vec![Action::Say(notice)],
        }
    }

    /// Lets all members leave, or those of this launcher if there are others.
    fn dismiss(&self, signal: i32) -> Vec<Action> {
        let members = self.numbers();
        if self.launchers == Others::May {
            return vec![Action::Signal { members, signal: SIGTERM }];
        }
        match self.shutdown {
            Shutdown::Forward => vec![Action::Signal { members, signal }],
            Shutdown::Signal => vec![Action::Dismiss, Action::Signal { members, signal }],
            Shutdown::Leave => vec![Action::Dismiss],
            Shutdown::Terminate => vec![Action::Signal { members, signal: SIGTERM }],
        }
    }

    fn tick(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = self.start_due(now);
        let Some((_, last)) = self.deadline.filter(|(deadline, _)| *deadline <= now) else {
            return actions;
        };
        let is_done = self.verdict == Some(Verdict::Done);
        let members = if is_done { self.spares() } else { self.numbers() };
        let (signal, wait) = match last {
            Last::Terminate if is_done => (SIGTERM, Some(GRACE)),
            Last::Terminate => (SIGTERM, Some(LAST_WORDS)),
            Last::Kill => (SIGKILL, None),
        };
        self.deadline = wait.map(|wait| (now + wait, Last::Kill));
        if !members.is_empty() {
            actions.push(Action::Signal { members, signal });
        }
        actions
    }
}

/// Meaning of the end of a member's process.
enum Meaning {
    Finished,
    Left,
    Died,
}

#[cfg(test)]
mod tests;
