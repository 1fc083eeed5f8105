//! Optimisers as text: `adamw:lr=0.001,weight-decay=0.1`.
//!
//! The learning rate must be given, since no value suits every rule; other settings have defaults.

use std::fmt;

use crate::error::{Error, Kind};
use crate::{AdamOptions, AdamWOptions, Rule};

/// Rule with its learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    /// The rule.
    pub rule: Rule,
    /// Learning rate.
    pub learning_rate: f32,
}

/// Setting of an optimiser.
struct Setting<'a> {
    name: &'static str,
    value: &'a mut f32,
    range: Range,
}

#[derive(Clone, Copy)]
enum Range {
    BelowOne,
    Positive,
    NotNegative,
}

impl Optimizer {
    /// Reads a text: the rule's name, a colon, and settings of the form `name=value` between commas.
    ///
    /// # Errors
    /// If there is no such rule or setting, a value is out of range, or the learning rate `lr` is missing.
    pub fn parse(text: &str) -> Result<Optimizer, Error> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let mut optimizer = Optimizer { rule: named(name)?, learning_rate: f32::NAN };
        let mut given = Vec::new();
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
            if given.contains(&key) {
                return Err(Error::new(Kind::Setting, format!("{name} has {key} twice")));
            }
            optimizer.set(name, key, value)?;
            given.push(key);
        }
        if optimizer.learning_rate.is_nan() {
            let context =
                format!("{name} has no learning rate, expected one such as {name}:lr=0.01");
            return Err(Error::new(Kind::Value, context));
        }
        Ok(optimizer)
    }

    fn set(&mut self, rule: &str, key: &str, text: &str) -> Result<(), Error> {
        let mut settings = self.settings();
        let Some(at) = settings.iter().position(|setting| setting.name == key) else {
            let names: Vec<_> = settings.iter().map(|setting| setting.name).collect();
            let context = format!("{rule} has no setting {key}, expected {}", names.join(", "));
            return Err(Error::new(Kind::Setting, context));
        };
        let setting = &mut settings[at];
        let value = text.parse().ok().filter(|value| setting.range.contains(*value));
        *setting.value = value.ok_or_else(|| {
            let context = format!("{key} of {rule} is '{text}', expected {}", setting.range);
            Error::new(Kind::Value, context)
        })?;
        Ok(())
    }

    fn settings(&mut self) -> Vec<Setting<'_>> {
        use Range::{BelowOne, NotNegative, Positive};
        // FTRL divides by it.
        let rates = if matches!(self.rule, Rule::Ftrl(_)) { Positive } else { NotNegative };
        let mut settings = vec![setting("lr", &mut self.learning_rate, rates)];
        match &mut self.rule {
            Rule::Sgd => {}
            Rule::Momentum(options) | Rule::Nesterov(options) => {
                settings.push(setting("factor", &mut options.factor, BelowOne));
            }
            Rule::Adam(AdamOptions { beta1, beta2, epsilon })
            | Rule::LazyAdam(AdamOptions { beta1, beta2, epsilon }) => {
                settings.extend(moments(beta1, beta2, epsilon));
            }
            Rule::AdamW(AdamWOptions { beta1, beta2, epsilon, weight_decay }) => {
                settings.extend(moments(beta1, beta2, epsilon));
                settings.push(setting("weight-decay", weight_decay, NotNegative));
            }
            Rule::Ftrl(options) => {
                settings.push(setting("beta", &mut options.beta, NotNegative));
                settings.push(setting("l1", &mut options.l1, NotNegative));
                settings.push(setting("l2", &mut options.l2, NotNegative));
            }
            Rule::Adagrad(options) => {
                settings.push(setting("epsilon", &mut options.epsilon, Positive));
            }
        }
        settings
    }
}

fn setting<'a>(name: &'static str, value: &'a mut f32, range: Range) -> Setting<'a> {
    Setting { name, value, range }
}

fn moments<'a>(beta1: &'a mut f32, beta2: &'a mut f32, epsilon: &'a mut f32) -> [Setting<'a>; 3] {
    [
        setting("beta1", beta1, Range::BelowOne),
        setting("beta2", beta2, Range::BelowOne),
        setting("epsilon", epsilon, Range::Positive),
    ]
}

impl fmt::Display for Optimizer {
    /// Writes the rule's name and all settings, as [`Optimizer::parse`] reads them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = ':';
        f.write_str(name(&self.rule))?;
        for Setting { name, value, .. } in { *self }.settings() {
            write!(f, "{separator}{name}={value}")?;
            separator = ',';
        }
        Ok(())
    }
}

impl Range {
    fn contains(self, value: f32) -> bool {
        value.is_finite()
            && match self {
                Range::BelowOne => (0.0..1.0).contains(&value),
                Range::Positive => value > 0.0,
                Range::NotNegative => value >= 0.0,
            }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Range::BelowOne => "a number from 0 to below 1",
            Range::Positive => "a number above 0",
            Range::NotNegative => "a number from 0",
        })
    }
}

fn name(rule: &Rule) -> &'static str {
    match rule {
        Rule::Sgd => "sgd",
        Rule::Momentum(_) => "momentum",
        Rule::Nesterov(_) => "nesterov",
        Rule::Adam(_) => "adam",
        Rule::AdamW(_) => "adamw",
        Rule::LazyAdam(_) => "lazyadam",
        Rule::Ftrl(_) => "ftrl",
        Rule::Adagrad(_) => "adagrad",
    }
}

fn named(text: &str) -> Result<Rule, Error> {
    let rules = Rule::all();
    rules.into_iter().find(|rule| name(rule) == text).ok_or_else(|| {
        let names = rules.each_ref().map(name).join(", ");
        Error::new(Kind::Rule, format!("no optimiser '{text}', expected one of {names}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Step;

    fn refusal(text: &str) -> String {
        Optimizer::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn settings_that_are_not_given_are_as_usual() {
        let found = Optimizer::parse("adamw:lr=1e-3,weight-decay=0.2").unwrap();
        let rule = Rule::AdamW(AdamWOptions { weight_decay: 0.2, ..AdamWOptions::default() });
        assert_eq!(found, Optimizer { rule, learning_rate: 1e-3 });
    }

    #[test]
    fn a_text_that_is_shown_reads_the_same() {
        for rule in Rule::all() {
            let optimizer = Optimizer { rule, learning_rate: 0.3 };
            assert_eq!(Optimizer::parse(&optimizer.to_string()), Ok(optimizer));
        }
        let optimizer = Optimizer::parse("ftrl:lr=0.1,l1=1").unwrap();
        assert_eq!(optimizer.to_string(), "ftrl:lr=0.1,beta=1,l1=1,l2=0");
    }

    #[test]
    fn without_a_learning_rate_nothing_moves() {
        for rule in Rule::all().into_iter().filter(|rule| !matches!(rule, Rule::Ftrl(_))) {
            let Optimizer { rule, learning_rate } =
                Optimizer::parse(&format!("{}:lr=0", name(&rule))).unwrap();
            let (mut values, mut state) = ([1.0, -2.0], vec![0.0; 2 * rule.slots()]);
            let step = Step { number: 1, learning_rate, gradient_scale: 1.0 };
            rule.update(&mut values, &[3.0, -0.5], &mut state, step);
            assert_eq!(values, [1.0, -2.0], "{rule:?}");
        }
    }

    #[test]
    fn refusals_name_both_values() {
        assert_eq!(
            refusal("adamm:lr=1"),
            "no optimiser 'adamm', expected one of sgd, momentum, nesterov, adam, adamw, lazyadam, \
             ftrl, adagrad"
        );
        assert_eq!(refusal("sgd"), "sgd has no learning rate, expected one such as sgd:lr=0.01");
        assert_eq!(refusal("sgd:lr=-1"), "lr of sgd is '-1', expected a number from 0");
        assert_eq!(refusal("sgd:lr=inf"), "lr of sgd is 'inf', expected a number from 0");
        assert_eq!(refusal("ftrl:lr=0"), "lr of ftrl is '0', expected a number above 0");
        assert_eq!(
            refusal("adam:lr=1,beta1=1"),
            "beta1 of adam is '1', expected a number from 0 to below 1"
        );
        assert_eq!(
            refusal("momentum:lr=1,l1=1"),
            "momentum has no setting l1, expected lr, factor"
        );
        assert_eq!(refusal("sgd:lr=1,lr=2"), "sgd has lr twice");
        assert_eq!(refusal("ftrl:lr"), "lr of ftrl is '', expected a number above 0");
    }
}
