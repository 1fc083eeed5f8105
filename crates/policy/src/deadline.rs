//! The number of ranks, adapted to a time at which the training must have ended.

use crate::speed::Speed;
use crate::{Adjustment, Observation, Policy};

/// Part of the remaining time that is kept as a reserve.
const RESERVE: f64 = 0.1;
/// Reserve before ranks are given back. It is larger because a change costs time, and times of steps vary.
const RESERVE_OF_FEWER: f64 = 0.3;

/// Policy that uses the smallest number of ranks that ends the training in time, by the measured times
/// of steps; if no number is enough, all ranks that are allowed.
#[derive(Clone, Debug)]
pub struct Deadline {
    /// Seconds of the whole training, from the start of its first rank.
    pub seconds: f64,
    /// Steps from one decision to the next.
    pub every: u64,
    speed: Speed,
}

impl Deadline {
    /// Returns a policy that decides every 20 steps.
    pub fn new(seconds: f64) -> Deadline {
        Deadline { seconds, every: 20, speed: Speed::default() }
    }
}

impl Policy for Deadline {
    fn observe(&mut self, seen: &Observation) -> Option<Adjustment> {
        let allowed = seen.ranks_allowed.clone()?;
        if !seen.step.is_multiple_of(self.every) {
            return None;
        }
        self.speed.observe(seen);
        let steps = (seen.rows_left as f64 / seen.batch as f64).ceil();
        let left_s = self.seconds - seen.elapsed_s;
        let needed_s = |ranks: u32| steps * self.speed.step_s(ranks, seen.batch);
        let in_time = |ranks: &u32| {
            let reserve = if *ranks < seen.ranks_asked { RESERVE_OF_FEWER } else { RESERVE };
            needed_s(*ranks) <= (1.0 - reserve) * left_s
        };
        let enough = allowed.clone().find(in_time);
        let ranks = enough.unwrap_or(*allowed.end());
        let (needed_s, left_s) = (needed_s(seen.ranks), left_s.max(0.0));
        let end = format!("the remaining steps take {needed_s:.0} s, and {left_s:.0} s remain");
        let late = if enough.is_none() { ", and no number of ranks is enough" } else { "" };
        Adjustment::of_ranks(ranks, format!("{end}{late}"), seen)
    }

    fn resizes(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::observation;

    #[test]
    fn as_few_ranks_as_end_in_time() {
        // 100 steps of one second on two ranks are left.
        let asked = |seconds: f64| Deadline::new(seconds).observe(&observation());
        assert_eq!(asked(100.0 + 120.0), None);
        assert_eq!(asked(100.0 + 230.0), None);
        assert_eq!(asked(100.0 + 300.0).unwrap().ranks, Some(1));
        let more = asked(100.0 + 60.0).unwrap();
        assert_eq!(more.ranks, Some(4));
        assert_eq!(more.reason, "the remaining steps take 100 s, and 60 s remain");
        let late = asked(90.0).unwrap();
        assert_eq!(late.ranks, Some(8));
        let end = "take 100 s, and 0 s remain, and no number of ranks is enough";
        assert!(late.reason.ends_with(end), "{}", late.reason);
        let fixed = Observation { ranks_allowed: None, ..observation() };
        assert_eq!(Deadline::new(1.0).observe(&fixed), None);
    }
}
