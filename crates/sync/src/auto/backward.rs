//! The times at which the backward pass has each bucket ready, undisturbed by the exchange.
//!
//! If ranks have few cores, every byte that is exchanged delays the backward pass, because the operating
//! system moves it on the same cores. Under a plan that sends more, the backward pass takes longer and
//! hides more of the exchange, so this plan would wrongly seem better. Planning therefore uses the
//! earliest recent times, whichever plan was in force. These times rise slowly, so that planning follows
//! in the end if the backward pass really takes longer.
//!
//! Law: times that repeat are returned as they are; one longer step changes next to nothing.

use crate::StepRecord;
use crate::auto::timeline::Measured;

/// Share by which a time rises, at most, with every later step.
const RISE: f64 = 1e-3;

/// The earliest recent times, in seconds since a step began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backward {
    /// The end of the backward pass, then the readiness of each bucket; empty before the first step.
    times_s: Vec<f64>,
}

impl Backward {
    /// Returns the times of a backward pass that took as long as this one; no times if it was not
    /// measured.
    pub(crate) fn like(measured: &Measured) -> Backward {
        if measured.backward_s == 0.0 {
            return Backward::default();
        }
        let ready = measured.buckets.iter().map(|bucket| bucket.ready_s);
        Backward { times_s: std::iter::once(measured.backward_s).chain(ready).collect() }
    }

    /// Records a step.
    pub(crate) fn record(&mut self, record: &StepRecord) {
        let ready = record.buckets.iter().map(|bucket| bucket.ready_s);
        let seen = std::iter::once(record.backward_s).chain(ready);
        if self.times_s.len() != record.buckets.len() + 1 {
            self.times_s = seen.collect();
            return;
        }
        for (earliest, seen) in self.times_s.iter_mut().zip(seen) {
            *earliest = seen.min(*earliest * (1.0 + RISE));
        }
    }

    /// Returns the end of the backward pass, then the readiness of each bucket.
    pub(crate) fn times_s(&self) -> impl Iterator<Item = f64> {
        self.times_s.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BucketRecord;

    fn step(backward_s: f64, ready_s: f64) -> StepRecord {
        let buckets = vec![BucketRecord { ready_s, ..BucketRecord::default() }];
        StepRecord { backward_s, buckets, ..StepRecord::default() }
    }

    fn after(steps: impl Iterator<Item = StepRecord>) -> Vec<f64> {
        let mut backward = Backward::default();
        steps.for_each(|step| backward.record(&step));
        backward.times_s().collect()
    }

    #[test]
    fn a_plan_that_delays_backward_hides_no_more() {
        let steps = (0..20).map(|_| step(0.4, 0.3)).chain((0..50).map(|_| step(0.5, 0.35)));
        let times_s = after(steps);
        assert!(times_s[0] < 0.43 && times_s[1] < 0.32, "{times_s:?}");
    }

    #[test]
    fn a_longer_backward_is_believed_in_the_end() {
        let steps = (0..20).map(|_| step(0.4, 0.3)).chain((0..800).map(|_| step(0.8, 0.6)));
        assert_eq!(after(steps), [0.8, 0.6]);
        assert_eq!(after([step(0.8, 0.6), step(0.4, 0.3)].into_iter()), [0.4, 0.3]);
    }
}
