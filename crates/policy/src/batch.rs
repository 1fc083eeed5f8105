//! The global batch, adapted to the gradient noise scale.

use std::fmt;
use std::str::FromStr;

use crate::noise::Noise;
use crate::{Adjustment, Observation, Policy};

/// Rule by which the learning rate follows the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateRule {
    /// By the square root of the batch, for optimisers that divide by the gradient's magnitude (such as
    /// Adam).
    #[default]
    Sqrt,
    /// In proportion to the batch, for SGD.
    Linear,
    /// By the gain of AdaScale, for SGD.
    AdaScale,
    /// The learning rate does not follow the batch.
    Constant,
}

impl RateRule {
    /// Returns the factor of the learning rate for a batch; the factor of the first batch is 1.
    pub fn factor(self, batch: usize, first: usize, noise: Noise) -> f64 {
        let (batch, first) = (batch as f64, first as f64);
        match self {
            RateRule::Sqrt => (batch / first).sqrt(),
            RateRule::Linear => batch / first,
            RateRule::AdaScale => noise.gain(batch, first),
            RateRule::Constant => 1.0,
        }
    }
}

impl fmt::Display for RateRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RateRule::Sqrt => "sqrt",
            RateRule::Linear => "linear",
            RateRule::AdaScale => "adascale",
            RateRule::Constant => "constant",
        })
    }
}

impl FromStr for RateRule {
    type Err = String;

    fn from_str(text: &str) -> Result<RateRule, String> {
        let all = [RateRule::Sqrt, RateRule::Linear, RateRule::AdaScale, RateRule::Constant];
        let found = all.into_iter().find(|rule| rule.to_string() == text);
        found.ok_or_else(|| "expected sqrt, linear, adascale or constant".to_owned())
    }
}

/// Policy that keeps the global batch at the gradient noise scale: the first batch times the largest
/// power of two for which the batch does not exceed the noise scale. A change at most doubles the
/// batch, since the estimate has noise of its own. The batch shrinks only once the noise scale is
/// well below it.
#[derive(Clone, Debug, PartialEq)]
pub struct NoiseBatch {
    /// The largest batch, in rows.
    pub max: usize,
    /// Steps from one decision to the next.
    pub every: u64,
    /// The rule by which the learning rate follows the batch.
    pub rate: RateRule,
}

impl NoiseBatch {
    /// Returns a policy that decides every 20 steps, up to a batch of `max` rows.
    pub fn new(max: usize) -> NoiseBatch {
        NoiseBatch { max, every: 20, rate: RateRule::default() }
    }
}

impl Policy for NoiseBatch {
    fn observe(&mut self, seen: &Observation) -> Option<Adjustment> {
        let noise = seen.noise.filter(|_| seen.step.is_multiple_of(self.every))?;
        let (first, scale) = (seen.first_batch, noise.scale());
        let most = self.max.max(first);
        let doublings = (scale.min(most as f64) / first as f64).log2().floor().max(0.0) as u32;
        let batch = (first << doublings).min(seen.batch.saturating_mul(2));
        let is_far_below = scale < 0.6 * seen.batch as f64;
        if batch == seen.batch || batch < seen.batch && !is_far_below {
            return None;
        }
        Some(Adjustment {
            batch: Some(batch),
            rate: Some(self.rate.factor(batch, first, noise)),
            reason: match scale.is_finite() {
                true => format!("the gradient noise scale is {scale:.0} rows"),
                false => "gradients are all noise".to_owned(),
            },
            ..Adjustment::default()
        })
    }

    fn needs_noise(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::observation;

    fn asked(scale: f64, batch: usize) -> Option<Adjustment> {
        let noise = Some(Noise { signal: 1.0, variance: scale });
        NoiseBatch::new(100).observe(&Observation { noise, batch, ..observation() })
    }

    #[test]
    fn the_batch_follows_the_noise_scale() {
        assert_eq!(asked(31.0, 16), None);
        let grown = asked(70.0, 32).unwrap();
        assert_eq!((grown.batch, grown.rate), (Some(64), Some(2.0)));
        assert_eq!(grown.reason, "the gradient noise scale is 70 rows");
        assert_eq!(asked(1e9, 16).unwrap().batch, Some(32));
        assert_eq!(asked(1e9, 64), None);
        // Below the batch, but not by much.
        assert_eq!(asked(50.0, 64), None);
        assert_eq!(asked(20.0, 64).unwrap().batch, Some(16));
        assert_eq!(asked(1.0, 16), None);
        let between = Observation { step: 101, ..observation() };
        assert_eq!(NoiseBatch::new(64).observe(&between), None);
    }

    #[test]
    fn rates_follow_by_their_rules() {
        let noise = Noise { signal: 1.0, variance: 16.0 };
        let factor = |text: &str| text.parse::<RateRule>().unwrap().factor(64, 16, noise);
        assert_eq!((factor("sqrt"), factor("linear"), factor("constant")), (2.0, 4.0, 1.0));
        assert!((factor("adascale") - 1.6).abs() < 1e-12);
        assert!("cubic".parse::<RateRule>().unwrap_err().starts_with("expected sqrt, linear"));
    }

    proptest! {
        #[test]
        fn batches_are_within_limits_and_are_not_asked_for_twice(
            variance in 0.1_f64..1e6, first in 1_usize..64, max in 1_usize..4096, doublings in 0_u32..8,
        ) {
            let noise = Some(Noise { signal: 1.0, variance });
            let mut policy = NoiseBatch::new(max);
            let seen =
                Observation { noise, first_batch: first, batch: first << doublings, ..observation() };
            if let Some(Adjustment { batch: Some(batch), .. }) = policy.observe(&seen) {
                prop_assert!(batch >= first && batch <= max.max(first) && batch != seen.batch);
                prop_assert!(batch <= 2 * seen.batch);
                // In force, the same noise asks for nothing but another doubling.
                let next = policy.observe(&Observation { batch, ..seen });
                prop_assert!(next.is_none_or(|next| next.batch == Some(2 * batch)));
            }
        }
    }
}
