//! The time of a step on other numbers of ranks, predicted from measured steps.

use std::collections::BTreeMap;

use crate::Observation;

/// Times of steps by number of ranks: measured ones, or else predictions from the last one.
///
/// Computation is shared by the ranks and grows with the batch. In an all-reduce each rank sends (n −
/// 1)/n of twice the gradient, so the time that ranks wait for each other grows from half of that on
/// two ranks to all of it on many.
#[derive(Clone, Debug, Default)]
pub(crate) struct Speed {
    seen: BTreeMap<(u32, usize), f64>,
    last: Option<Observation>,
}

impl Speed {
    /// Records a step.
    pub fn observe(&mut self, seen: &Observation) {
        self.seen.insert((seen.ranks, seen.batch), seen.step_s);
        self.last = Some(seen.clone());
    }

    /// Returns the time of a step, in seconds; infinite before any step was measured.
    pub fn step_s(&self, ranks: u32, batch: usize) -> f64 {
        if let Some(step_s) = self.seen.get(&(ranks, batch)) {
            return *step_s;
        }
        let Some(last) = &self.last else { return f64::INFINITY };
        let compute_s = (last.step_s - last.wait_s).max(0.0);
        let compute_s =
            compute_s * f64::from(last.ranks) / f64::from(ranks) * batch as f64 / last.batch as f64;
        let sent = |ranks: u32| 1.0 - 1.0 / f64::from(ranks);
        let wait_s = match last.ranks {
            // One rank has not shown what an exchange takes.
            1 => 0.0,
            before => last.wait_s * sent(ranks) / sent(before),
        };
        compute_s + wait_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::observation;

    #[test]
    fn computation_is_shared_and_the_exchange_is_not() {
        let mut speed = Speed::default();
        assert_eq!(speed.step_s(1, 16), f64::INFINITY);
        speed.observe(&Observation { wait_s: 0.2, ..observation() });
        assert_eq!(speed.step_s(2, 16), 1.0);
        assert!((speed.step_s(4, 16) - (0.4 + 0.3)).abs() < 1e-12);
        assert!((speed.step_s(4, 32) - (0.8 + 0.3)).abs() < 1e-12);
        assert!((speed.step_s(1, 16) - 1.6).abs() < 1e-12);
        // What was seen counts more than what was predicted.
        speed.observe(&Observation { ranks: 4, step_s: 3.0, ..observation() });
        speed.observe(&Observation { ranks: 2, ..observation() });
        assert_eq!(speed.step_s(4, 16), 3.0);
    }
}
