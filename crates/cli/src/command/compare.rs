//! `thinwire compare`: trains the same model under several codecs, and shows one table and one report.

use anyhow::Result;
use thinwire_sync::Policy;

use crate::ranks;
use crate::size::ensure_fixed;
use crate::training::{self, GRADIENTS, Settings, TrainingJob, Typed};

/// Number of steps: large enough to distinguish codecs, and small enough for a comparison of a few
/// minutes.
const STEPS: u64 = 120;

/// Trains the model again under each of several codecs, and shows the results side by side.
#[derive(clap::Args)]
// Its ranks neither come nor go.
#[command(mut_arg("ranks", |it| it.help("Ranks to start here [default: 2]").long_help(None)))]
#[command(mut_arg("coordinator", |it| it.long_help(None)))]
pub struct Args {
    /// Codecs to compare
    #[arg(long, value_name = "CODEC,...", value_delimiter = ',', default_value = "none,int8,topk:0.01,powersgd:4,auto", help_heading = GRADIENTS)]
    codecs: Vec<Policy>,
    #[command(flatten)]
    settings: Settings,
}

/// Trains once per codec. Rank 0 prints the results.
///
/// # Errors
/// If the flags do not fit together, or a rank is lost.
pub fn run(args: &Args) -> Result<u8> {
    args.settings.talk.set();
    ensure_fixed(args.settings.ranks, "compare")?;
    let mut settings = args.settings.clone();
    settings.recipe.steps.get_or_insert(STEPS);
    let typed = Typed {
        policies: &[],
        advises: false,
        settings: &settings,
        codec: None,
        plan: None,
        mode: None,
        optimizer: None,
        resume: None,
        policy: None,
    };
    let job = ranks::prepared(&settings.place, || TrainingJob::resolve(typed))?;
    let codecs: Vec<_> = args.codecs.iter().map(Some).collect();
    training::train(&job, &codecs)
}
