//! Decisions of the launcher, without processes and clocks.
//!
//! When one rank fails the others notice by themselves and end with an error that names it; who
//! has not after a grace is told to, then killed. A signal to the launcher goes to all ranks; once
//! one has ended, or patience has, the rest have the same grace. A second signal kills them. A rank
//! that somebody has stopped (SIGSTOP) cannot notice anything: where others fail it is the cause, and
//! once it alone is left it is not waited for.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

/// Time that ranks have after another one has failed, before they are told to end.
pub const GRACE: Duration = Duration::from_secs(4);
/// Time that ranks have then, before they are killed.
pub const LAST_WORDS: Duration = Duration::from_secs(1);
/// After a signal, how long ranks have to end a step in good order until the grace begins; it
/// begins earlier if a rank has ended.
pub const PATIENCE: Duration = Duration::from_secs(10);

const SIGHUP: i32 = 1;
/// Signal by which a person at a terminal interrupts a program.
pub const SIGINT: i32 = 2;
/// Signal that ends a program at once.
pub const SIGKILL: i32 = 9;
/// Signal that ends a program whose reader has gone; only rank 0's output is read.
pub const SIGPIPE: i32 = 13;
/// Signal that asks a program to end.
pub const SIGTERM: i32 = 15;

/// End of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With an exit code.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// Not at all: a signal has stopped it, and only another one lets it go on.
    Stopped,
}

impl End {
    /// The signal at which a rank has stopped in good order, as its exit code says.
    pub fn stopped_by(self) -> Option<i32> {
        [SIGHUP, SIGINT, SIGTERM].into_iter().find(|signal| self == End::Code(128 + signal))
    }

    /// Whether somebody has asked it to end, and it did.
    pub fn was_asked(self) -> bool {
        let ends = [SIGHUP, SIGINT, SIGTERM].map(End::Signal);
        self.stopped_by().is_some() || ends.contains(&self)
    }

    /// Returns a likely cause.
    pub fn hint(self) -> Option<&'static str> {
        match self {
            End::Signal(SIGKILL) => {
                Some("if nobody killed it, the machine may have run out of memory: see dmesg")
            }
            End::Stopped => {
                Some("a signal such as SIGSTOP has stopped it, so that it could not answer")
            }
            _ => None,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Stopped => write!(f, "is stopped"),
            End::Code(code) => write!(f, "exited with code {code}"),
            End::Signal(signal) => {
                write!(f, "was killed by signal {signal}")?;
                match signal_hook::low_level::signal_name(*signal) {
                    Some(name) => write!(f, " ({name})"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Event that reaches the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A rank has ended.
    Ended {
        /// Rank that ended.
        rank: u32,
        /// End of the rank.
        end: End,
    },
    /// A rank was found stopped after another one has failed.
    Stopped {
        /// Rank that spoke.
        rank: u32,
    },
    /// The launcher got a signal.
    Signal(i32),
    /// The deadline has passed.
    Tick,
}

/// Action of the launcher on all ranks that live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends this signal.
    Signal(i32),
    /// Kills.
    Kill,
}

/// End of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every rank exited with 0.
    Done,
    /// A signal to the launcher ended it, or one to a rank, at which all have stopped.
    Interrupted(i32),
    /// This rank was the first to fail.
    Failed {
        /// Rank that failed first.
        rank: u32,
        /// End of that rank.
        end: End,
    },
}

/// The state of a job.
#[derive(Debug)]
pub struct Supervisor {
    live: BTreeSet<u32>,
    stopped: BTreeSet<u32>,
    verdict: Verdict,
    next: Option<(Instant, Action)>,
}

impl Supervisor {
    /// A job whose `ranks` ranks all run.
    pub fn new(ranks: u32) -> Supervisor {
        Supervisor {
            live: (0..ranks).collect(),
            stopped: BTreeSet::new(),
            verdict: Verdict::Done,
            next: None,
        }
    }

    /// Whether any rank still runs.
    pub fn is_running(&self) -> bool {
        !self.live.is_empty()
    }

    /// When [`Event::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.next.map(|(deadline, _)| deadline)
    }

    /// Returns the job's end, once no rank runs.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Takes note of an event at time `now`.
    pub fn on(&mut self, event: Event, now: Instant) -> Option<Action> {
        match event {
            Event::Ended { rank, end } => {
                self.ended(rank, end, now);
                None
            }
            Event::Stopped { rank } => {
                self.found_stopped(rank, now);
                None
            }
            Event::Signal(signal) => Some(self.signalled(signal, now)),
            Event::Tick => self.tick(now),
        }
    }

    fn ended(&mut self, rank: u32, end: End, now: Instant) {
        self.live.remove(&rank);
        if (rank, end) == (0, End::Signal(SIGPIPE)) && self.verdict == Verdict::Done {
            self.verdict = Verdict::Interrupted(SIGPIPE);
            self.next = Some((now, Action::Kill));
        } else if let Some(signal) = end.stopped_by().filter(|_| self.verdict == Verdict::Done) {
            self.verdict = Verdict::Interrupted(signal);
            self.next = Some((now + GRACE, Action::Signal(SIGTERM)));
        } else if end != End::Code(0) && self.verdict == Verdict::Done {
            self.verdict = Verdict::Failed { rank, end };
            self.next = Some((now + GRACE, Action::Signal(SIGTERM)));
        } else if self.stopped.contains(&rank) {
            // It is known to be the cause, however it was ended.
        } else if matches!(end, End::Signal(_)) && self.is_waiting_for_survivors() {
            // News of the ends may overtake each other: who was killed did not notice a loss.
            self.verdict = Verdict::Failed { rank, end };
        } else if matches!(self.verdict, Verdict::Interrupted(_))
            && let Some((deadline, Action::Signal(_))) = &mut self.next
        {
            *deadline = (*deadline).min(now + GRACE);
        }
        self.give_up_the_stopped(now);
    }

    fn found_stopped(&mut self, rank: u32, now: Instant) {
        if !self.live.contains(&rank) || !matches!(self.verdict, Verdict::Failed { .. }) {
            return;
        }
        self.stopped.insert(rank);
        if self.is_waiting_for_survivors() {
            self.verdict = Verdict::Failed { rank, end: End::Stopped };
        }
        self.give_up_the_stopped(now);
    }

    /// Nobody waits for ranks that cannot end by themselves.
    fn give_up_the_stopped(&mut self, now: Instant) {
        if self.live.is_subset(&self.stopped) && matches!(self.verdict, Verdict::Failed { .. }) {
            self.next = Some((now, Action::Kill));
        }
    }

    /// A rank has failed by itself, and no other was told to end yet.
    fn is_waiting_for_survivors(&self) -> bool {
        matches!(self.verdict, Verdict::Failed { end: End::Code(_), .. })
            && matches!(self.next, Some((_, Action::Signal(_))))
    }

    fn signalled(&mut self, signal: i32, now: Instant) -> Action {
        if let Verdict::Interrupted(_) = self.verdict {
            return Action::Kill;
        }
        if self.verdict == Verdict::Done {
            self.verdict = Verdict::Interrupted(signal);
            self.next = Some((now + PATIENCE + GRACE, Action::Signal(SIGTERM)));
        }
        Action::Signal(signal)
    }

    fn tick(&mut self, now: Instant) -> Option<Action> {
        let (deadline, action) = self.next?;
        if now < deadline {
            return None;
        }
        self.next = Some((now + LAST_WORDS, Action::Kill));
        Some(action)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: End = End::Code(0);

    fn ended(rank: u32, end: End) -> Event {
        Event::Ended { rank, end }
    }

    #[test]
    fn a_job_is_done_when_every_rank_is() {
        let (mut job, now) = (Supervisor::new(2), Instant::now());
        assert_eq!(job.on(ended(1, FINE), now), None);
        assert!(job.is_running() && job.deadline().is_none());
        job.on(ended(0, FINE), now);
        assert!(!job.is_running());
        assert_eq!(job.verdict(), Verdict::Done);
    }

    #[test]
    fn survivors_have_a_grace_and_the_first_failure_counts() {
        let (mut job, now) = (Supervisor::new(3), Instant::now());
        job.on(ended(1, End::Signal(9)), now);
        assert_eq!(job.on(Event::Tick, now + GRACE / 2), None);
        job.on(ended(0, End::Code(2)), now);
        let later = now + GRACE;
        assert_eq!(job.on(Event::Tick, later), Some(Action::Signal(SIGTERM)));
        assert_eq!(job.on(Event::Tick, later), None);
        assert_eq!(job.on(Event::Tick, later + LAST_WORDS), Some(Action::Kill));
        job.on(ended(2, End::Signal(9)), later);
        assert_eq!(job.verdict(), Verdict::Failed { rank: 1, end: End::Signal(9) });
    }

    #[test]
    fn who_was_killed_failed_first() {
        let (mut job, now) = (Supervisor::new(3), Instant::now());
        job.on(ended(0, End::Code(2)), now);
        job.on(ended(1, End::Signal(9)), now);
        assert_eq!(job.verdict(), Verdict::Failed { rank: 1, end: End::Signal(9) });
        job.on(Event::Tick, now + GRACE);
        job.on(ended(2, End::Signal(15)), now);
        assert_eq!(job.verdict(), Verdict::Failed { rank: 1, end: End::Signal(9) });
    }

    #[test]
    fn who_is_stopped_is_the_cause_and_not_waited_for() {
        let (mut job, now) = (Supervisor::new(3), Instant::now());
        job.on(ended(0, End::Code(2)), now);
        job.on(Event::Stopped { rank: 2 }, now);
        assert_eq!(job.on(Event::Tick, now), None);
        job.on(ended(1, End::Code(2)), now);
        assert_eq!(job.on(Event::Tick, now), Some(Action::Kill));
        job.on(ended(2, End::Signal(9)), now);
        assert!(!job.is_running());
        assert_eq!(job.verdict(), Verdict::Failed { rank: 2, end: End::Stopped });
    }

    #[test]
    fn a_signal_goes_to_the_ranks_and_a_second_one_kills() {
        let (mut job, now) = (Supervisor::new(2), Instant::now());
        assert_eq!(job.on(Event::Signal(2), now), Some(Action::Signal(2)));
        job.on(ended(0, End::Code(130)), now);
        assert_eq!(job.on(Event::Signal(2), now), Some(Action::Kill));
        job.on(ended(1, End::Signal(9)), now);
        assert_eq!(job.verdict(), Verdict::Interrupted(2));
    }

    #[test]
    fn a_reader_that_has_enough_ends_the_job() {
        let (mut job, now) = (Supervisor::new(2), Instant::now());
        job.on(ended(0, End::Signal(SIGPIPE)), now);
        assert_eq!(job.on(Event::Tick, now), Some(Action::Kill));
        job.on(ended(1, End::Signal(9)), now);
        assert_eq!(job.verdict(), Verdict::Interrupted(SIGPIPE));
    }

    #[test]
    fn a_signal_to_one_rank_stops_the_job_as_one_to_the_launcher_does() {
        let (mut job, now) = (Supervisor::new(2), Instant::now());
        job.on(ended(1, End::Code(130)), now);
        job.on(ended(0, End::Code(130)), now);
        assert!(!job.is_running());
        assert_eq!(job.verdict(), Verdict::Interrupted(2));
    }

    #[test]
    fn after_a_signal_patience_ends() {
        let (mut job, now) = (Supervisor::new(1), Instant::now());
        job.on(Event::Signal(15), now);
        let later = now + PATIENCE + GRACE;
        assert_eq!(job.on(Event::Tick, later - GRACE / 2), None);
        assert_eq!(job.on(Event::Tick, later), Some(Action::Signal(SIGTERM)));
        assert_eq!(job.on(Event::Tick, later + LAST_WORDS), Some(Action::Kill));
    }

    #[test]
    fn after_a_signal_and_an_end_the_rest_have_a_grace() {
        let (mut job, now) = (Supervisor::new(3), Instant::now());
        job.on(Event::Signal(2), now);
        job.on(ended(1, End::Code(130)), now);
        job.on(ended(2, End::Code(130)), now + GRACE / 2);
        assert_eq!(job.on(Event::Tick, now + GRACE), Some(Action::Signal(SIGTERM)));
        assert_eq!(job.on(Event::Tick, now + GRACE + LAST_WORDS), Some(Action::Kill));
    }
}
