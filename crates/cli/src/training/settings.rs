//! The flags of a training, as they were typed.

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
use thinwire_train::checkpoint::Checkpoint;

use crate::codings::{Activations, within};
use crate::failure::hinted;
use crate::link;
use crate::metrics;
use crate::place::Flags;
use crate::size::{self, Size};

/// The flags that `train` and `compare` share. Settings that are not given come from the
/// checkpoint, if one is resumed, else from the defaults.
#[derive(clap::Args, Clone, Debug)]
pub struct Settings {
    /// A text file, a folder or a glob to learn from [default: this program's own sources]; for a model
    /// of images, a folder with a folder of .png or .jpg files for each class, or arrays of NumPy: a .npz
    /// with x [N, C, H, W] and y [N], or a folder with x.npy and y.npy
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Number of ranks to start on this machine, or MIN:MAX for an elastic job: it begins with MAX, and
    /// continues while ranks die, leave and join as long as there are MIN [default: 2]
    #[arg(long, value_name = "N", value_parser = size::up_to(256))]
    pub ranks: Option<Size>,
    /// Algorithm of the exchange: ring, two-shot, halving, gather, ring-gather, trees:2*0.0.0+1*1.1.1 (weights of
    /// trees, each with the parent of every rank), hierarchical:2:two-shot (units of 2 ranks, two-shot between
    /// them), auto [default: auto]
    #[arg(long, value_name = "NAME")]
    pub algorithm: Option<AlgorithmFlag>,
    /// With auto, the relative error, squared or absolute, with twice its excess of energy, that one
    /// encoding of a bucket may have; three times as much if it is gathered; less in the first 400 steps of a
    /// training. With --parallel, the mean error of all gradients, whatever the codec [default: 0.02]
    #[arg(long, value_name = "ERROR", value_parser = within(0.0..=f64::MAX, "a number of 0 or more"))]
    pub error_budget: Option<f64>,
    /// Error feedback: the codec's error is added to the next gradient (classic), ef21,
    /// average:BETA, decay:FACTOR; not for none, f16, bf16, intsgd and others that leave no residual
    /// [default: classic]
    #[arg(long, value_name = "KIND")]
    pub feedback: Option<Feedback>,
    /// Factor of momentum that is added up before encoding; the optimiser then has none
    #[arg(long, value_name = "FACTOR", value_parser = within(0.0_f32..1.0, "a number from 0 to below 1"))]
    pub momentum_correction: Option<f32>,
    /// Number of first steps that travel raw before the codec begins; auto has no such steps [default: 20 for
    /// powersgd, 50 for topk, blocktopk, dgc and graddrop, unless that exceeds a fifth of the steps]
    #[arg(long, value_name = "N")]
    pub warmup_steps: Option<u64>,
    /// Train with a codec from a file without checking the laws that `thinwire codec check` checks
    #[arg(long)]
    pub unchecked: bool,
    /// Size of a bucket of gradients, in bytes of f32 [default: a sixteenth of all]
    #[arg(long, value_name = "BYTES", value_parser = within(1024_usize..=1 << 30, "1024 to 1073741824"))]
    pub bucket_bytes: Option<usize>,
    /// Where the report goes, or none
    #[arg(long, default_value = "report.html", value_name = "PATH")]
    pub report: PathFlag,
    /// File for the times of every step's exchange, or under a plan for the times of rank 0's instructions,
    /// one line of JSON each
    #[arg(long, value_name = "PATH")]
    pub trace: Option<PathBuf>,
    /// Most batches on which the validation loss is measured, ten times in a training, and in the end the
    /// accuracy of a model of images; 0 for never
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16))]
    pub validation_batches: u16,
    /// Bytes of text that the trained model writes in the end, if it is one of text; 0 for none
    #[arg(long, default_value_t = 400, value_name = "BYTES", value_parser = clap::value_parser!(u16))]
    pub sample_bytes: u16,
    /// One JSON object per training on standard output
    #[arg(long)]
    pub json: bool,
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
    /// Returns a flag about how gradients travel beside their codec, if one was given.
    pub fn exchange_flag(&self) -> Option<String> {
        let feedback = self.feedback.filter(|feedback| *feedback != Feedback::default());
        let given = [
            self.algorithm.map(|value| format!("--algorithm {value}")),
            feedback.map(|value| format!("--feedback {value}")),
            self.momentum_correction.map(|value| format!("--momentum-correction {value}")),
            self.warmup_steps.map(|value| format!("--warmup-steps {value}")),
            self.bucket_bytes.map(|value| format!("--bucket-bytes {value}")),
        ];
        given.into_iter().flatten().next()
    }

    /// Returns the threads that one rank's arithmetic may use of this machine.
    pub fn threads(&self, place: &Place) -> usize {
        crate::ranks::threads(place)
    }

    /// The emulated bandwidth: what was asked for; else 100 Mbit/s between ranks that thinwire has started
    /// on one machine, which have no network between them, and none between others.
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

/// Returns the parser of flags that name a place of checkpoints: a folder, or `s3://BUCKET/PREFIX`.
///
/// # Errors
/// The parser refuses other addresses, which are no folders.
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
pub struct PlanFlags {
    /// Train the model of this plan as it says; `thinwire plan make --output FILE` writes one
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Plan the model's parallelism for these ranks, and train so; none continues without the plan of
    /// a checkpoint
    #[arg(long, value_enum, value_name = "HOW", conflicts_with = "plan")]
    pub parallel: Option<Parallel>,
    /// With --parallel semi, a cut that is decided: 'block.*.mlp.up: n=tp'; may be repeated
    #[arg(long, value_name = "NODES: AXIS=DIMENSION", requires = "parallel")]
    pub pin: Vec<String>,
    /// With --parallel, the ranks and their links [default: they are measured]
    #[arg(long, value_name = "FILE", requires = "parallel")]
    pub cluster: Option<PathBuf>,
    #[command(flatten)]
    pub activations: Activations,
}

impl PlanFlags {
    /// Returns the flag by which the model is to be cut, if one was given.
    pub fn flag(&self) -> Option<String> {
        let plan = self.plan.as_ref().map(|path| format!("--plan {}", path.display()));
        let cuts = self.parallel.filter(|parallel| *parallel != Parallel::None);
        let name = |parallel: Parallel| Some(parallel.to_possible_value()?.get_name().to_owned());
        plan.or_else(|| Some(format!("--parallel {}", cuts.and_then(name)?)))
    }

    /// Refuses flags of a plan that is to be made where none is made.
    ///
    /// # Errors
    /// If one was given.
    pub fn refuse_requests(&self, why: &str, hint: &str) -> Result<()> {
        let pin = self.pin.first().map(|pin| format!("'{pin}'"));
        let cluster = self.cluster.as_ref().map(|path| path.display().to_string());
        refuse([("--pin", pin), ("--cluster", cluster)], why, hint)
    }
}

/// Flags of a training, and the checkpoint that it resumes.
pub struct Typed<'a> {
    /// Flags of every training.
    pub settings: &'a Settings,
    /// Codec of gradients.
    pub codec: Option<&'a Codec>,
    /// Flags of a plan; none where a command has no plans.
    pub plan: Option<&'a PlanFlags>,
    /// How ranks train together, if it was said.
    pub mode: Option<Mode>,
    /// Whether another mode is to be proposed.
    pub advises: bool,
    /// Where training continues from.
    pub resume: Option<Checkpoint>,
    /// Whether and where it is frozen.
    pub policy: Option<thinwire_checkpoint::Policy>,
    /// Policies that adapt it while it runs.
    pub policies: &'a [Spec],
}

/// Extent of automatic planning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Parallel {
    /// No plan: every rank has the whole model, and gradients travel by --codec
    None,
    /// None of it: every rank has the whole model and a part of the batch
    Data,
    /// All that --pin does not say
    Semi,
    /// All of it
    Auto,
}

/// Refuses the first of these flags that was given with a value.
///
/// # Errors
/// If any was given: its name, its value and why it is refused.
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
#[command(next_help_heading = "Model and training")]
pub struct RecipeFlags {
    /// Model to train: llama2-7b, llama:layers=2,..., model.json, model.onnx; `thinwire model show`
    /// tells more [default: a GPT of bytes by the sizes below]
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// With --model or --plan, what the model calls its tokens, where that is not clear
    #[arg(long, value_name = "tokens=NAME")]
    pub input: Option<Tokens>,
    /// Begin with the values of this safetensors file, which has every parameter under its name and in
    /// its shape, as transformers writes it [default: values are drawn]
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
    /// Bytes of text that a prediction is made from [default: 128]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Rows per step, all ranks together [default: 16]
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Steps to train [default: 400, of `thinwire compare` 120 with each codec]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub steps: Option<u64>,
    /// The seed of everything random [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// The highest learning rate [default: 0.004]
    #[arg(long, value_name = "RATE")]
    pub lr: Option<f32>,
    /// Steps in which the learning rate rises [default: a tenth of the steps, at least 40]
    #[arg(long, value_name = "N")]
    pub warmup: Option<u64>,
    /// The greatest norm of the averaged gradient; 0 does not clip [default: 1]
    #[arg(long, value_name = "NORM")]
    pub clip: Option<f32>,
    /// Precision that gradients are rounded to before they leave [default: f32]
    #[arg(long, value_enum, value_name = "DTYPE")]
    pub grad_dtype: Option<GradDtype>,
}

impl RecipeFlags {
    /// The flags that name a model, with their values where they were given.
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
    /// As backward gives them
    F32,
    /// Matrices rounded to bf16, norms and biases in f32
    Bf16,
}

impl fmt::Display for GradDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no value is hidden").get_name())
    }
}

/// A codec, or a choice of codecs, with the text that was typed for it.
#[derive(Clone, Debug)]
pub struct Codec {
    /// The text that was typed.
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

/// An algorithm, or none: then the planner chooses.
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

/// Where to write something, or "none".
#[derive(Clone, Debug, PartialEq)]
pub struct PathFlag(pub Option<PathBuf>);

impl From<OsString> for PathFlag {
    fn from(text: OsString) -> PathFlag {
        PathFlag((text != "none").then(|| PathBuf::from(text)))
    }
}
