//! Policies as text: `noise-scale:max=512,rate=linear`.

use std::fmt;
use std::str::FromStr;

use crate::batch::NoiseBatch;
use crate::deadline::Deadline;
use crate::goodput::Goodput;
use crate::price::Price;
use crate::settings::Settings;
use crate::wait::WaitBudget;
use crate::{Adjustment, Observation, Policy};

/// Policies as a help text or an error lists them.
const EXPECTED: &str = "expected noise-scale:max=ROWS, goodput, deadline:SECONDS, price:FILE,max=PRICE or \
                        wait:max=BUDGET";

/// A text that is not a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidPolicy(pub(crate) String);

/// A policy with its settings, as a text describes it.
///
/// | text | policy |
/// |---|---|
/// | `noise-scale:max=ROWS[,every=STEPS][,rate=RULE]` | [`NoiseBatch`] |
/// | `goodput[:efficiency=PART][,max=ROWS][,every=STEPS][,rate=RULE]` | [`Goodput`] |
/// | `deadline:SECONDS[,every=STEPS]` | [`Deadline`]; also `90m` and `8h` |
/// | `price:FILE,max=PRICE[,every=STEPS]` | [`Price`] |
/// | `wait:max=BUDGET[,share=PART][,every=STEPS]` | [`WaitBudget`] |
#[derive(Clone, Debug)]
pub struct Spec {
    text: String,
    policy: Named,
}

#[derive(Clone, Debug)]
enum Named {
    NoiseBatch(NoiseBatch),
    Goodput(Goodput),
    Deadline(Deadline),
    Price(Price),
    WaitBudget(WaitBudget),
}

impl Spec {
    fn policy_mut(&mut self) -> &mut dyn Policy {
        match &mut self.policy {
            Named::NoiseBatch(policy) => policy,
            Named::Goodput(policy) => policy,
            Named::Deadline(policy) => policy,
            Named::Price(policy) => policy,
            Named::WaitBudget(policy) => policy,
        }
    }

    fn policy(&self) -> &dyn Policy {
        match &self.policy {
            Named::NoiseBatch(policy) => policy,
            Named::Goodput(policy) => policy,
            Named::Deadline(policy) => policy,
            Named::Price(policy) => policy,
            Named::WaitBudget(policy) => policy,
        }
    }

    /// Returns whether the policy has an effect only in trainings whose codec is `auto`.
    pub fn is_for_auto(&self) -> bool {
        matches!(self.policy, Named::WaitBudget(_))
    }

    /// Returns the largest batch that the policy asks for, if it changes the batch.
    pub fn max_batch(&self) -> Option<usize> {
        match &self.policy {
            Named::NoiseBatch(policy) => Some(policy.max),
            Named::Goodput(policy) => policy.max_batch,
            Named::Deadline(_) | Named::Price(_) | Named::WaitBudget(_) => None,
        }
    }

    /// Checks, before a training, that the policy can use the file that it reads.
    ///
    /// # Errors
    /// If it cannot.
    pub fn check(&self) -> Result<(), InvalidPolicy> {
        match &self.policy {
            Named::Price(policy) => policy.read().map(drop).map_err(InvalidPolicy),
            _ => Ok(()),
        }
    }

    /// Returns whether the policy has an effect only in jobs whose ranks come and go.
    pub fn is_for_elastic(&self) -> bool {
        match &self.policy {
            Named::Goodput(policy) => policy.max_batch.is_none(),
            Named::Deadline(_) | Named::Price(_) => true,
            Named::NoiseBatch(_) | Named::WaitBudget(_) => false,
        }
    }
}

impl Policy for Spec {
    fn observe(&mut self, seen: &Observation) -> Option<Adjustment> {
        let asked = self.policy_mut().observe(seen)?;
        let name = self.text.split(':').next().unwrap_or_default();
        Some(Adjustment { reason: format!("{name}: {}", asked.reason), ..asked })
    }

    fn needs_noise(&self) -> bool {
        self.policy().needs_noise()
    }

    fn resizes(&self) -> bool {
        self.policy().resizes()
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Spec {
    fn eq(&self, other: &Spec) -> bool {
        self.text == other.text
    }
}

impl FromStr for Spec {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Spec, InvalidPolicy> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut settings = Settings::read(name, rest)?;
        let policy = match name {
            "noise-scale" => {
                let usual = NoiseBatch::new(settings.rows("max")?.unwrap_or(0));
                if usual.max == 0 {
                    return Err(
                        settings.missing("max", "the largest batch, as in noise-scale:max=512")
                    );
                }
                let every = settings.steps()?.unwrap_or(usual.every);
                Named::NoiseBatch(NoiseBatch { every, rate: settings.rate()?, ..usual })
            }
            "goodput" => {
                let mut policy = Goodput::default();
                policy.efficiency = settings.part("efficiency")?.unwrap_or(policy.efficiency);
                policy.max_batch = settings.rows("max")?;
                policy.every = settings.steps()?.unwrap_or(policy.every);
                policy.rate = settings.rate()?;
                Named::Goodput(policy)
            }
            "deadline" => {
                let mut policy = Deadline::new(settings.seconds()?);
                policy.every = settings.steps()?.unwrap_or(policy.every);
                Named::Deadline(policy)
            }
            "price" => {
                let file = settings.file()?;
                let max = settings.number("max")?;
                let max = max.ok_or_else(|| {
                    settings.missing("max", "the highest price, as in price:/run/price,max=0.5")
                })?;
                let mut policy = Price::new(file, max);
                policy.every = settings.steps()?.unwrap_or(policy.every);
                Named::Price(policy)
            }
            "wait" => {
                let max = settings.number("max")?;
                let max = max.ok_or_else(|| {
                    settings.missing("max", "the largest error budget, as in wait:max=0.3")
                })?;
                let mut policy = WaitBudget::new(max);
                policy.share = settings.part("share")?.unwrap_or(policy.share);
                policy.every = settings.steps()?.unwrap_or(policy.every);
                Named::WaitBudget(policy)
            }
            _ => return Err(InvalidPolicy(format!("unknown policy '{text}', {EXPECTED}"))),
        };
        settings.end()?;
        Ok(Spec { text: text.to_owned(), policy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;
    use crate::testing::observation;

    fn refusal(text: &str) -> String {
        text.parse::<Spec>().unwrap_err().to_string()
    }

    #[test]
    fn texts_name_policies_and_their_settings() {
        let mut spec: Spec = "noise-scale:max=64,every=4,rate=linear".parse().unwrap();
        let noise = Some(Noise { signal: 1.0, variance: 100.0 });
        let asked = spec.observe(&Observation { noise, step: 8, ..observation() }).unwrap();
        assert_eq!((asked.batch, asked.rate), (Some(32), Some(2.0)));
        assert!(asked.reason.starts_with("noise-scale: the gradient noise scale"));
        assert!(spec.needs_noise() && !spec.is_for_elastic());
        assert_eq!(spec.to_string(), "noise-scale:max=64,every=4,rate=linear");
        for (text, is_for_elastic) in [
            ("goodput", true),
            ("goodput:efficiency=0.5,max=64", false),
            ("deadline:90m", true),
            ("price:/run/price,max=0.5,every=1", true),
            ("wait:max=0.3,share=0.2", false),
        ] {
            let spec: Spec = text.parse().unwrap();
            assert_eq!(spec.is_for_elastic(), is_for_elastic, "{text}");
        }
        let deadline: Spec = "deadline:2h".parse().unwrap();
        assert!(matches!(deadline.policy, Named::Deadline(Deadline { seconds: 7200.0, .. })));
    }

    #[test]
    fn refusals_name_what_was_expected() {
        assert_eq!(refusal("noise"), format!("unknown policy 'noise', {EXPECTED}"));
        assert_eq!(
            refusal("noise-scale"),
            "policy noise-scale has no max, expected the largest batch, as in noise-scale:max=512"
        );
        assert_eq!(
            refusal("noise-scale:max=0"),
            "max of policy noise-scale is '0', expected a whole number from 1"
        );
        assert_eq!(
            refusal("noise-scale:max=8,rate=cubic"),
            "rate of policy noise-scale is 'cubic', expected sqrt, linear, adascale or constant"
        );
        assert_eq!(
            refusal("deadline:soon"),
            "policy deadline has 'soon', expected a time as in deadline:3600, deadline:90m or deadline:2h"
        );
        assert_eq!(
            refusal("goodput:efficiency=2"),
            "efficiency of policy goodput is '2', expected a number above 0 and at most 1"
        );
        assert_eq!(refusal("wait:max=0.3,every=1,every=2"), "policy wait has every twice");
        assert_eq!(refusal("deadline:60,max=2"), "policy deadline has no setting max");
        assert_eq!(refusal("goodput:fast"), "policy goodput has no setting fast");
        assert!(refusal("price:max=1").starts_with("policy price has no file"));
    }
}
