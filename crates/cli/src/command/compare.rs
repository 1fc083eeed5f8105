//! `thinwire compare`: the same training under several codecs, one table, one report.

use anyhow::Result;
use thinwire_sync::Policy;

use crate::output::{print, print_json};
use crate::ranks;
use crate::report::{lines, summary};
use crate::training::{self, Done, Settings, TrainingJob};

/// Enough steps to tell codecs apart, few enough that all of them take a few minutes.
const STEPS: u64 = 120;

/// Trains the model anew under each of several codecs and shows the results side by side.
#[derive(clap::Args)]
pub struct Args {
    /// The codecs
    #[arg(long, value_delimiter = ',', default_value = "none,int8,topk:0.01,powersgd:4,auto")]
    codecs: Vec<Policy>,
    #[command(flatten)]
    settings: Settings,
}

/// Trains once per codec; rank 0 prints.
///
/// # Errors
/// If the training cannot be done as asked, or a rank is lost.
pub fn run(args: &Args) -> Result<u8> {
    let mut settings = args.settings.clone();
    settings.recipe.steps.get_or_insert(STEPS);
    let job =
        ranks::prepared(&settings.place, || TrainingJob::resolve(&settings, None, (None, None)))?;
    let (report, code) = match training::train(&job, &args.codecs)? {
        Done::Elsewhere(code) | Done::Silent(code) => return Ok(code),
        Done::Here(report, code) => (report, code),
    };
    if args.settings.json {
        lines(&report).iter().try_for_each(print_json)?;
    } else {
        print(summary(&report))?;
    }
    code
}
