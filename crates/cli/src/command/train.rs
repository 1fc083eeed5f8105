//! `thinwire train`: a model of text over several ranks.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use thinwire_train::checkpoint;

use crate::codings::Activations;
use crate::failure::hinted;
use crate::output::{print, print_json};
use crate::ranks;
use crate::report::{lines, summary};
use crate::training::planned::{self, Asked, KeptPlan, Parallel, Request};
use crate::training::{self, CheckpointPolicy, Codec, Done, PathFlag, Settings, TrainingJob};

/// Train a model of text, byte by byte, and see where the time of a step goes.
#[derive(clap::Args)]
pub struct Args {
    /// Codec of gradients: none, f16, bf16, int8, int4, int3, topk:0.01, powersgd:4, a file of your
    /// own (./mine.codec:tau=0.02), auto, or auto among some (auto:int8+onebit); with --parallel,
    /// codecs that the plan may use where that is faster [default: auto; with --parallel, nothing]
    #[arg(long)]
    codec: Option<Codec>,
    /// Train the model of this plan as it says; `thinwire plan make --output FILE` writes one
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Plan the model's parallelism for these ranks, and train so; none goes on without the plan of
    /// a checkpoint
    #[arg(long, value_enum, value_name = "HOW", conflicts_with = "plan")]
    parallel: Option<How>,
    /// With --parallel semi, a cut that is decided: 'block.*.mlp.up: n=tp'; may be repeated
    #[arg(long, value_name = "NODES: AXIS=DIMENSION", requires = "parallel")]
    pin: Vec<String>,
    /// With --parallel, the ranks and their links [default: they are measured]
    #[arg(long, value_name = "FILE", requires = "parallel")]
    cluster: Option<PathBuf>,
    #[command(flatten)]
    activations: Activations,
    /// Go on from this checkpoint, or from the newest in this folder
    #[arg(long, value_name = "CHECKPOINT")]
    resume: Option<PathBuf>,
    /// Where checkpoints go, a folder that all ranks share, or none
    #[arg(long, default_value = "thinwire-checkpoints", value_name = "FOLDER")]
    checkpoint_dir: PathFlag,
    /// After how many steps a checkpoint is written [default: after the last one only]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: Option<u64>,
    #[command(flatten)]
    settings: Settings,
}

/// Trains; rank 0 prints.
///
/// # Errors
/// If the training cannot be done as asked, or a rank is lost.
pub fn run(args: &Args) -> Result<u8> {
    let (report, code) = match train(args)? {
        Done::Elsewhere(code) | Done::Silent(code) => return Ok(code),
        Done::Here(report, code) => (report, code),
    };
    if args.settings.json {
        lines(&report).iter().try_for_each(print_json)?;
        return code;
    }
    for run in &report.runs {
        if !run.sample.is_empty() {
            print(format!("{}\n\n", run.sample.trim_end()))?;
        }
    }
    print(summary(&report))?;
    code
}

fn train(args: &Args) -> Result<Done> {
    match ranks::prepared(&args.settings.place, || work(args))? {
        Work::Planned(request) => planned::train(&request),
        Work::Plain(job) => training::train(&job, std::slice::from_ref(&job.codec)),
    }
}

/// Extent of automatic planning, or none.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum How {
    /// No plan: every rank has the whole model, and gradients travel by --codec
    None,
    /// None of it: every rank has the whole model and a part of the batch
    Data,
    /// All that --pin does not say
    Semi,
    /// All of it
    Auto,
}

impl How {
    fn planned(self) -> Option<Parallel> {
        match self {
            How::None => None,
            How::Data => Some(Parallel::Data),
            How::Semi => Some(Parallel::Semi),
            How::Auto => Some(Parallel::Auto),
        }
    }
}

/// Work of the command.
enum Work {
    /// A training under a plan for the whole model.
    Planned(Box<Request>),
    /// One whose ranks all have the model.
    Plain(Box<TrainingJob>),
}

fn work(args: &Args) -> Result<Work> {
    let folder = args.checkpoint_dir.0.clone();
    let policy = folder.map(|folder| CheckpointPolicy { folder, every: args.checkpoint_every });
    let resume = args.resume.as_deref().map(checkpoint::resolve).transpose()?;
    let parallel = args.parallel.and_then(How::planned);
    if parallel.is_none() {
        let hint = "plan make takes it, too, and writes a plan for --plan";
        args.activations.refuse("without --parallel", hint)?;
    }
    let codec = args.codec.as_ref().map(|codec| &codec.policy);
    if let Some(How::None) = args.parallel {
        refuse_requests(args, "--parallel none, which makes no plan", "leave it out")?;
    }
    if let Some(plan) = &args.plan {
        let hint = "leave it out, or give --parallel in the place of --plan";
        refuse_requests(args, "--plan, which is made already", hint)?;
        planned::check_codec(codec)?;
        let request = Request::of_file(&args.settings, plan, (resume, policy))?;
        return Ok(Work::Planned(Box::new(request)));
    }
    if let Some(parallel) = parallel {
        let asked = Asked {
            parallel,
            pins: args.pin.clone(),
            cluster: args.cluster.clone(),
            machines: None,
            codec: args.codec.as_ref().map(|codec| codec.typed.clone()),
            error_budget: args.settings.error_budget,
            activations: args.activations.clone(),
        };
        let request = Request::made(&args.settings, asked, (resume, policy))?;
        return Ok(Work::Planned(Box::new(request)));
    }
    let kept = resume.as_ref().map(KeptPlan::of).transpose()?.flatten();
    if let Some(kept) = kept.filter(|_| args.parallel.is_none()) {
        planned::check_codec(codec)?;
        let request = Request::kept(&args.settings, kept, (resume, policy))?;
        return Ok(Work::Planned(Box::new(request)));
    }
    let job = TrainingJob::resolve(&args.settings, args.codec.as_ref(), (resume, policy))?;
    Ok(Work::Plain(Box::new(job)))
}

/// Refuses flags of a plan that is to be made where none is made.
fn refuse_requests(args: &Args, with: &str, hint: &str) -> Result<()> {
    let pin = args.pin.first().map(|pin| format!("--pin '{pin}'"));
    let cluster = args.cluster.as_ref().map(|path| format!("--cluster {}", path.display()));
    match pin.or(cluster) {
        None => Ok(()),
        Some(flag) => Err(hinted(anyhow!("{flag} with {with}"), hint)),
    }
}
