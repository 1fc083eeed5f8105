//! Rules for ranks that cannot do without each other.
//!
//! When one fails the others notice by themselves and end with an error that names it; who has not after a
//! grace is told to, then killed. After a signal to the launcher, or one to a rank at which it has stopped in
//! good order, the rest have the same grace. A rank that somebody has stopped (SIGSTOP) cannot notice anything:
//! where others fail it is the cause, and once it alone is left it is not waited for.

use std::time::Instant;

use super::{End, GRACE, Last, Loss, SIGPIPE, Supervisor, Verdict};

impl Supervisor {
    /// Handles the end of a rank.
    pub(super) fn ended_among_dependents(&mut self, member: u32, end: End, now: Instant) {
        match self.verdict {
            None if end == End::Code(0) => {
                if self.live.is_empty() {
                    self.conclude(Verdict::Done);
                }
            }
            // Only rank 0 writes to the job's own output, whose reader has had enough.
            None if (member, end) == (0, End::Signal(SIGPIPE)) => {
                self.conclude_by(Verdict::Interrupted(SIGPIPE), now, Last::Kill);
            }
            None => {
                let failed = Verdict::Failed { member, end };
                let verdict = end.stopped_by().map_or(failed, Verdict::Interrupted);
                self.conclude_by(verdict, now + GRACE, Last::Terminate);
            }
            // It is known to be the cause, however it was ended.
            Some(_) if self.stopped.contains(&member) => {}
            // News of the ends may overtake each other: who was killed did not notice a loss.
            Some(_) if matches!(end, End::Signal(_)) && self.is_waiting_for_survivors() => {
                self.conclude(Verdict::Failed { member, end });
            }
            Some(Verdict::Interrupted(_)) => {
                if let Some((deadline, Last::Terminate)) = &mut self.deadline {
                    *deadline = (*deadline).min(now + GRACE);
                }
            }
            Some(_) => {}
        }
        self.give_up_the_stopped(now);
    }

    /// Handles that a rank was found stopped.
    pub(super) fn found_stopped(&mut self, member: u32, now: Instant) {
        let lives = self.live.iter().any(|(live, _)| *live == member);
        let has_failed = matches!(self.verdict, Some(Verdict::Failed { .. }));
        // Members of elastic jobs that do not answer are lost by silence.
        if self.loss == Loss::Survivable || !lives || !has_failed {
            return;
        }
        self.stopped.insert(member);
        if self.is_waiting_for_survivors() {
            self.conclude(Verdict::Failed { member, end: End::Stopped });
        }
        self.give_up_the_stopped(now);
    }

    /// Nobody waits for ranks that cannot end by themselves.
    fn give_up_the_stopped(&mut self, now: Instant) {
        let has_failed = matches!(self.verdict, Some(Verdict::Failed { .. }));
        if has_failed && self.live.iter().all(|(member, _)| self.stopped.contains(member)) {
            self.deadline = Some((now, Last::Kill));
        }
    }

    /// Whether a rank has failed by itself, and no other was told to end yet.
    fn is_waiting_for_survivors(&self) -> bool {
        matches!(self.verdict, Some(Verdict::Failed { end: End::Code(_), .. }))
            && matches!(self.deadline, Some((_, Last::Terminate)))
    }

    fn conclude_by(&mut self, verdict: Verdict, deadline: Instant, last: Last) {
        self.conclude(verdict);
        self.deadline = Some((deadline, last));
    }
}
