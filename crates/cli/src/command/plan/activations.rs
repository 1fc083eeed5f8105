//! What activations may be encoded with, as flags of what makes plans.

use anyhow::Result;
use thinwire_plan::cost::Coding;
use thinwire_plan::search::{ACTIVATION_BUDGET, Settings};

use super::fraction;
use crate::output::say;

/// Codecs of activations and of their gradients.
#[derive(clap::Args)]
pub struct Activations {
    /// Codecs that activations and their gradients may be encoded with, between stages and within
    /// them; for every level of the cluster the cheapest one is taken, if any is cheaper than none
    #[arg(long, value_name = "CODEC,...", value_delimiter = ',')]
    activation_codecs: Vec<String>,
    /// What no transfer of activations may lose more of: the relative squared error of one encoding
    #[arg(long, value_name = "FRACTION", default_value_t = ACTIVATION_BUDGET, value_parser = fraction, requires = "activation_codecs")]
    activation_budget: f64,
}

impl Activations {
    /// Settings with these codecs; names those that lose too much.
    ///
    /// # Errors
    /// If one is none of activations.
    pub fn put_in(&self, settings: Settings) -> Result<Settings> {
        let codings = self.activation_codecs.iter().map(|name| Coding::of_activations(name));
        let activation_codings = codings.collect::<Result<Vec<_>, _>>()?;
        let activation_budget = self.activation_budget;
        for coding in activation_codings.iter().filter(|one| one.loss > activation_budget) {
            let lost = coding.loss;
            say(format!(
                "activations do not travel by {coding}: it loses {lost:.2e}, --activation-budget is {activation_budget}"
            ));
        }
        Ok(Settings { activation_codings, activation_budget, ..settings })
    }
}
