//! The flags of a training, as they were typed.

use std::path::PathBuf;

use clap::ValueEnum;
use thinwire_schedule::Algorithm;

use crate::environment::Flags;
use crate::rendezvous;

/// The flags that `train` and `compare` share.
#[derive(clap::Args, Clone, Debug)]
pub struct Settings {
    /// A text file, a folder or a glob to learn from [default: this program's own sources]
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// How many ranks to start on this machine [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub ranks: Option<u32>,
    /// Who sends what to whom
    #[arg(long, default_value = "auto", value_name = "ring|two-shot|halving|gather|auto")]
    pub algorithm: Choice<Algorithm>,
    /// How many steps to train
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// The seed of everything random
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Where the report goes; none writes none
    #[arg(long = "report", default_value = "report.html", value_name = "PATH", value_parser = optional_path)]
    pub report_path: OptionalPath,
    #[command(flatten)]
    pub model: Model,
    #[command(flatten)]
    pub optimizer: Optimizer,
    /// Gradients leave in buckets of this many bytes of f32
    #[arg(long, default_value_t = 1 << 20, value_name = "BYTES")]
    pub bucket_bytes: usize,
    #[command(flatten)]
    pub link: rendezvous::Settings,
    #[command(flatten)]
    pub place: Flags,
    /// One JSON object per training on standard output
    #[arg(long)]
    pub json: bool,
}
