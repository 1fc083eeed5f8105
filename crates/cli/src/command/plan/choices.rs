//! Precision and choices of a plan, as flags of the commands that make and price plans.

use anyhow::Result;
use thinwire_plan::Error;
use thinwire_plan::report::Numbers;
use thinwire_plan::search::Settings;

use crate::codings::{self, Activations, fraction, one_of};

/// Precision, memory, pins and codecs.
#[derive(clap::Args)]
pub struct Choices {
    /// Precision of numbers in training: single or mixed
    ///
    /// `thinwire train` uses single. mixed is half precision with an exact copy of the parameters, and is
    /// for other programs. Both assume the optimiser Adam.
    #[arg(long, value_name = "NUMBERS", default_value = "single", hide_possible_values = true, value_parser = one_of(PRECISION))]
    precision: Numbers,
    /// The part of a device's memory that stays free
    #[arg(long, value_name = "FRACTION", default_value_t = 0.1, value_parser = fraction())]
    reserve: f64,
    /// Axis that nodes put on a dimension of the mesh
    ///
    /// For example 'block.*.mlp.up: n=tensor'; may be repeated.
    #[arg(long, value_name = "NODES: AXIS=DIMENSION")]
    pin: Vec<String>,
    /// Codecs that gradients may be encoded with
    ///
    /// They are planned together with everything else. auto allows bf16, int8, int4, int3, int2 and onebit, as far
    /// as they stay within the budget.
    #[arg(long, value_name = "CODEC,...", value_delimiter = ',')]
    codecs: Vec<String>,
    /// Error that codecs may make in gradients
    ///
    /// The limit is on the mean of relative squared errors.
    #[arg(long, value_name = "ERROR", default_value_t = thinwire_sync::Options::default().error_budget, value_parser = fraction(), requires = "codecs")]
    error_budget: f64,
    #[command(flatten)]
    activations: Activations,
}

const PRECISION: &[(&str, Numbers)] = &[("mixed", Numbers::Mixed), ("single", Numbers::Single)];

impl Choices {
    /// Returns the settings for a planner.
    ///
    /// # Errors
    /// If a pin or a codec is not valid.
    pub fn settings(&self) -> Result<Settings> {
        let base = match self.precision {
            Numbers::Mixed => Settings::default(),
            Numbers::Single => Settings::of_executor(),
        };
        let codings = codings::of_names(&self.codecs, self.error_budget)?;
        let pins = self.pin.iter().map(|pin| pin.parse()).collect::<Result<_, Error>>()?;
        let (reserve, error_budget) = (self.reserve, self.error_budget);
        let settings = Settings { reserve, pins, codings, error_budget, ..base };
        self.activations.put_in(settings)
    }
}
