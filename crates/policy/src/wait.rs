//! The error budget, adapted to the time that ranks wait for others.

use crate::{Adjustment, Observation, Policy};

/// Factor between two error budgets.
const FACTOR: f64 = 1.5;

/// Policy that raises the error budget, so that `auto` may choose smaller encodings, while ranks wait for
/// others for more than `share` of each step. Once they wait for less than half of `share`, it lowers the
/// budget again, down to its first value.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitBudget {
    /// Fraction of a step that ranks may wait, from 0 to 1.
    pub share: f64,
    /// Largest error budget.
    pub max: f64,
    /// Steps from one decision to the next; `auto` makes a new plan in between.
    pub every: u64,
}

impl WaitBudget {
    /// Returns a policy that decides every 100 steps and allows a tenth of a step for waiting.
    pub fn new(max: f64) -> WaitBudget {
        WaitBudget { share: 0.1, max, every: 100 }
    }
}

impl Policy for WaitBudget {
    fn observe(&mut self, seen: &Observation) -> Option<Adjustment> {
        let budget = seen.error_budget?;
        let first = seen.first_error_budget;
        if !seen.step.is_multiple_of(self.every) {
            return None;
        }
        let share = seen.wait_s / seen.step_s;
        let next = match share {
            share if share > self.share => (budget * FACTOR).min(self.max.max(first)),
            share if share < self.share / 2.0 => (budget / FACTOR).max(first),
            _ => budget,
        };
        // Budgets travel as f32.
        (next as f32 != budget as f32).then(|| Adjustment {
            error_budget: Some(next),
            reason: format!("{:.0} % of a step is waiting", 100.0 * share),
            ..Adjustment::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::observation;

    #[test]
    fn the_budget_grows_while_ranks_wait_and_shrinks_again() {
        let mut policy = WaitBudget::new(0.2);
        let mut next = |wait_s: f64, budget: f64| {
            let error_budget = Some(budget);
            let first_error_budget = 0.1;
            let seen = Observation { wait_s, error_budget, first_error_budget, ..observation() };
            policy.observe(&seen).map(|asked| asked.error_budget.unwrap())
        };
        assert!((next(0.5, 0.1).unwrap() - 0.15).abs() < 1e-12);
        assert_eq!(next(0.5, 0.15), Some(0.2));
        assert_eq!(next(0.5, f64::from(0.2_f32)), None);
        assert_eq!(next(0.07, 0.2), None);
        assert!(next(0.01, 0.2).is_some_and(|budget| budget < 0.14));
        assert_eq!(next(0.01, 0.12), Some(0.1));
        assert_eq!(next(0.01, f64::from(0.1_f32)), None);
        let named = Observation { wait_s: 0.9, ..observation() };
        assert_eq!(WaitBudget::new(0.2).observe(&named), None);
    }
}
