//! Settings of a policy in its text.

use std::path::PathBuf;
use std::str::FromStr;

use crate::batch::RateRule;
use crate::spec::InvalidPolicy;

/// The part of a policy's text after its name, from which settings are taken one by one.
#[derive(Debug)]
pub(crate) struct Settings<'a> {
    policy: &'a str,
    /// The setting without a name.
    first: Option<&'a str>,
    named: Vec<Setting<'a>>,
}

#[derive(Debug)]
struct Setting<'a> {
    name: &'a str,
    value: &'a str,
}

impl<'a> Settings<'a> {
    /// Reads settings that are separated by commas; the first one may have no name.
    ///
    /// # Errors
    /// If a name is given twice, or missing after the first setting.
    pub fn read(policy: &'a str, text: &'a str) -> Result<Settings<'a>, InvalidPolicy> {
        let mut settings = Settings { policy, first: None, named: Vec::new() };
        for (at, setting) in text.split(',').filter(|setting| !setting.is_empty()).enumerate() {
            match setting.split_once('=') {
                None if at == 0 => settings.first = Some(setting),
                None => return Err(settings.unknown(setting)),
                Some((name, _)) if settings.named.iter().any(|before| before.name == name) => {
                    return Err(InvalidPolicy(format!("policy {policy} has {name} twice")));
                }
                Some((name, value)) => settings.named.push(Setting { name, value }),
            }
        }
        Ok(settings)
    }

    fn unknown(&self, name: &str) -> InvalidPolicy {
        InvalidPolicy(format!("policy {} has no setting {name}", self.policy))
    }

    /// Returns the error for a setting that must be given.
    pub fn missing(&self, name: &str, expected: &str) -> InvalidPolicy {
        InvalidPolicy(format!("policy {} has no {name}, expected {expected}", self.policy))
    }

    fn take<T: FromStr>(
        &mut self,
        name: &str,
        fits: impl Fn(&T) -> bool,
        expected: &str,
    ) -> Result<Option<T>, InvalidPolicy> {
        let Some(at) = self.named.iter().position(|setting| setting.name == name) else {
            return Ok(None);
        };
        let Setting { value, .. } = self.named.remove(at);
        let read = value.parse().ok().filter(fits);
        read.map(Some).ok_or_else(|| {
            let policy = self.policy;
            InvalidPolicy(format!("{name} of policy {policy} is '{value}', expected {expected}"))
        })
    }

    /// Takes a number of rows.
    pub fn rows(&mut self, name: &str) -> Result<Option<usize>, InvalidPolicy> {
        self.take(name, |rows| (1..1 << 24).contains(rows), "a whole number from 1")
    }

    /// Takes the number of steps between two decisions.
    pub fn steps(&mut self) -> Result<Option<u64>, InvalidPolicy> {
        self.take("every", |steps| *steps > 0, "a whole number from 1")
    }

    /// Takes a number above 0.
    pub fn number(&mut self, name: &str) -> Result<Option<f64>, InvalidPolicy> {
        self.take(name, |it: &f64| it.is_finite() && *it > 0.0, "a number above 0")
    }

    /// Takes a fraction.
    pub fn part(&mut self, name: &str) -> Result<Option<f64>, InvalidPolicy> {
        self.take(name, |it| *it > 0.0 && *it <= 1.0, "a number above 0 and at most 1")
    }

    /// Takes the rule of the learning rate.
    pub fn rate(&mut self) -> Result<RateRule, InvalidPolicy> {
        let expected = "sqrt, linear, adascale or constant";
        Ok(self.take("rate", |_| true, expected)?.unwrap_or_default())
    }

    /// Takes the time, which has no name: seconds, or a number with `s`, `m` or `h`.
    pub fn seconds(&mut self) -> Result<f64, InvalidPolicy> {
        let text = self.first.take().unwrap_or_default();
        let units = [("h", 3600.0), ("m", 60.0), ("s", 1.0), ("", 1.0)];
        let read = units.iter().find_map(|(unit, seconds)| {
            let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
            Some(number * seconds).filter(|it| it.is_finite() && *it > 0.0)
        });
        read.ok_or_else(|| {
            let policy = self.policy;
            InvalidPolicy(format!(
                "policy {policy} has '{text}', expected a time as in {policy}:3600, {policy}:90m or {policy}:2h"
            ))
        })
    }

    /// Takes the file, which has no name.
    pub fn file(&mut self) -> Result<PathBuf, InvalidPolicy> {
        let file = self.first.take().map(PathBuf::from);
        file.ok_or_else(|| {
            let policy = self.policy;
            InvalidPolicy(format!(
                "policy {policy} has no file, expected one as in {policy}:/run/price"
            ))
        })
    }

    /// Refuses settings that were not taken.
    pub fn end(self) -> Result<(), InvalidPolicy> {
        let named = self.named.first().map(|setting| setting.name);
        self.first.or(named).map_or(Ok(()), |name| Err(self.unknown(name)))
    }
}
