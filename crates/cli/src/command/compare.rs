//! `thinwire compare`: the same training under several codecs, one table, one report.

use anyhow::Result;
use thinwire_sync::Policy;

use crate::ranks;
use crate::size::ensure_fixed;
use crate::training::{self, Settings, TrainingJob, Typed};

/// Enough steps to tell codecs apart, few enough that all of them take a few minutes.
const STEPS: u64 = 120;

/// Trains the model anew under each of several codecs and shows the results side by side.
#[derive(clap::Args)]
// Its ranks neither come nor go.
#[command(mut_arg("ranks", |ranks| ranks.help("Number of ranks to start on this machine [default: 2]")))]
#[command(mut_arg("coordinator", |it| it.help("Where rank 0 can be reached by all ranks")))]
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
        resume: None,
        policy: None,
    };
    let job = ranks::prepared(&settings.place, || TrainingJob::resolve(typed))?;
    let codecs: Vec<_> = args.codecs.iter().map(Some).collect();
    training::train(&job, &codecs)
}
