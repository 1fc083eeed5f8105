//! Codecs for gradients and activations of a plan, as flags give them.

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
    /// Applies to activations and their gradients, between stages and within them. Each level of the cluster takes
    /// the cheapest codec, or none where no codec is cheaper.
    #[arg(long, value_name = "CODEC,...", value_delimiter = ',', hide_short_help = true)]
    activation_codecs: Vec<String>,
    /// Error of one encoding of activations
    ///
    /// The limit is on the largest relative squared error.
    #[arg(long, value_name = "ERROR", default_value_t = ACTIVATION_BUDGET, value_parser = fraction(), requires = "activation_codecs", hide_short_help = true)]
    activation_budget: f64,
}

impl Activations {
    /// Settings with these codecs.
    ///
    /// # Errors
    /// If one is none of activations.
    pub fn put_in(&self, settings: Settings) -> Result<Settings> {
        let coding = |name: &String| {
            of_name(name)?;
            Ok(Coding::of_activations(name)?)
        };
        let activation_codings = self.activation_codecs.iter().map(coding);
        let activation_codings = activation_codings.collect::<Result<Vec<_>>>()?;
        Ok(Settings { activation_codings, activation_budget: self.activation_budget, ..settings })
    }

    /// Whether any codec was given.
    pub fn given(&self) -> bool {
        !self.activation_codecs.is_empty()
    }

    /// Refuses codecs where no activations travel that a plan is made for.
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

/// Names the codecs of activations that lose more than their budget.
pub fn tell(settings: &Settings) {
    let budget = settings.activation_budget;
    for coding in settings.activation_codings.iter().filter(|coding| coding.loss > budget) {
        let lost = coding.loss;
        say(format!(
            "activations do not travel by {coding}: it loses {lost:.2e}, --activation-budget is {budget}"
        ));
    }
}

/// Returns the codecs of a policy: one, or those of `auto` whose error in one encoding is within
/// the budget.
///
/// # Errors
/// If one makes no bytes, or has no name that a plan could hold.
pub fn of_gradients(policy: &Policy, budget: f64) -> Result<Vec<Coding>> {
    if policy.keeps_a_budget() {
        let all = Policy::AUTO.iter().map(|name| Coding::parse(name));
        let all = all.collect::<Result<Vec<_>, _>>()?.into_iter();
        // The bytes of a plan are those that it sends, so their lengths must be known.
        let is_usable = |coding: &Coding| coding.loss <= budget && !coding.codec().is_variable();
        return Ok(all.filter(is_usable).collect());
    }
    if let Policy::Named(_) = policy {
        let error = anyhow!("codec {policy} is chosen by names of parameters, expected one codec");
        return Err(hinted(
            error,
            "a plan chooses the codec of every gradient from those it is given",
        ));
    }
    let encoded = policy.choices().filter(|choice| choice.to_string() != "none");
    encoded.map(of_choice).collect()
}

/// Whether a plan can hold the codecs of a policy.
pub fn can_plan(policy: &Policy) -> bool {
    of_gradients(policy, 1.0).is_ok()
}

/// Returns the codecs of these names, of which one may be `auto`.
///
/// # Errors
/// If there is none such, it makes no bytes, or a plan could not hold its name.
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

/// Returns the codec of a name.
///
/// # Errors
/// If there is none such, it makes no bytes, or a plan could not hold its name.
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
            let error = anyhow!("codec {name} is from a file, expected one that a plan can name");
            Err(hinted(
                error,
                "int8, int4 and onebit are such codecs; without a plan any can be used",
            ))
        }
    }
}

/// Returns a parser of one of these names, each of a value.
pub fn one_of<T: Clone + Send + Sync + 'static>(
    values: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(values.iter().map(|(name, _)| *name));
    names.map(|given| {
        let found = values.iter().find(|(name, _)| *name == given);
        found.expect("a possible value has a name").1.clone()
    })
}

/// Returns a parser of numbers within a range.
pub fn within<T: FromStr + PartialOrd>(
    range: impl RangeBounds<T> + Clone,
    expected: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let found = text.parse().ok().filter(|number| range.contains(number));
        found.ok_or_else(|| format!("expected {expected}"))
    }
}

/// Returns a parser of numbers of 0 or more and less than 1.
pub fn fraction() -> impl Fn(&str) -> Result<f64, String> + Clone {
    within(0.0..1.0, "0 or more and less than 1")
}

/// Returns a parser of numbers of 1 or more.
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
