//! Flags of a training.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::{Deserialize, Serialize};
use thinwire_job::{Place, Source, is_loopback};
use thinwire_link::Bandwidth;
use thinwire_policy::Spec;
use thinwire_schedule::Summation;
use thinwire_sync::{Feedback, Mode, Policy, UnknownPolicy};
use thinwire_train::Adam;
use thinwire_train::checkpoint::Checkpoint;

use crate::codings::{Activations, within};
use crate::failure::hinted;
use crate::link;
use crate::metrics;
use crate::output::Talk;
use crate::place::Flags;
use crate::size::{self, Size};
use crate::units;

/// Heading of flags of the model and the training.
pub const TRAINING: &str = "Model and training";
/// Heading of flags of the exchange of gradients.
pub const GRADIENTS: &str = "Gradients";
/// Heading of flags of the job's ranks.
pub const RANKS: &str = "Ranks";
/// Heading of flags of checkpoints.
pub const CHECKPOINTS: &str = "Checkpoints";
/// Heading of flags of outputs.
pub const OUTPUT: &str = "Output";

/// The flags that `train` and `compare` share. Settings that are not given come from the
/// checkpoint, if one is resumed, otherwise from the defaults.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Settings {
    /// Text or images to learn from [default: own]
    ///
    /// A text file, a folder or a glob; for a model of images, a folder with a folder of .png or .jpg
    /// files for each class, or NumPy arrays: a .npz with x [N, C, H, W] and y [N], or a folder with
    /// x.npy and y.npy. Without this flag, a training learns from the source code of this program.
    #[arg(long, value_name = "PATH", help_heading = TRAINING)]
    pub data: Option<PathBuf>,
    /// Ranks to start here, or MIN:MAX [default: 2]
    ///
    /// An elastic job begins with MAX ranks. It continues while ranks die, leave and join, as long as at
    /// least MIN ranks are left.
    #[arg(long, value_name = "N", value_parser = size::up_to(256), help_heading = RANKS)]
    pub ranks: Option<Size>,
    /// Algorithm, such as two-shot [default: auto]
    ///
    /// ring, two-shot, halving, gather, ring-gather, trees:2*0.0.0+1*1.1.1 (weights of trees, each with the parent of
    /// every rank), hierarchical:2:two-shot (units of 2 ranks, two-shot between them) or auto.
    #[arg(long, value_name = "NAME", help_heading = GRADIENTS)]
    pub algorithm: Option<AlgorithmFlag>,
    /// Error that auto may make [default: 0.02]
    ///
    /// With auto, limit on the error of one encoding of a bucket: the larger of the relative squared and absolute
    /// errors, plus twice the excess of energy of the decoded values. For a gathered bucket, the limit is three times
    /// as high. In the first 400 steps of a training it is lower. With --parallel, it limits the mean error of all
    /// gradients, with any codec.
    #[arg(long, value_name = "ERROR", value_parser = within(0.0..=f64::MAX, "a number of 0 or more"), help_heading = GRADIENTS)]
    pub error_budget: Option<f64>,
    /// Feedback of the codec's error [default: classic]
    ///
    /// classic adds the codec's error to the next gradient; the other rules are ef21, average:BETA and decay:FACTOR.
    /// Does not apply to codecs that leave no residual, such as none, f16, bf16 and intsgd.
    #[arg(long, value_name = "KIND", help_heading = GRADIENTS, hide_short_help = true)]
    pub feedback: Option<Feedback>,
    /// Factor of momentum that is applied before encoding
    ///
    /// The optimiser then has no momentum of its own.
    #[arg(long, value_name = "FACTOR", value_parser = within(0.0_f32..1.0, "a number from 0 to below 1"), help_heading = GRADIENTS, hide_short_help = true)]
    pub momentum_correction: Option<f32>,
    /// First steps sent raw [default: by codec]
    ///
    /// Number of first steps before the codec begins; auto has no such steps. The default is 20 for
    /// powersgd, 50 for topk, blocktopk, dgc and graddrop, and 0 for other codecs or if that exceeds a
    /// fifth of the steps.
    #[arg(long, value_name = "N", help_heading = GRADIENTS)]
    pub codec_warmup_steps: Option<u64>,
    /// Train with a codec from a file without checking its laws
    ///
    /// `thinwire codec check` checks them, too.
    #[arg(long, help_heading = GRADIENTS, hide_short_help = true)]
    pub unchecked: bool,
    /// Bytes of f32 in a bucket [default: a sixteenth of all]
    #[arg(long, value_name = "BYTES", value_parser = units::bytes(1024_usize..=1 << 30), help_heading = GRADIENTS, hide_short_help = true)]
    pub bucket_bytes: Option<usize>,
    /// Report, or none
    #[arg(long, default_value = "report.html", value_name = "PATH", help_heading = OUTPUT)]
    pub report: PathFlag,
    /// File for the times of every step's exchange
    ///
    /// The file has one line of JSON per step; with a plan, each line also has the times of rank 0's passes. A file
    /// with the extension .trace.json next to it contains the same as a timeline for Perfetto and speedscope.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub trace: Option<PathBuf>,
    /// Batches of a validation, or 0
    ///
    /// The validation loss is measured on at most this many batches, ten times in a training. The accuracy of a model
    /// of images is measured at the end, too.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16), help_heading = OUTPUT)]
    pub validation_batches: u16,
    /// Bytes of text that the trained model generates; 0 for none
    ///
    /// Models of images generate nothing.
    #[arg(long, default_value = "400", value_name = "BYTES", value_parser = units::bytes(0..=u16::MAX), help_heading = OUTPUT, hide_short_help = true)]
    pub sample_bytes: u16,
    /// One JSON object per training on standard output
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
    #[command(flatten)]
    pub talk: Talk,
    #[command(flatten)]
    pub recipe: RecipeFlags,
    #[command(flatten)]
    pub link: link::Settings,
    #[command(flatten)]
    pub place: Flags,
    #[command(flatten)]
    pub metrics: metrics::Flags,
}

impl Settings {
    /// Returns a flag of the gradients' exchange, other than their codec, if one was given.
    pub fn exchange_flag(&self) -> Option<String> {
        let feedback = self.feedback.filter(|feedback| *feedback != Feedback::default());
        let given = [
            self.algorithm.map(|value| format!("--algorithm {value}")),
            feedback.map(|value| format!("--feedback {value}")),
            self.momentum_correction.map(|value| format!("--momentum-correction {value}")),
            self.codec_warmup_steps.map(|value| format!("--codec-warmup-steps {value}")),
            self.bucket_bytes.map(|value| format!("--bucket-bytes {value}")),
        ];
        given.into_iter().flatten().next()
    }

    /// Returns the number of threads of this machine that one rank may use for arithmetic.
    pub fn threads(&self, place: &Place) -> usize {
        crate::ranks::threads(place)
    }

    /// Returns the emulated bandwidth. The default is 100 Mbit/s between ranks that thinwire has started on
    /// one machine, because no network connects them, and no emulation between other ranks.
    pub fn limit(&self, place: &Place) -> Option<Bandwidth> {
        match (self.link.limit, place.source) {
            (Some(limit), _) => limit.0,
            (None, Source::Thinwire) if is_loopback(&place.coordinator) => {
                Some(Bandwidth::bits_per_s(100e6))
            }
            (None, _) => None,
        }
    }
}

/// Returns a parser for flags with a place of checkpoints: a folder, or `s3://BUCKET/PREFIX`.
///
/// # Errors
/// The parser refuses other addresses, because they are not folders.
pub fn folder<T: From<OsString> + Clone + Send + Sync + 'static>()
-> impl TypedValueParser<Value = T> {
    OsStringValueParser::new().try_map(|text| match text.to_str() {
        Some(address) if address.contains("://") && !address.starts_with("s3://") => {
            Err("checkpoints go to folders and to s3://BUCKET/PREFIX".to_owned())
        }
        _ => Ok(T::from(text)),
    })
}

/// The flags of a plan for the whole model.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Plan")]
pub struct PlanFlags {
    /// Train the model of this plan according to the plan
    ///
    /// `thinwire plan make --output FILE` writes one.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Plan the parallelism for these ranks
    ///
    /// The ranks train by this plan. The value none continues a checkpoint without its plan.
    #[arg(long, value_enum, value_name = "HOW", conflicts_with = "plan")]
    pub parallel: Option<Parallel>,
    /// With --parallel semi, a cut that is fixed
    ///
    /// For example 'block.*.mlp.up: n=tp'; may be repeated.
    #[arg(
        long,
        value_name = "NODES: AXIS=DIMENSION",
        requires = "parallel",
        hide_short_help = true
    )]
    pub pin: Vec<String>,
    /// With --parallel, cluster file [default: measured]
    #[arg(long, value_name = "FILE", requires = "parallel")]
    pub cluster: Option<PathBuf>,
    #[command(flatten)]
    pub activations: Activations,
}

impl PlanFlags {
    /// Returns a flag that defines how the model is cut, if one was given.
    pub fn flag(&self) -> Option<String> {
        let plan = self.plan.as_ref().map(|path| format!("--plan {}", path.display()));
        let cuts = self.parallel.filter(|parallel| *parallel != Parallel::None);
        let name = |parallel: Parallel| Some(parallel.to_possible_value()?.get_name().to_owned());
        plan.or_else(|| Some(format!("--parallel {}", cuts.and_then(name)?)))
    }

    /// Refuses flags for making a plan if no plan is made.
    ///
    /// # Errors
    /// If one of them was given.
    pub fn refuse_requests(&self, why: &str, hint: &str) -> Result<()> {
        let pin = self.pin.first().map(|pin| format!("'{pin}'"));
        let cluster = self.cluster.as_ref().map(|path| path.display().to_string());
        refuse([("--pin", pin), ("--cluster", cluster)], why, hint)
    }
}

/// Flags of a training, and the checkpoint to resume from.
pub struct Typed<'a> {
    /// Flags of every training.
    pub settings: &'a Settings,
    /// Codec of gradients.
    pub codec: Option<&'a Codec>,
    /// Flags of a plan, or `None` for a command without plans.
    pub plan: Option<&'a PlanFlags>,
    /// Form of Adam, if it was given.
    pub optimizer: Option<Adam>,
    /// The way in which ranks train together, if it was given.
    pub mode: Option<Mode>,
    /// Whether the training may propose another mode.
    pub advises: bool,
    /// The checkpoint to resume from.
    pub resume: Option<Checkpoint>,
    /// The folder and the interval of new checkpoints, if any are written.
    pub policy: Option<thinwire_checkpoint::Policy>,
    /// Policies that adapt the training while it runs.
    pub policies: &'a [Spec],
}

/// Extent of automatic planning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Parallel {
    /// No plan: every rank has the whole model, and gradients travel by --codec
    None,
    /// Data parallelism: every rank has the whole model and a part of the batch
    Data,
    /// A plan for everything that --pin leaves open
    Semi,
    /// A plan for everything
    Auto,
}

/// Refuses the first of these flags that was given with a value.
///
/// # Errors
/// If any of them was given: its name, its value and the reason.
pub fn refuse<const N: usize>(
    flags: [(&str, Option<String>); N],
    why: &str,
    hint: &str,
) -> Result<()> {
    match flags.into_iter().find_map(|(flag, value)| Some((flag, value?))) {
        None => Ok(()),
        Some((flag, value)) => Err(hinted(anyhow!("{flag} {value} {why}"), hint)),
    }
}

/// The flags that decide what is learnt: equal recipes on equal data give equal losses.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = TRAINING)]
pub struct RecipeFlags {
    /// Model, by name or file [default: GPT of bytes]
    ///
    /// llama2-7b, llama:layers=2,..., model.json, model.onnx; `thinwire model show` lists all names. Without this
    /// flag, the model is a GPT of bytes, with the sizes that the flags below set.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// With --model or --plan, the name of its input of tokens
    ///
    /// Needed only if the model does not show which input it is.
    #[arg(long, value_name = "tokens=NAME", hide_short_help = true)]
    pub input: Option<Tokens>,
    /// Begin with the values of this safetensors file
    ///
    /// The file must contain every parameter, under its name and with its shape, as transformers writes
    /// it. Without this flag, values are drawn at random.
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
    /// Elements of an activation [default: 128]
    #[arg(long, value_name = "N")]
    pub width: Option<usize>,
    /// Transformer blocks [default: 4]
    #[arg(long, value_name = "N")]
    pub layers: Option<usize>,
    /// Attention heads; they divide the width [default: 4]
    #[arg(long, value_name = "N")]
    pub heads: Option<usize>,
    /// Bytes that a prediction is made from [default: 128]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Rows of a step, all ranks together [default: 16]
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Steps to train [default: 400]
    ///
    /// The default of `thinwire compare` is 120 steps with each codec.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub steps: Option<u64>,
    /// Seed of all random numbers [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Highest learning rate [default: 0.004]
    #[arg(long, value_name = "RATE")]
    pub lr: Option<f32>,
    /// Steps in which the rate rises [default: a tenth]
    ///
    /// The learning rate rises from 0 over this many steps; by default over a tenth of all steps, and at
    /// least 40.
    #[arg(long, value_name = "N")]
    pub lr_warmup_steps: Option<u64>,
    /// Greatest norm of a gradient, or 0 [default: 1]
    ///
    /// A longer averaged gradient is scaled down to this norm; 0 turns clipping off.
    #[arg(long, value_name = "NORM")]
    pub clip: Option<f32>,
    /// Precision of gradients before they are sent [default: f32]
    #[arg(long, value_enum, value_name = "DTYPE", help_heading = GRADIENTS, hide_short_help = true)]
    pub grad_dtype: Option<GradDtype>,
}

impl RecipeFlags {
    /// Returns the flags that define a model, with their values if given.
    pub fn sizes(&self) -> [(&'static str, Option<String>); 5] {
        let text = |size: Option<usize>| size.map(|size| size.to_string());
        [
            ("--model", self.model.clone()),
            ("--width", text(self.width)),
            ("--layers", text(self.layers)),
            ("--heads", text(self.heads)),
            ("--context", text(self.context)),
        ]
    }
}

/// Name of a model's input of tokens, as `tokens=NAME`.
#[derive(Clone, Debug)]
pub struct Tokens(pub String);

impl FromStr for Tokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Tokens, String> {
        match text.split_once('=') {
            Some(("tokens", name)) if !name.is_empty() => Ok(Tokens(name.to_owned())),
            _ => Err("expected tokens=NAME".to_owned()),
        }
    }
}

/// The precision of the gradients that leave a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GradDtype {
    /// Unchanged, as backward gives them
    F32,
    /// Matrices rounded to bf16, norms and biases in f32
    Bf16,
}

impl fmt::Display for GradDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no value is hidden").get_name())
    }
}

/// A codec, or a choice of codecs, with the typed text.
#[derive(Clone, Debug)]
pub struct Codec {
    /// The typed text.
    pub typed: String,
    /// The codec or choice of codecs.
    pub policy: Policy,
}

impl Default for Codec {
    fn default() -> Codec {
        Codec { typed: "auto".to_owned(), policy: Policy::Auto(Vec::new()) }
    }
}

impl FromStr for Codec {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Codec, UnknownPolicy> {
        Ok(Codec { typed: text.to_owned(), policy: text.parse()? })
    }
}

/// An algorithm, or `None` if the planner chooses one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AlgorithmFlag(pub Option<Summation>);

impl fmt::Display for AlgorithmFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(algorithm) => algorithm.fmt(f),
            None => f.write_str("auto"),
        }
    }
}

impl FromStr for AlgorithmFlag {
    type Err = String;

    fn from_str(name: &str) -> Result<AlgorithmFlag, String> {
        if name == "auto" {
            return Ok(AlgorithmFlag(None));
        }
        name.parse().map(Some).map(AlgorithmFlag).map_err(|error| format!("{error}, or auto"))
    }
}

/// Path of an output, or `None` for "none".
#[derive(Clone, Debug, PartialEq)]
pub struct PathFlag(pub Option<PathBuf>);

impl From<OsString> for PathFlag {
    fn from(text: OsString) -> PathFlag {
        PathFlag((text != "none").then(|| PathBuf::from(text)))
    }
}
