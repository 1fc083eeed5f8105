//! Rules for ranks that cannot do without each other.
//!
//! When a rank fails, the others notice it by themselves and end with an error that names it. After a
//! grace period, the launcher tells the ranks that remain to end, and then kills them. It grants the
//! same period after a signal to the launcher, and after a rank has ended in good order because of a
//! signal. A rank that was stopped by SIGSTOP cannot notice anything. If others fail while a rank is
//! stopped, the stopped rank counts as the cause. If only stopped ranks are left, the launcher does not
//! wait for them.

use std::time::Instant;

use signal_hook::consts::{SIGPIPE, SIGTERM};

use super::{End, GRACE, Loss, Supervisor, Verdict};

impl Supervisor {
    /// Handles the end of a rank.
    pub(super) fn ended_among_dependents(&mut self, member: u32, end: End, now: Instant) {
        let failed = Verdict::Failed { member, end };
        match self.verdict {
            None if end == End::Code(0) => {
                if self.live.is_empty() {
                    self.conclude(Verdict::Done);
                }
            }
            // Only rank 0 writes to the job's own output, whose reader has had enough.
            None if (member, end) == (0, End::Signal(SIGPIPE)) => {
                self.conclude(Verdict::Interrupted(SIGPIPE));
                self.kill();
            }
            None => {
                self.conclude(end.stopped_by().map_or(failed, Verdict::Interrupted));
                self.wait(GRACE, now);
            }
            // It is known to be the cause, however it was ended.
            Some(_) if self.stopped.contains(&member) => {}
            // News of the ends may overtake each other: who was killed did not notice a loss.
            Some(_) if matches!(end, End::Signal(_)) && self.is_waiting_for_survivors() => {
                self.conclude(failed);
            }
            Some(Verdict::Interrupted(_)) => {
                if let Some(deadline) = self.deadline.as_mut().filter(|it| it.signal == SIGTERM) {
                    deadline.at = deadline.at.min(now + GRACE);
                }
            }
            Some(_) => {}
        }
        self.give_up_the_stopped();
    }

    /// Handles that a rank was found stopped.
    pub(super) fn found_stopped(&mut self, member: u32) {
        // Members of elastic jobs that do not answer are lost by silence.
        let is_fixed = self.limits.loss == Loss::Fatal;
        if is_fixed && self.has_failed() && self.live.contains_key(&member) {
            self.stopped.insert(member);
            if self.is_waiting_for_survivors() {
                self.conclude(Verdict::Failed { member, end: End::Stopped });
            }
            self.give_up_the_stopped();
        }
    }

    /// Kills stopped ranks, which cannot end by themselves, once no others are left.
    fn give_up_the_stopped(&mut self) {
        if self.has_failed() && self.live.keys().all(|member| self.stopped.contains(member)) {
            self.kill();
        }
    }

    fn has_failed(&self) -> bool {
        matches!(self.verdict, Some(Verdict::Failed { .. }))
    }

    /// Returns whether a rank has failed by itself, and no other was told to end yet.
    fn is_waiting_for_survivors(&self) -> bool {
        matches!(self.verdict, Some(Verdict::Failed { end: End::Code(_), .. }))
            && self.deadline.is_some_and(|deadline| deadline.signal == SIGTERM)
    }
}
