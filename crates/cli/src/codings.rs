//! Codecs for the gradients and activations of a plan, as given by flags.

use std::num::NonZeroUsize;
use std::ops::RangeBounds;
use std::str::FromStr;

use anyhow::{Result, anyhow};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::{Deserialize, Serialize};
use thinwire_codec::Choice;
use thinwire_plan::cost::Coding;
use thinwire_plan::search::{ACTIVATION_BUDGET, Settings};
use thinwire_sync::Policy;

use crate::failure::{OrHint, hinted};
use crate::output::say;

/// Codecs of activations and of their gradients.
#[derive(clap::Args, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Activations {
    /// Codecs that activations may be encoded with
    ///
    /// Applies to activations and their gradients, between stages and within them. On each level of the
    /// cluster, the codec with the least time is used, or none if no codec saves time.
    #[arg(long, value_name = "CODEC,...", value_delimiter = ',', hide_short_help = true)]
    activation_codecs: Vec<String>,
    /// Error that codecs may make in activations
    ///
    /// The limit is on the largest relative squared error of one encoding.
    #[arg(long, value_name = "ERROR", default_value_t = ACTIVATION_BUDGET, value_parser = fraction(), requires = "activation_codecs", hide_short_help = true)]
    activation_budget: f64,
}

impl Activations {
    /// Returns the settings with these codecs.
    ///
    /// # Errors
    /// If one of them is not a codec for activations.
    pub fn put_in(&self, settings: Settings) -> Result<Settings> {
        let coding = |name: &String| {
            of_name(name)?;
            Ok(Coding::of_activations(name)?)
        };
        let activation_codings = self.activation_codecs.iter().map(coding);
        let activation_codings = activation_codings.collect::<Result<Vec<_>>>()?;
        Ok(Settings { activation_codings, activation_budget: self.activation_budget, ..settings })
    }

    /// Returns whether any codec was given.
    pub fn given(&self) -> bool {
        !self.activation_codecs.is_empty()
    }

    /// Refuses these codecs for a plan in which no activations are sent.
    ///
    /// # Errors
    /// If any were given.
    pub fn refuse(&self, why: &str, hint: &str) -> Result<()> {
        match &self.activation_codecs[..] {
            [] => Ok(()),
            codecs => {
                let error = anyhow!("--activation-codecs {} {why}", codecs.join(","));
                Err(hinted(error, hint))
            }
        }
    }
}

/// Prints the names of the activation codecs whose error exceeds the budget.
pub fn tell(settings: &Settings) {
    let budget = settings.activation_budget;
    for coding in settings.activation_codings.iter().filter(|coding| coding.loss > budget) {
        let lost = coding.loss;
        say(format!(
            "activations are not sent as {coding}: this codec loses {lost:.2e} of them, but \
             --activation-budget is {budget}"
        ));
    }
}

/// Returns the codecs of a policy: one codec, or those of `auto` whose error in one encoding is within the
/// budget.
///
/// # Errors
/// If a codec has no encoding in bytes, or a name that a plan cannot hold.
pub fn of_gradients(policy: &Policy, budget: f64) -> Result<Vec<Coding>> {
    if policy.keeps_a_budget() {
        let all = Policy::AUTO.iter().map(|name| Coding::parse(name));
        let all = all.collect::<Result<Vec<_>, _>>()?.into_iter();
        // The bytes of a plan are those that it sends, so their lengths must be known.
        let is_usable = |coding: &Coding| coding.loss <= budget && !coding.codec().is_variable();
        return Ok(all.filter(is_usable).collect());
    }
    if let Policy::Named(_) = policy {
        let error =
            anyhow!("codec {policy} depends on the names of parameters, expected one codec");
        return Err(hinted(
            error,
            "with a list such as auto:int8+int4, the plan itself chooses a codec for every gradient",
        ));
    }
    let encoded = policy.choices().filter(|choice| choice.to_string() != "none");
    encoded.map(of_choice).collect()
}

/// Returns whether a plan can hold the codecs of a policy.
pub fn can_plan(policy: &Policy) -> bool {
    of_gradients(policy, 1.0).is_ok()
}

/// Returns the codecs with these names; one name may be `auto`.
///
/// # Errors
/// If a codec does not exist, has no encoding in bytes, or has a name that a plan cannot hold.
pub fn of_names(names: &[String], budget: f64) -> Result<Vec<Coding>> {
    let mut all: Vec<Coding> = Vec::new();
    for name in names {
        let named = match &name[..] {
            "auto" => of_gradients(&Policy::Auto(Vec::new()), budget)?,
            name => vec![of_name(name)?],
        };
        for one in named {
            if !all.contains(&one) {
                all.push(one);
            }
        }
    }
    Ok(all)
}

/// Returns the codec with a name.
///
/// # Errors
/// If the codec does not exist, has no encoding in bytes, or has a name that a plan cannot hold.
pub fn of_name(name: &str) -> Result<Coding> {
    let choice = Choice::parse(name);
    of_choice(
        &choice.or_hint("int8, int4 and onebit are codecs; docs/algorithms.md describes all")?,
    )
}

fn of_choice(choice: &Choice) -> Result<Coding> {
    let name = choice.to_string();
    match Choice::parse(&name) {
        Ok(_) => Ok(Coding::parse(&name)?),
        Err(_) => {
            let error =
                anyhow!("codec {name} is from a file, but a plan can contain only built-in codecs");
            Err(hinted(
                error,
                "int8, int4 and onebit are built in; without a plan, codecs from files can be used too",
            ))
        }
    }
}

/// Returns a parser for these names, each of which stands for a value.
pub fn one_of<T: Clone + Send + Sync + 'static>(
    values: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(values.iter().map(|(name, _)| *name));
    names.map(|given| {
        let found = values.iter().find(|(name, _)| *name == given);
        found.expect("a possible value has a name").1.clone()
    })
}

/// Returns a parser for numbers within a range.
pub fn within<T: FromStr + PartialOrd>(
    range: impl RangeBounds<T> + Clone,
    expected: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let found = text.parse().ok().filter(|number| range.contains(number));
        found.ok_or_else(|| format!("expected {expected}"))
    }
}

/// Returns a parser for numbers of at least 0 and less than 1.
pub fn fraction() -> impl Fn(&str) -> Result<f64, String> + Clone {
    within(0.0..1.0, "0 or more and less than 1")
}

/// Returns a parser for whole numbers of at least 1.
pub fn at_least_one() -> impl Fn(&str) -> Result<NonZeroUsize, String> + Clone {
    within(NonZeroUsize::MIN.., "at least 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(policy: &str, budget: f64) -> String {
        let codings = of_gradients(&policy.parse().unwrap(), budget);
        match codings {
            Ok(codings) => codings.iter().map(Coding::to_string).collect::<Vec<_>>().join(","),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn auto_is_a_name_beside_others() {
        let names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let all = of_names(&names, 0.1).map_err(|error| error.to_string())?;
            Ok::<_, String>(all.iter().map(Coding::to_string).collect::<Vec<_>>().join(","))
        };
        assert_eq!(names(&["auto"]).unwrap(), "bf16,int8,int4,int4:least-squares");
        let both = names(&["topk:0.01", "int8", "auto"]).unwrap();
        assert_eq!(both, "topk:0.01,int8,bf16,int4,int4:least-squares");
        assert!(names(&["auto", "int9"]).unwrap_err().starts_with("unknown codec 'int9'"));
    }

    #[test]
    fn a_policy_is_what_a_planner_may_choose_from() {
        for (policy, budget, expected) in [
            ("none", 0.1, ""),
            ("int8:stochastic", 0.0, "int8:stochastic"),
            ("auto:none+int8+onebit", 0.1, "int8,onebit"),
            ("auto", 0.1, "bf16,int8,int4,int4:least-squares"),
            ("auto", 1e-3, "bf16,int8"),
            ("auto", 0.0, ""),
            ("auto", 1.0, "bf16,int8,int4,int3,int4:least-squares,int3:least-squares,int2,onebit"),
            ("powersgd:4", 0.1, "codec powersgd:4 sends sums, expected one that sends bytes"),
        ] {
            assert_eq!(names(policy, budget), expected, "{policy}");
        }
    }
}
