//! `thinwire train`: trains a model of text or images on several ranks.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use thinwire_policy::Spec;
use thinwire_sync::Mode;
use thinwire_train::Adam;

use crate::failure::hinted;
use crate::launch::is_launched;
use crate::ranks;
use crate::size::{Elastic, ElasticFlags, Size, ensure_fixed};
use crate::training::{
    self, CHECKPOINTS, Codec, GRADIENTS, OUTPUT, PathFlag, PlanFlags, ServerFlags, ServerMode,
    Settings, TRAINING, TrainingJob, Typed,
};
use crate::units;

/// Default number of ranks of a training with servers.
const RANKS: u32 = 2;

/// Train a model of text or images, and see where the time of a step goes.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Codec of gradients, such as int8 [default: auto]
    ///
    /// none, f16, bf16, int8, int4, int3, topk:0.01, powersgd:4, a file of your own
    /// (./mine.codec:tau=0.02), auto, or auto with a choice of codecs (auto:int8+onebit). With --plan,
    /// the default is the plan's codecs, and this flag replaces them. With --parallel, gradients are raw
    /// by default, and the plan uses a codec only where it is faster. If plans do not support the codec
    /// (powersgd:4, a file), or other flags set how gradients travel, this codec is used for all
    /// gradients.
    #[arg(long, help_heading = GRADIENTS, display_order = 0)]
    codec: Option<Codec>,
    #[command(flatten)]
    plan: PlanFlags,
    /// Checkpoint to continue from, or its folder
    ///
    /// In a folder, or at s3://BUCKET/PREFIX, the newest checkpoint is used.
    #[arg(long, value_name = "CHECKPOINT", value_parser = training::checkpoint_folder::<PathBuf>(), help_heading = CHECKPOINTS)]
    resume: Option<PathBuf>,
    /// Folder of checkpoints, or none
    ///
    /// All ranks share it. It may be s3://BUCKET/PREFIX.
    #[arg(long, default_value = "thinwire-checkpoints", value_name = "DIR", value_parser = training::checkpoint_folder::<PathFlag>(), help_heading = CHECKPOINTS)]
    checkpoint_dir: PathFlag,
    /// Steps between checkpoints [default: only the last one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = CHECKPOINTS)]
    checkpoint_every: Option<u64>,
    /// Time to wait at the start for folders that are mounted late
    ///
    /// Applies to --resume and --checkpoint-dir.
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = units::time(0..=86_400), help_heading = CHECKPOINTS, hide_short_help = true)]
    checkpoint_wait: Duration,
    /// Adapt batch, ranks or error budget while training
    ///
    /// noise-scale:max=512 (the batch), goodput, deadline:8h and price:FILE,max=0.5 (the number of ranks of an
    /// elastic job), wait:max=0.3 (the error budget of auto); may be given several times.
    #[arg(long = "policy", value_name = "POLICY", help_heading = TRAINING)]
    policies: Vec<Spec>,
    /// File with flags, such as steps = 400
    ///
    /// TOML, with the long names of flags as keys. Flags on the command line override those of the file.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    config: Option<PathBuf>,
    /// Write the given flags to a file
    ///
    /// The file can be given to --config. It contains neither the token nor the rank. Training starts as usual.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    save_config: Option<PathBuf>,
    #[command(flatten)]
    elastic: ElasticFlags,
    #[command(flatten)]
    server: ServerFlags,
}

/// Trains. Rank 0 prints the results.
///
/// # Errors
/// If the flags do not fit together, or a rank is lost.
pub fn run(args: &Args) -> Result<u8> {
    args.settings.talk.set();
    let mode = args.server.resolve(args.settings.ranks.unwrap_or(Size::Fixed(RANKS)))?;
    if let Some(mode) = mode {
        return with_servers(args, &mode);
    }
    let job = ranks::prepared(&args.settings.place, || resolved(args))?;
    if let Some(elastic) = to_launch(args)? {
        job.check(&[job.codec.as_ref()])?;
        let elastic = Elastic { silence: args.settings.link.heartbeat_timeout, ..elastic };
        return ranks::launch_elastic(&args.settings.place, &elastic, args.settings.link.port);
    }
    training::train(&job, &[job.codec.as_ref()])
}

/// Trains with servers. A process outside such a job starts the servers and the ranks.
fn with_servers(args: &Args, mode: &ServerMode) -> Result<u8> {
    refuse_beside_servers(args, mode)?;
    let job = resolved(args)?;
    training::check_served(&job, mode)?;
    if ranks::is_member() {
        if !is_launched() {
            mode.refuse_limits()?;
        }
        return training::train_with_servers(&job, mode);
    }
    mode.check_start()?;
    let codecs = [job.codec.as_ref()];
    job.check(if mode.is_hybrid() { &codecs } else { &[] })?;
    let size = args.settings.ranks.unwrap_or(Size::Fixed(RANKS));
    let size = match size {
        Size::Fixed(ranks) => Size::Elastic { min: ranks, max: ranks },
        size => size,
    };
    let elastic = args.elastic.resolve(Some(size), &args.settings.place)?;
    let elastic = elastic.context("a job with servers is elastic")?;
    let elastic = mode.job(elastic, args.settings.link.heartbeat_timeout);
    ranks::launch_elastic(&args.settings.place, &elastic, args.settings.link.port)
}

/// Refuses flags that have no effect in a training with servers.
fn refuse_beside_servers(args: &Args, mode: &ServerMode) -> Result<()> {
    let codec = args.codec.as_ref().filter(|codec| codec.typed != "none");
    let exchange =
        [codec.map(|codec| format!("--codec {}", codec.typed)), args.settings.exchange_flag()];
    let unchecked = args.settings.unchecked.then(|| "--unchecked".to_owned());
    let flag = exchange.into_iter().chain([unchecked]).flatten().find(|_| !mode.is_hybrid());
    refuse_flag(
        flag,
        "cannot be used with --mode server: there, --values sets the encoding of gradients",
    )?;
    let recipe = &args.settings.recipe;
    let rates = [
        recipe.lr.map(|rate| format!("--lr {rate}")),
        recipe.lr_warmup_steps.map(|steps| format!("--lr-warmup-steps {steps}")),
    ];
    let rate = rates.into_iter().flatten().find(|_| !mode.is_hybrid());
    refuse_flag(
        rate,
        "cannot be used with --mode server: there, --optimizer sets the learning rate",
    )?;
    let others = [
        args.plan.flag(),
        args.policies.first().map(|policy| format!("--policy {policy}")),
        args.resume.as_ref().map(|path| format!("--resume {}", path.display())),
        args.settings.trace.as_ref().map(|path| format!("--trace {}", path.display())),
        recipe
            .weights
            .as_ref()
            .map(|path| format!("--weights {}, unlike --restore,", path.display())),
    ];
    refuse_flag(others.into_iter().flatten().next(), "cannot be used in a training with servers")
}

fn refuse_flag(flag: Option<String>, why: &str) -> Result<()> {
    flag.map_or(Ok(()), |flag| {
        let name = flag.split(' ').next().unwrap_or_default();
        Err(hinted(anyhow!("{flag} {why}"), format!("leave {name} out")))
    })
}

/// Returns the elastic job whose members this process starts, or `None` if it is one of them.
fn to_launch(args: &Args) -> Result<Option<Elastic>> {
    if ranks::is_member() {
        return Ok(None);
    }
    args.elastic.resolve(args.settings.ranks, &args.settings.place)
}

fn resolved(args: &Args) -> Result<TrainingJob> {
    let kept = args.checkpoint_dir.0.clone();
    let size = args.settings.ranks;
    let is_elastic = ranks::is_member() || size.and_then(Size::bounds).is_some();
    if let Some(path) = args.settings.trace.as_ref().filter(|_| is_elastic) {
        let error = anyhow!("--trace {} cannot be used in an elastic job", path.display());
        return Err(hinted(
            error,
            "leave --trace out: a trace has the steps of rank 0, which may change in an elastic job",
        ));
    }
    if let Some(flag) = args.plan.flag() {
        ensure_fixed(size, &flag)?;
    }
    let job = TrainingJob::resolve(Typed {
        settings: &args.settings,
        codec: args.codec.as_ref(),
        plan: Some(&args.plan),
        mode: args.server.mode(),
        optimizer: args.server.adam(),
        policies: &args.policies,
        advises: args.server.advises(),
        resume: training::checkpoints::resolve(
            args.resume.as_deref(),
            args.checkpoint_dir.0.as_deref(),
            args.checkpoint_wait,
        )?,
        policy: kept.map(|folder| training::checkpoints::policy(folder, args.checkpoint_every)),
    })?;
    let fixed = match (job.exchange.optimizer, job.exchange.mode) {
        (Adam::ZeroOne, _) => Some(format!("--optimizer {}", Adam::ZeroOne)),
        (_, mode @ Mode::Delayed { steps: 1.. }) => Some(format!("--mode {mode}")),
        _ => None,
    };
    if let Some(flag) = fixed.filter(|_| is_elastic) {
        let error = anyhow!("{flag} cannot be used in an elastic job");
        return Err(hinted(
            error,
            format!("leave {flag} out, or give a fixed number of ranks: --ranks 4"),
        ));
    }
    if job.parallelism.is_planned() {
        ensure_fixed(size, "the plan of the checkpoint")?;
    }
    Ok(job)
}
