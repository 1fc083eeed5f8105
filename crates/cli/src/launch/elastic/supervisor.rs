//! Decisions of the launcher of an elastic job, without processes and clocks.
//!
//! A member whose process dies is no failure while others live: it is replaced as long as restarts are
//! left, and else the others go on with fewer. The job is done once a member says that it has done the last
//! step or, where no epoch has ever been formed, has exited with 0. The others are waited for, because rank 0
//! may still write what came of it, but spares are told to leave. The job has failed when nobody lives, or fewer than the least and nobody else can come: waiting for
//! more would last for ever. A signal to the launcher lets all members leave together, and a second one kills them.
//!
//! Members that were asked to go (SIGTERM to one of them, or a smaller job) exit with 0 before the last step, or as
//! the signal says. They are neither replaced nor a failure.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::launch::supervisor::{
    End, GRACE, LAST_WORDS, PATIENCE, SIGINT, SIGKILL, SIGPIPE, SIGTERM,
};

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
    /// Whoever read the job's output has enough.
    Unread,
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
    /// Tells the coordinator that a member does not come back, so that the others need not wait for it.
    Bury {
        /// Member that died.
        member: u32,
    },
    /// Lets all members leave after the same step.
    Dissolve,
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

/// Line for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A member has died, and others live.
    Died {
        /// Member that died.
        member: u32,
        /// End of its process.
        end: End,
        /// Members that live.
        live: usize,
        /// Replacements that may still be started, if one is on its way.
        restarts: Option<u32>,
    },
    /// A member has left, and others live.
    Left {
        /// Member that left.
        member: u32,
        /// Members that live.
        live: usize,
    },
    /// The job was made larger.
    Growing {
        /// Number of ranks that it should have.
        target: u32,
        /// Members that are started for it.
        started: u32,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Died { member, end, live, restarts } => {
                write!(f, "member {member} {end}; {}", going_on(*live))?;
                match restarts {
                    Some(left) => write!(f, ", and one takes its place (restarts left: {left})"),
                    None => Ok(()),
                }
            }
            Notice::Left { member, live } => {
                write!(f, "member {member} has left; {}", going_on(*live))
            }
            Notice::Growing { target, started: 1 } => {
                write!(f, "the job is to have {target} ranks: 1 more is started")
            }
            Notice::Growing { target, started } => {
                write!(f, "the job is to have {target} ranks: {started} more are started")
            }
        }
    }
}

fn going_on(live: usize) -> String {
    match live {
        0 => "nobody goes on".to_owned(),
        1 => "1 goes on".to_owned(),
        _ => format!("{live} go on"),
    }
}

/// End of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A member has finished the job.
    Done,
    /// A signal ended it: one to the launcher, or SIGTERM to each member.
    Interrupted(i32),
    /// This member was the first to die since the last epoch has started, and nobody lives; or it has failed
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
        /// The first that died since the last epoch has started, unless all others were told to go.
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
    /// Manner in which members end when the launcher is told to.
    pub parting: Parting,
}

/// Manner in which the members of a job end together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// The coordinator lets them leave, and they get the launcher's signal.
    Leave,
    /// They get SIGINT, at which they agree on a last step and write a checkpoint.
    Interrupt,
}

/// The state of a job.
#[derive(Debug)]
pub struct Supervisor {
    min: u32,
    target: u32,
    restarts: u32,
    parting: Parting,
    /// Number of the next member.
    next_member: u32,
    /// Members whose processes run, with the times of their starts.
    live: Vec<(u32, Instant)>,
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
    /// First death since the last epoch has started.
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
    /// Returns the state of a job that begins with as many members as it may have, and their starts.
    pub fn begin(limits: &Limits, now: Instant) -> (Supervisor, Vec<Action>) {
        let mut supervisor = Supervisor {
            min: *limits.ranks.start(),
            target: *limits.ranks.end(),
            restarts: limits.restarts,
            parting: limits.parting,
            next_member: 0,
            live: Vec::new(),
            due: Vec::new(),
            quick_deaths: 0,
            epoch: None,
            first: None,
            others: 0,
            cause: None,
            verdict: None,
            deadline: None,
        };
        let starts = (0..supervisor.target).map(|_| supervisor.start(now)).collect();
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

    /// When [`Event::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let last = self.deadline.map(|(deadline, _)| deadline);
        self.due.iter().copied().chain(last).min()
    }

    /// Returns the job's end, once nobody runs.
    pub fn verdict(&self) -> Verdict {
        match (self.verdict, self.cause) {
            (Some(verdict), _) => verdict,
            (None, Some((member, end))) => Verdict::Failed { member, end },
            (None, None) => Verdict::Interrupted(SIGTERM),
        }
    }

    /// Takes note of an event at time `now`.
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
        match self.verdict {
            None => {}
            Some(Verdict::Done) => return self.ended_after_the_last_step((member, end), now),
            Some(_) => {
                self.hurry(now);
                return Vec::new();
            }
        }
        match self.meaning(end) {
            Meaning::Finished => {
                self.conclude(Verdict::Done);
                Vec::new()
            }
            Meaning::Left => self.parted(member, now),
            Meaning::Died => self.died((member, end), started, now),
        }
    }

    /// Whoever has done the last step says so before its process ends.
    fn meaning(&self, end: End) -> Meaning {
        match end {
            End::Code(0) if self.epoch.is_none() => Meaning::Finished,
            End::Code(0) => Meaning::Left,
            _ if end.was_asked() => Meaning::Left,
            _ => Meaning::Died,
        }
    }

    /// Whether the job has an end, so that nobody is replaced.
    const fn is_over(&self) -> bool {
        self.verdict.is_some()
    }

    fn conclude(&mut self, verdict: Verdict) {
        self.verdict = Some(verdict);
        self.due.clear();
    }

    /// When all are to end, the others have a grace once the first has ended.
    fn hurry(&mut self, now: Instant) {
        if let Some((deadline, Last::Terminate)) = &mut self.deadline {
            *deadline = (*deadline).min(now + GRACE);
        }
    }

    /// What a member of the last epoch says of its own failure counts, and rank 0 may have been killed while
    /// it wrote the result.
    fn ended_after_the_last_step(
        &mut self,
        (member, end): (u32, End),
        now: Instant,
    ) -> Vec<Action> {
        let is_spare = self.epoch.as_ref().is_some_and(|epoch| !epoch.contains(&member));
        let is_loss = matches!(end, End::Code(_)) || self.first == Some(member);
        if let Some(signal) = end.stopped_by().filter(|_| !is_spare) {
            // All have stopped at a signal to one of them: it was the last step for now.
            self.conclude(Verdict::Interrupted(signal));
        } else if end != End::Code(0) && !end.was_asked() && !is_spare && is_loss {
            self.conclude(Verdict::Failed { member, end });
            self.deadline = Some((now + GRACE, Last::Terminate));
        }
        Vec::new()
    }

    /// The coordinator tells spares, which may not listen.
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

    fn parted(&mut self, member: u32, now: Instant) -> Vec<Action> {
        let left = Action::Say(Notice::Left { member, live: self.live.len() });
        let mut actions = vec![Action::Bury { member }, left];
        actions.extend(self.give_up_if_too_few(now));
        actions
    }

    fn died(&mut self, death: (u32, End), started: Instant, now: Instant) -> Vec<Action> {
        let (member, end) = death;
        self.cause.get_or_insert(death);
        let is_replaced = self.restarts > 0 && self.missing() > 0;
        if is_replaced {
            self.restarts -= 1;
            let wait = self.backoff(now.duration_since(started));
            self.due.push(now + wait);
        }
        let mut actions = vec![Action::Bury { member }];
        if is_replaced || !self.live.is_empty() {
            let restarts = is_replaced.then_some(self.restarts);
            let live = self.live.len();
            actions.push(Action::Say(Notice::Died { member, end, live, restarts }));
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

    /// Members that the job should have and has not, nor will have.
    fn missing(&self) -> u32 {
        let have = (self.live.len() + self.due.len()) as u32 + self.others;
        self.target.saturating_sub(have)
    }

    fn start_due(&mut self, now: Instant) -> Vec<Action> {
        let due = self.due.iter().filter(|time| **time <= now).count();
        self.due.retain(|time| *time > now);
        (0..due).map(|_| self.start(now)).collect()
    }

    /// Members that somebody else has started show that more of them may come.
    fn give_up_if_too_few(&mut self, now: Instant) -> Vec<Action> {
        let have = (self.live.len() + self.due.len()) as u32;
        if have == 0 || have >= self.min || self.others > 0 {
            return Vec::new();
        }
        self.conclude(Verdict::TooFew { have, min: self.min, cause: self.cause });
        self.deadline = Some((now + PATIENCE, Last::Terminate));
        vec![Action::Dissolve, Action::Signal { members: self.numbers(), signal: SIGTERM }]
    }

    /// Who trains has survived all that happened before.
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
        let (members, parting) = (self.numbers(), self.parting);
        let passed_on = if parting == Parting::Interrupt { SIGINT } else { signal };
        let forward = Action::Signal { members, signal: passed_on };
        match self.verdict {
            Some(Verdict::Interrupted(_)) => return vec![Action::Kill],
            Some(Verdict::Failed { .. } | Verdict::TooFew { cause: Some(_), .. }) => {
                return vec![forward];
            }
            // Whoever told all members to go means the job.
            Some(Verdict::TooFew { cause: None, .. }) => {}
            None | Some(Verdict::Done) => {
                self.deadline = Some((now + PATIENCE + GRACE, Last::Terminate));
            }
        }
        self.conclude(Verdict::Interrupted(signal));
        match parting {
            Parting::Leave => vec![Action::Dissolve, forward],
            Parting::Interrupt => vec![forward],
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
mod tests {
    use super::*;

    const FINE: End = End::Code(0);
    const KILLED: End = End::Signal(SIGKILL);
    const NONE: [u32; 0] = [];

    fn job(ranks: RangeInclusive<u32>, restarts: u32) -> (Supervisor, Instant) {
        let now = Instant::now();
        let parting = Parting::Leave;
        let (supervisor, actions) = Supervisor::begin(&Limits { ranks, restarts, parting }, now);
        assert!(actions.iter().all(|action| matches!(action, Action::Start { .. })));
        (supervisor, now)
    }

    fn ended(member: u32, end: End) -> Event {
        Event::Ended { member, end }
    }

    fn epoch<const N: usize>(members: [u32; N]) -> Event {
        Event::Epoch {
            first: members.first().copied(),
            members: BTreeSet::from(members),
            others: 0,
        }
    }

    fn starts(actions: &[Action]) -> Vec<u32> {
        let start = |action: &Action| match action {
            Action::Start { member } => Some(*member),
            _ => None,
        };
        actions.iter().filter_map(start).collect()
    }

    fn said(actions: &[Action]) -> Vec<String> {
        let said = |action: &Action| match action {
            Action::Say(notice) => Some(notice.to_string()),
            _ => None,
        };
        actions.iter().filter_map(said).collect()
    }

    #[test]
    fn a_job_begins_with_as_many_members_as_it_may_have() {
        let limits = Limits { ranks: 2..=4, restarts: 0, parting: Parting::Leave };
        let (job, actions) = Supervisor::begin(&limits, Instant::now());
        assert_eq!(starts(&actions), [0, 1, 2, 3]);
        assert!(job.is_running() && job.deadline().is_none());
    }

    #[test]
    fn a_death_is_no_failure_while_others_live() {
        let (mut job, now) = job(1..=3, 0);
        job.on(epoch([0, 1, 2]), now);
        let actions = job.on(ended(0, KILLED), now);
        assert_eq!(actions[0], Action::Bury { member: 0 });
        assert_eq!(said(&actions), ["member 0 was killed by signal 9 (SIGKILL); 2 go on"]);
        assert_eq!(actions.len(), 2);
        job.on(epoch([1, 2]), now);
        job.on(Event::Complete, now);
        job.on(ended(1, FINE), now);
        job.on(ended(2, FINE), now);
        assert!(!job.is_running());
        assert_eq!(job.verdict(), Verdict::Done);
    }

    #[test]
    fn who_dies_is_replaced_as_often_as_allowed() {
        let (mut job, now) = job(2..=2, 2);
        let actions = job.on(ended(1, KILLED), now + QUICK);
        assert_eq!(starts(&actions), [2]);
        let line = "member 1 was killed by signal 9 (SIGKILL); 1 goes on, \
                    and one takes its place (restarts left: 1)";
        assert_eq!(said(&actions), [line]);
        assert_eq!(starts(&job.on(ended(2, End::Code(3)), now + 2 * QUICK)), [3]);
        assert_eq!(starts(&job.on(ended(3, KILLED), now + 3 * QUICK)), NONE);
        job.on(ended(0, FINE), now + 3 * QUICK);
        assert_eq!(job.started(), 4);
    }

    #[test]
    fn a_program_that_always_dies_is_not_started_in_a_loop() {
        let (mut job, now) = job(1..=1, 100);
        let (mut waits, mut time) = (Vec::new(), now);
        for member in 0..8 {
            let mut actions = job.on(ended(member, End::Code(2)), time);
            assert!(job.is_running());
            waits.push(job.deadline().map_or(0, |due| (due - time).as_secs()));
            if let Some(due) = job.deadline() {
                assert_eq!(starts(&actions), NONE);
                assert_eq!(job.on(Event::Tick, due - BACKOFF / 2), []);
                (actions, time) = (job.on(Event::Tick, due), due);
            }
            assert_eq!(starts(&actions), [member + 1]);
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 30, 30]);
        // Somebody lived for long: the next death may be chance again.
        assert_eq!(starts(&job.on(ended(8, KILLED), time + QUICK)), [9]);
    }

    #[test]
    fn the_first_death_since_the_last_epoch_is_the_cause() {
        let (mut job, now) = job(1..=3, 0);
        job.on(ended(0, KILLED), now);
        job.on(epoch([1, 2]), now);
        job.on(ended(2, End::Code(2)), now);
        assert_eq!(job.on(ended(1, KILLED), now), [Action::Bury { member: 1 }]);
        assert!(!job.is_running());
        assert_eq!(job.verdict(), Verdict::Failed { member: 2, end: End::Code(2) });
    }

    #[test]
    fn who_was_asked_to_go_is_neither_replaced_nor_a_failure() {
        for end in [End::Code(143), End::Signal(15), End::Code(130), FINE] {
            let (mut job, now) = job(1..=2, 5);
            job.on(epoch([0, 1]), now);
            let actions = job.on(ended(0, end), now);
            assert_eq!(starts(&actions), NONE, "{end}");
            assert_eq!(said(&actions), ["member 0 has left; 1 goes on"], "{end}");
            // The last step is not done.
            assert_eq!(said(&job.on(ended(1, end), now)), ["member 1 has left; nobody goes on"]);
            assert!(!job.is_running());
            assert_eq!(job.verdict(), Verdict::Interrupted(15));
        }
    }

    #[test]
    fn a_complete_job_waits_for_its_members_and_replaces_nobody() {
        let (mut job, now) = job(1..=3, 3);
        job.on(epoch([0, 1]), now);
        assert_eq!(job.on(Event::Complete, now), []);
        // The coordinator has told the spare, which does not listen.
        let tell = |signal| [Action::Signal { members: vec![2], signal }];
        assert_eq!(job.on(Event::Tick, now + GRACE), tell(SIGTERM));
        assert_eq!(job.on(ended(1, KILLED), now + GRACE), []);
        assert_eq!(job.on(Event::Tick, now + 2 * GRACE), tell(SIGKILL));
        job.on(ended(2, KILLED), now + 2 * GRACE);
        assert!(job.is_running() && job.deadline().is_none());
        job.on(ended(0, FINE), now + 100 * GRACE);
        assert_eq!(job.verdict(), Verdict::Done);
    }

    #[test]
    fn who_fails_after_the_last_step_fails_the_job() {
        for (member, end) in [(1, End::Code(2)), (0, KILLED)] {
            let (mut job, now) = job(1..=2, 3);
            job.on(epoch([0, 1]), now);
            job.on(Event::Complete, now);
            job.on(ended(member, end), now);
            job.on(ended(1 - member, FINE), now);
            assert_eq!(job.verdict(), Verdict::Failed { member, end });
        }
    }

    #[test]
    fn members_that_never_form_an_epoch_are_waited_for() {
        let (mut job, now) = job(1..=2, 3);
        assert_eq!(job.on(ended(1, FINE), now), []);
        assert!(job.is_running() && job.deadline().is_none());
        // The job is done without it.
        assert_eq!(job.on(ended(0, KILLED), now), []);
        assert_eq!(job.verdict(), Verdict::Done);
    }

    #[test]
    fn members_that_form_an_epoch_after_all_decide_how_the_job_ends() {
        let (mut job, now) = job(1..=2, 0);
        job.on(ended(1, FINE), now);
        job.on(epoch([0]), now);
        job.on(ended(0, KILLED), now);
        assert_eq!(job.verdict(), Verdict::Failed { member: 0, end: KILLED });
    }

    #[test]
    fn a_member_that_leaves_too_few_behind_ends_the_job() {
        let (mut job, now) = job(2..=2, 9);
        job.on(epoch([0, 1]), now);
        assert!(job.on(ended(0, FINE), now).contains(&Action::Dissolve));
        job.on(ended(1, FINE), now);
        assert_eq!(job.verdict(), Verdict::TooFew { have: 1, min: 2, cause: None });
    }

    #[test]
    fn fewer_than_the_least_do_not_wait_for_nobody() {
        let (mut job, now) = job(2..=3, 0);
        job.on(epoch([0, 1, 2]), now);
        job.on(ended(2, KILLED), now);
        job.on(epoch([0, 1]), now);
        let actions = job.on(ended(0, End::Code(2)), now);
        let told = Action::Signal { members: vec![1], signal: SIGTERM };
        assert_eq!(actions[2..], [Action::Dissolve, told.clone()]);
        assert_eq!(job.on(Event::Tick, now + PATIENCE), [told]);
        let kill = Action::Signal { members: vec![1], signal: SIGKILL };
        assert_eq!(job.on(Event::Tick, now + PATIENCE + LAST_WORDS), [kill]);
        job.on(ended(1, KILLED), now);
        let cause = Some((0, End::Code(2)));
        assert_eq!(job.verdict(), Verdict::TooFew { have: 1, min: 2, cause });
    }

    #[test]
    fn where_others_have_come_more_may_come() {
        let (mut job, now) = job(2..=3, 0);
        job.on(Event::Epoch { members: BTreeSet::from([0, 1]), first: None, others: 1 }, now);
        job.on(ended(2, KILLED), now);
        let actions = job.on(ended(0, KILLED), now);
        assert_eq!(said(&actions), ["member 0 was killed by signal 9 (SIGKILL); 1 goes on"]);
        assert_eq!(actions.len(), 2);
        assert!(job.deadline().is_none());
    }

    #[test]
    fn a_replacement_on_its_way_counts() {
        let (mut job, now) = job(2..=2, 2);
        job.on(ended(0, KILLED), now);
        let actions = job.on(ended(1, KILLED), now);
        assert!(!actions.contains(&Action::Dissolve), "{actions:?}");
        assert_eq!(job.deadline(), Some(now + BACKOFF));
    }

    #[test]
    fn a_larger_job_gets_what_is_missing() {
        let (mut job, now) = job(1..=4, 0);
        job.on(ended(3, KILLED), now);
        assert_eq!(job.on(Event::Resized { target: 2 }, now), []);
        job.on(epoch([0, 1, 2]), now);
        job.on(ended(2, FINE), now);
        let actions = job.on(Event::Resized { target: 4 }, now);
        assert_eq!(starts(&actions), [4, 5]);
        assert_eq!(said(&actions), ["the job is to have 4 ranks: 2 more are started"]);
        let members = BTreeSet::from([0, 1, 4]);
        job.on(Event::Epoch { members, first: Some(0), others: 1 }, now);
        assert_eq!(starts(&job.on(Event::Resized { target: 4 }, now)), NONE);
    }

    #[test]
    fn a_smaller_job_replaces_nobody() {
        let (mut job, now) = job(1..=3, 9);
        job.on(Event::Resized { target: 2 }, now);
        assert_eq!(starts(&job.on(ended(0, KILLED), now)), NONE);
        assert_eq!(starts(&job.on(ended(1, KILLED), now)), [3]);
    }

    #[test]
    fn a_signal_lets_all_leave_and_a_second_one_kills() {
        let (mut job, now) = job(1..=2, 5);
        let forward = Action::Signal { members: vec![0, 1], signal: 2 };
        assert_eq!(job.on(Event::Signal(2), now), [Action::Dissolve, forward]);
        assert_eq!(job.on(ended(0, KILLED), now), []);
        assert_eq!(job.deadline(), Some(now + GRACE));
        assert_eq!(job.on(Event::Signal(2), now), [Action::Kill]);
        job.on(ended(1, KILLED), now);
        assert_eq!(job.verdict(), Verdict::Interrupted(2));
    }

    #[test]
    fn members_that_write_a_checkpoint_are_interrupted() {
        let limits = Limits { ranks: 1..=2, restarts: 0, parting: Parting::Interrupt };
        let now = Instant::now();
        let (mut job, _) = Supervisor::begin(&limits, now);
        job.on(epoch([0, 1]), now);
        let interrupt = Action::Signal { members: vec![0, 1], signal: SIGINT };
        assert_eq!(job.on(Event::Signal(SIGTERM), now), [interrupt]);
        job.on(Event::Complete, now);
        job.on(ended(1, End::Code(130)), now);
        job.on(ended(0, End::Code(130)), now);
        assert_eq!(job.verdict(), Verdict::Interrupted(SIGTERM));
    }

    #[test]
    fn a_signal_at_which_all_members_stop_interrupts_the_job() {
        let (mut job, now) = job(1..=3, 5);
        job.on(epoch([0, 1]), now);
        job.on(Event::Complete, now);
        job.on(ended(2, End::Code(143)), now);
        assert_eq!(job.verdict(), Verdict::Done);
        job.on(ended(1, End::Code(130)), now);
        job.on(ended(0, End::Code(130)), now);
        assert_eq!(job.verdict(), Verdict::Interrupted(SIGINT));
    }

    #[test]
    fn after_a_signal_patience_ends() {
        let (mut job, now) = job(1..=1, 5);
        job.on(Event::Signal(15), now);
        let later = now + PATIENCE + GRACE;
        assert_eq!(job.on(Event::Tick, later - GRACE / 2), []);
        let end = |signal| [Action::Signal { members: vec![0], signal }];
        assert_eq!(job.on(Event::Tick, later), end(SIGTERM));
        assert_eq!(job.on(Event::Tick, later + LAST_WORDS), end(SIGKILL));
    }

    #[test]
    fn a_signal_to_launcher_and_members_interrupts_in_any_order() {
        let (mut job, now) = job(2..=2, 5);
        job.on(ended(0, End::Code(143)), now);
        let forward = Action::Signal { members: vec![1], signal: 15 };
        assert_eq!(job.on(Event::Signal(15), now), [Action::Dissolve, forward]);
        job.on(ended(1, End::Code(143)), now);
        assert_eq!(job.verdict(), Verdict::Interrupted(15));
    }

    #[test]
    fn a_reader_that_has_enough_ends_the_job() {
        let (mut job, now) = job(1..=2, 5);
        assert_eq!(job.on(Event::Unread, now), [Action::Kill]);
        job.on(ended(0, KILLED), now);
        job.on(ended(1, KILLED), now);
        assert_eq!(job.verdict(), Verdict::Interrupted(SIGPIPE));
    }
}
