//! `thinwire plan make`: which part of a model runs where.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;
use thinwire_plan::cost::Precision;
use thinwire_plan::output::{PlanFile, report};
use thinwire_plan::search::{Planner, Settings};
use thinwire_plan::{Cluster, Error};

use crate::output::{print, print_json, say};
use crate::source::Source;

/// Decides which part of a model runs on which device.
#[derive(clap::Args)]
pub struct Args {
    /// The model: a name, or a file such as model.json or model.onnx
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// The machines: a TOML file of devices and levels
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// Sequences, or images, of a step
    #[arg(long, value_name = "N")]
    batch: NonZeroUsize,
    /// Tokens of a sequence [default: what the model is usually trained with]
    #[arg(long, value_name = "N")]
    sequence: Option<NonZeroUsize>,
    /// How numbers are kept
    #[arg(long, value_enum, default_value = "mixed")]
    precision: Numbers,
    /// The part of a device's memory that stays free
    #[arg(long, value_name = "FRACTION", default_value_t = 0.1, value_parser = fraction)]
    reserve: f64,
    /// Writes the plan here
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// One JSON object: the plan
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Numbers {
    /// Half precision with exact parameters beside it, and Adam
    Mixed,
    /// Single precision and Adam
    Single,
}

/// Makes a plan and says why.
///
/// # Errors
/// If the cluster or the model cannot be read, nothing fits, or the plan cannot be written.
pub fn run(args: &Args) -> Result<u8> {
    let path = args.cluster.display();
    let text =
        std::fs::read_to_string(&args.cluster).with_context(|| format!("cannot read {path}"))?;
    let cluster = Cluster::parse(&text).with_context(|| path.to_string())?;
    let source = Source::open(&args.model)?;
    let sequence = source
        .sequence(args.sequence.map(NonZeroUsize::get))
        .with_context(|| args.model.clone())?;
    let precision = match args.precision {
        Numbers::Mixed => Precision::MIXED,
        Numbers::Single => Precision::SINGLE,
    };
    let settings = Settings { precision, reserve: args.reserve, ..Settings::default() };
    let build =
        move |batch| source.graph(batch, sequence).map_err(|error| Error::from_model(&error));
    let mut planner = Planner::new(args.batch.get(), settings, build);
    let found = planner.plan(&cluster)?;
    let plan = PlanFile::new(&args.model, sequence, &planner, &cluster, &found)?;
    if let Some(path) = &args.output {
        std::fs::write(path, plan.text())
            .with_context(|| format!("cannot write {}", path.display()))?;
        say(format!("wrote {}", path.display()));
    }
    if args.json {
        print_json(&plan)?;
    } else {
        print(report(&planner, &cluster, &found)?)?;
    }
    Ok(0)
}

fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..1.0).contains(&value) => Ok(value),
        _ => Err(format!("{text} is no fraction, expected 0 or more and less than 1")),
    }
}
