//! The number of ranks, and the batch, adapted to goodput.

use crate::batch::RateRule;
use crate::speed::Speed;
use crate::{Adjustment, Observation, Policy};

/// Policy that uses the largest number of ranks n whose goodput is at least `efficiency` times n times
/// the goodput of one rank.
///
/// Goodput is rows per second times the statistical efficiency of the batch, (φ + B₀)/(φ + B) with the
/// noise scale φ and the first batch B₀ (Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for
/// Goodput-Optimized Deep Learning", equations 1 to 5). If a largest batch is given, each number of
/// ranks is judged by its best batch, and the policy asks for that batch too. A change at most doubles
/// ranks and batch, since times of many more ranks are not known well.
#[derive(Clone, Debug)]
pub struct Goodput {
    /// Least goodput per rank, as a fraction of the goodput of a single rank, from 0 to 1.
    pub efficiency: f64,
    /// The largest batch, in rows; if `None`, the batch stays as it is.
    pub max_batch: Option<usize>,
    /// Steps from one decision to the next.
    pub every: u64,
    /// The rule by which the learning rate follows the batch.
    pub rate: RateRule,
    speed: Speed,
}

/// Goodput of a batch on a number of ranks.
#[derive(Clone, Copy, Debug)]
struct Offer {
    batch: usize,
    rows_per_s: f64,
}

impl Default for Goodput {
    /// Returns a policy that decides every 50 steps, for an efficiency of 0.7.
    fn default() -> Goodput {
        let rate = RateRule::default();
        Goodput { efficiency: 0.7, max_batch: None, every: 50, rate, speed: Speed::default() }
    }
}

impl Goodput {
    /// Returns the best batch for a number of ranks.
    fn best(&self, ranks: u32, seen: &Observation) -> Offer {
        let first = seen.first_batch;
        let batches: Vec<usize> = match (self.max_batch, seen.noise) {
            (Some(most), Some(_)) => {
                let doubled = std::iter::successors(Some(first), |batch| batch.checked_mul(2));
                let most = most.max(first).min(2 * seen.batch);
                doubled.take_while(|batch| *batch <= most).collect()
            }
            _ => vec![seen.batch],
        };
        let offer = |batch: usize| {
            let efficiency = seen.noise.map_or(1.0, |noise| {
                noise.gain(batch as f64, first as f64) * first as f64 / batch as f64
            });
            let rows_per_s = batch as f64 / self.speed.step_s(ranks, batch);
            Offer { batch, rows_per_s: rows_per_s * efficiency }
        };
        let offers = batches.into_iter().map(offer);
        offers.max_by(|a, b| a.rows_per_s.total_cmp(&b.rows_per_s)).expect("the first batch is one")
    }
}

impl Policy for Goodput {
    fn observe(&mut self, seen: &Observation) -> Option<Adjustment> {
        if !seen.step.is_multiple_of(self.every) {
            return None;
        }
        self.speed.observe(seen);
        let allowed = seen.ranks_allowed.clone().unwrap_or(seen.ranks..=seen.ranks);
        let alone = self.best(1, seen).rows_per_s;
        let most = (*allowed.end()).min(seen.ranks.saturating_mul(2));
        let earns = |ranks: &u32| {
            self.best(*ranks, seen).rows_per_s >= self.efficiency * alone * f64::from(*ranks)
        };
        let ranks = (*allowed.start()..=most).rev().find(earns).unwrap_or(*allowed.start());
        // Until other ranks are there, the batch is that for the present ones.
        let batch = self.best(seen.ranks, seen).batch;
        let asked = Adjustment {
            ranks: Some(ranks).filter(|ranks| *ranks != seen.ranks_asked),
            batch: Some(batch).filter(|batch| *batch != seen.batch),
            ..Adjustment::default()
        };
        let noise = seen.noise.filter(|_| asked.batch.is_some());
        let rate = noise.map(|noise| self.rate.factor(batch, seen.first_batch, noise));
        let Offer { rows_per_s, .. } = self.best(ranks, seen);
        let per_rank = 100.0 * rows_per_s / f64::from(ranks) / alone;
        let reason =
            format!("goodput of {rows_per_s:.1} rows/s, per rank {per_rank:.0} % of one alone");
        (asked != Adjustment::default()).then_some(Adjustment { rate, reason, ..asked })
    }

    fn needs_noise(&self) -> bool {
        self.max_batch.is_some()
    }

    fn resizes(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;
    use crate::testing::observation;

    fn asked(seen: &Observation) -> Option<Adjustment> {
        Goodput::default().observe(seen)
    }

    #[test]
    fn ranks_are_added_while_they_earn_their_keep() {
        // Nothing is waited for: as many as are allowed, doubling.
        assert_eq!(asked(&observation()).unwrap().ranks, Some(4));
        let many = Observation { ranks: 8, ranks_asked: 8, ..observation() };
        assert_eq!(asked(&many), None);
        let few = Observation { ranks_allowed: Some(1..=3), ..observation() };
        assert_eq!(asked(&few).unwrap().ranks, Some(3));
        // Most of a step is waiting: one rank alone is nearly as fast.
        let thin = Observation { wait_s: 0.9, ..observation() };
        assert_eq!(asked(&thin).unwrap().ranks, Some(1));
        let fixed = Observation { ranks_allowed: None, ..observation() };
        assert_eq!(asked(&fixed), None);
    }

    #[test]
    fn batches_are_chosen_with_the_ranks() {
        let mut policy = Goodput { max_batch: Some(256), ..Goodput::default() };
        let noise = Some(Noise { signal: 1.0, variance: 1e6 });
        let seen = Observation { noise, wait_s: 0.2, ..observation() };
        // All noise: larger batches cost nothing and hide the exchange.
        let asked = policy.observe(&seen).unwrap();
        assert_eq!((asked.batch, asked.ranks), (Some(32), Some(4)));
        assert_eq!(asked.rate, Some(2.0_f64.sqrt()));
        let noise = Some(Noise { signal: 1.0, variance: 1.0 });
        let seen = Observation { noise, wait_s: 0.0, ..observation() };
        let mut policy = Goodput { max_batch: Some(256), ..Goodput::default() };
        assert_eq!(policy.observe(&seen).unwrap().batch, None);
    }
}
