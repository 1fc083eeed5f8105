//! `thinwire plan`: makes and explains plans for parallelism and for the exchange of gradients.

mod calibrate;
mod choices;
mod explained;
mod make;
mod price;
mod subject;
mod sync;

use anyhow::Result;
use clap::Subcommand;

/// Plan a training, or explain a plan.
#[derive(Subcommand)]
pub enum What {
    /// Decide which part of a model runs on which device of a cluster
    Make(make::Args),
    /// Show the cost of a plan whose mesh and schedule are given
    Price(price::Args),
    /// Measure ranks and links, and write them as a cluster file
    Calibrate(calibrate::Args),
    /// Show every bucket's alternatives, predicted and measured, and why one was chosen
    Sync(sync::Args),
}

/// Makes or explains a plan.
///
/// # Errors
/// If there is no plan, or a file cannot be read.
pub fn run(what: &What) -> Result<u8> {
    match what {
        What::Make(args) => make::run(args),
        What::Price(args) => price::run(args),
        What::Calibrate(args) => calibrate::run(args),
        What::Sync(args) => sync::run(args),
    }
}
