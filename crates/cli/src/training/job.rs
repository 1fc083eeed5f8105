//! A training resolved: what the flags, a checkpoint and the defaults mean together.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use thinwire_job::Place;
use thinwire_model::fingerprint;
use thinwire_sync::{Momentum, Policy};
use thinwire_train::checkpoint::Checkpoint;
use thinwire_train::spmd::GraphModel;
use thinwire_train::{AdamWOptions, Config, Corpus, Gradients, LearningRate};

use super::corpus;
use super::exchange::{Exchange, differences};
use super::model::{self, Model, Named};
use super::settings::{Codec, GradDtype, RecipeFlags, Settings, Tokens};
use crate::failure::{OrHint, hinted};
use crate::report::{Report, Run};
use crate::source::Source;

/// Everything that decides what is learnt, apart from data and codec. A checkpoint keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// The model; where a plan has it, nothing.
    #[serde(default = "usual_model")]
    pub model: Model,
    /// Rows per step, all ranks together.
    pub batch: usize,
    /// All steps, those before a checkpoint included.
    pub steps: u64,
    /// The seed of everything random.
    pub seed: u64,
    /// The highest learning rate.
    pub lr: f32,
    /// Steps in which it rises.
    pub warmup: u64,
    /// The greatest norm of the averaged gradient; 0 does not clip.
    pub clip: f32,
    /// Precision that gradients are rounded to before they leave.
    pub grad_dtype: GradDtype,
}

/// Where and how often training is frozen.
#[derive(Clone, Debug)]
pub struct CheckpointPolicy {
    /// The folder of the checkpoints.
    pub folder: PathBuf,
    /// After how many steps one is written; the last step writes one anyway.
    pub every: Option<u64>,
}

/// Training job that all ranks follow.
pub struct TrainingJob {
    /// The text.
    pub corpus: Corpus,
    /// The text's name.
    pub data: String,
    /// Model, and how it learns.
    pub recipe: Recipe,
    /// The options of the gradients' exchange.
    pub exchange: Exchange,
    /// The exchange's codec.
    pub codec: Policy,
    /// The rest of what was typed.
    pub settings: Settings,
    /// Where training goes on from.
    pub resume: Option<Checkpoint>,
    /// Whether and where it is frozen.
    pub policy: Option<CheckpointPolicy>,
    /// The exchange that the checkpoint keeps.
    kept: Option<Exchange>,
}

/// The most bytes that a step predicts, all ranks together.
const TOKENS_MAX: usize = 1 << 24;

/// The manifest's key for the path of the text.
pub(super) const TEXT: &str = "text";

/// The default number of steps in which the learning rate rises, for any short training: in the
/// first steps Adam's means of squares are those of a few gradients, and at the full rate losses
/// jump.
const WARMUP_MIN: u64 = 40;

/// Defaults of a training: two minutes on two cores.
const DEFAULT: Recipe = Recipe {
    model: Model::Sizes(Config { context: 128, width: 128, layers: 4, heads: 4 }),
    batch: 16,
    steps: 400,
    seed: 1,
    lr: 4e-3,
    warmup: WARMUP_MIN,
    clip: 1.0,
    grad_dtype: GradDtype::F32,
};

impl TrainingJob {
    /// Reads the data and the checkpoint, and checks all that one process can check.
    ///
    /// # Errors
    /// If anything is missing, damaged or impossible.
    pub fn resolve(
        settings: &Settings,
        codec: Option<&Codec>,
        (resume, policy): (Option<Checkpoint>, Option<CheckpointPolicy>),
    ) -> Result<TrainingJob> {
        let planned = resume.as_ref().and_then(kept_model).map(KeptModel::model);
        let recipe = recipe_of(&settings.recipe, resume.as_ref(), planned)?;
        if let (Some(Tokens(name)), Model::Sizes(_)) = (&settings.recipe.input, &recipe.model) {
            let error = anyhow!("--input tokens={name} without --model or --plan");
            return Err(hinted(error, "leave it out: the usual model knows its tokens"));
        }
        // Impossible models are found before any rank is started.
        let parameters = recipe.model.smallest()?.parameters().to_vec();
        let (settings, corpus, data) = read_text(settings, resume.as_ref())?;
        let kept = resume.as_ref().map(Exchange::kept).transpose()?.flatten();
        let before = (kept.as_ref(), &parameters[..]);
        let (exchange, codec) = Exchange::resolve(&settings, codec, before)?;
        Ok(TrainingJob { corpus, data, recipe, exchange, codec, settings, resume, policy, kept })
    }

    /// Notices for a training that resumes with `world` ranks: differences from its checkpoint, and
    /// settings that the checkpoint does not record.
    pub fn said_of_resuming(&self, world: u32) -> Result<Vec<String>> {
        let Some(checkpoint) = &self.resume else { return Ok(Vec::new()) };
        let mut before = kept_recipe(checkpoint)?.told();
        let mut now = self.recipe.told();
        before.push(("ranks", checkpoint.manifest().progress.world.to_string()));
        now.push(("ranks", world.to_string()));
        let exchange = self.exchange.described();
        let assumed = match &self.kept {
            Some(kept) => {
                before.extend(kept.described());
                now.extend(exchange);
                None
            }
            None if checkpoint.is_sharded() => Some(
                "the checkpoint is of a planned training: what its codecs still owed is dropped"
                    .to_owned(),
            ),
            None => Some(assumed(&exchange)),
        };
        Ok(differences(before, now).into_iter().chain(assumed).collect())
    }

    /// Returns the number of ranks to start here: that of the flags, or that of the checkpoint.
    pub fn ranks(&self) -> Option<u32> {
        let resumed = self.resume.as_ref().map(|checkpoint| checkpoint.manifest().progress.world);
        self.settings.ranks.or(resumed)
    }

    /// Refuses a world that cannot share the batch.
    ///
    /// # Errors
    /// If the batch is not a multiple of the ranks.
    pub fn check_world(&self, ranks: u32) -> Result<()> {
        check_batch(self.recipe.batch, ranks as usize)
    }

    /// Returns the trainer's options.
    pub fn options(&self) -> thinwire_train::Options {
        let Recipe { lr, warmup, steps, clip, grad_dtype, .. } = self.recipe;
        let adamw = AdamWOptions::default();
        // Momentum is added up once: before encoding, or here.
        let beta1 = if self.momentum().is_some() { 0.0 } else { adamw.beta1 };
        thinwire_train::Options {
            micro_batches: 1,
            adamw: AdamWOptions { beta1, ..adamw },
            learning_rate: LearningRate { peak: lr, floor: lr / 10.0, warmup_steps: warmup, steps },
            gradient_norm_max: (clip > 0.0).then_some(clip),
            gradients: match grad_dtype {
                GradDtype::F32 => Gradients::F32,
                GradDtype::Bf16 => Gradients::MixedBf16,
            },
        }
    }

    /// Momentum correction, if it was asked for.
    pub fn momentum(&self) -> Option<Momentum> {
        let corrected = |factor| Momentum { factor, ..Momentum::default() };
        self.exchange.momentum_correction.map(corrected)
    }

    /// Returns the facts, by name, that all ranks must have in common.
    pub fn facts(&self) -> Vec<(String, String)> {
        let step = self.resume.as_ref().map_or(0, |checkpoint| checkpoint.manifest().progress.step);
        let mut facts = vec![
            ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("data".to_owned(), self.corpus.fingerprint().to_owned()),
            ("first step".to_owned(), step.to_string()),
        ];
        let every = self.policy.as_ref().and_then(|policy| policy.every);
        let every = every.map_or("none".to_owned(), |every| every.to_string());
        let folder = if self.policy.is_some() { "a folder" } else { "none" };
        facts.push(("--checkpoint-dir".to_owned(), folder.to_owned()));
        facts.push(("--checkpoint-every".to_owned(), every));
        facts.extend(self.described());
        facts
    }

    /// The report of `runs`.
    pub fn report(&self, place: &Place, runs: Vec<Run>) -> Report {
        let mut settings = self.described();
        settings
            .push(("data".to_owned(), format!("{} ({})", self.data, self.corpus.fingerprint())));
        settings.push(("bucket bytes".to_owned(), self.exchange.bucket_bytes.to_string()));
        self.settings.report(place, settings, runs)
    }

    fn described(&self) -> Vec<(String, String)> {
        let Recipe { model, batch, steps, seed, lr, warmup, clip, grad_dtype } = &self.recipe;
        let grad_dtype = format!("{grad_dtype:?}").to_lowercase();
        [
            ("model", model.describe()),
            ("batch", format!("{batch} rows, all ranks together")),
            ("steps", steps.to_string()),
            ("seed", seed.to_string()),
            ("learning rate", lr.to_string()),
            ("warm-up", format!("{warmup} steps")),
            ("clip", clip.to_string()),
            ("gradient dtype", grad_dtype),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

impl Recipe {
    /// Settings in which a resumed training may differ from its checkpoint, by name.
    pub(super) fn told(&self) -> Vec<(&'static str, String)> {
        let Recipe { model: _, batch, steps, seed, lr, warmup, clip, grad_dtype } = self;
        vec![
            ("batch", batch.to_string()),
            ("steps", steps.to_string()),
            ("seed", seed.to_string()),
            ("learning rate", lr.to_string()),
            ("warm-up", warmup.to_string()),
            ("clip", clip.to_string()),
            ("gradient dtype", format!("{grad_dtype:?}").to_lowercase()),
        ]
    }
}

/// A notice for a checkpoint that does not record how its gradients travelled.
fn assumed(exchange: &[(&str, String)]) -> String {
    let values: Vec<String> =
        exchange.iter().map(|(name, value)| format!("{name} {value}")).collect();
    format!(
        "the checkpoint, of an earlier version, does not tell how its gradients travelled: this goes \
         on with {}",
        values.join(", ")
    )
}

/// Settings with the text that they name, or that the checkpoint was trained on, and its name.
pub(super) fn read_text(
    settings: &Settings,
    resume: Option<&Checkpoint>,
) -> Result<(Settings, Corpus, String)> {
    let kept = resume.and_then(|checkpoint| {
        let text = &checkpoint.manifest().progress.config[TEXT];
        text.as_str().map(PathBuf::from)
    });
    let given = settings.data.is_some();
    let path = settings.data.clone().or(kept);
    let read = corpus::read(path.as_deref());
    let (data, corpus) = match (given, &path) {
        (false, Some(_)) => {
            read.or_hint("the checkpoint was trained on it: say with --data where it is now")?
        }
        _ => read?,
    };
    if let Some(checkpoint) = resume {
        check_data(checkpoint, &corpus)?;
    }
    Ok((Settings { data: path, ..settings.clone() }, corpus, data))
}

/// Resolves a recipe: flags before the checkpoint before the defaults. A plan says its model itself.
pub(super) fn recipe(flags: &RecipeFlags, resume: Option<&Checkpoint>) -> Result<Recipe> {
    recipe_of(flags, resume, None)
}

/// Resolves a recipe; `planned` is the model of a checkpoint under a plan that is trained without one.
/// The model of a checkpoint cannot be changed.
fn recipe_of(
    flags: &RecipeFlags,
    resume: Option<&Checkpoint>,
    planned: Option<Model>,
) -> Result<Recipe> {
    let kept = resume.map(kept_recipe).transpose()?;
    let base = kept.as_ref().unwrap_or(&DEFAULT);
    let fixed =
        planned.is_some() || resume.is_some_and(|checkpoint| kept_model(checkpoint).is_none());
    let before = planned.as_ref().unwrap_or(&base.model);
    let model = Model::of(flags, before)?;
    if fixed && !model.is(before) {
        let (found, expected) = (model.describe(), before.describe());
        let error = anyhow!("the checkpoint's model has {expected}, the flags say {found}");
        return Err(hinted(error, "leave the model's flags out when resuming"));
    }
    let steps = flags.steps.unwrap_or(base.steps);
    let warmup = match (&kept, flags.steps) {
        (None, Some(steps)) => steps.div_ceil(10).max(WARMUP_MIN),
        _ => base.warmup,
    };
    let recipe = Recipe {
        model,
        batch: flags.batch.unwrap_or(base.batch),
        steps,
        seed: flags.seed.unwrap_or(base.seed),
        lr: flags.lr.unwrap_or(base.lr),
        warmup: flags.warmup.unwrap_or(warmup),
        clip: flags.clip.unwrap_or(base.clip),
        grad_dtype: flags.grad_dtype.unwrap_or(base.grad_dtype),
    };
    for (flag, value) in [("--lr", recipe.lr), ("--clip", recipe.clip)] {
        let message = format!("{flag} {value}, expected 0 or more");
        ensure_or_hint(value.is_finite() && value >= 0.0, message, "leave it out for the default")?;
    }
    check_tokens(recipe.batch, recipe.model.context())?;
    if let Some(checkpoint) = resume {
        let done = checkpoint.manifest().progress.step;
        let nothing =
            format!("the checkpoint has {done} steps already, and {} were asked for", recipe.steps);
        ensure_or_hint(done < recipe.steps, nothing, "give more --steps")?;
    }
    Ok(recipe)
}

/// Refuses a batch of which ranks cannot have equal parts.
///
/// # Errors
/// If the batch is not a multiple of the ranks.
pub(super) fn check_batch(batch: usize, ranks: usize) -> Result<()> {
    if batch.is_multiple_of(ranks) && batch > 0 {
        return Ok(());
    }
    let multiple = batch.next_multiple_of(ranks).max(ranks);
    Err(anyhow!("batch of {batch} rows does not divide among {ranks} ranks"))
        .or_hint(format!("--batch {multiple}, for instance"))
}

fn check_tokens(batch: usize, context: usize) -> Result<()> {
    let fits = batch.checked_mul(context).is_some_and(|tokens| tokens <= TOKENS_MAX);
    let message = format!(
        "batch of {batch} rows of {context} bytes, expected at most {TOKENS_MAX} bytes together"
    );
    ensure_or_hint(fits, message, "give a smaller --batch or --context")
}

fn ensure_or_hint(holds: bool, message: String, hint: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(hinted(anyhow!(message), hint)) }
}

/// The model of a planned training, as its checkpoints keep it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeptModel {
    /// Name of the model in the plan.
    #[serde(rename = "model")]
    pub name: String,
    /// Tokens of its sequences.
    pub sequence: usize,
    /// Fingerprint for one sequence of this length.
    pub identity: String,
    /// Name of the input of tokens, where that is not clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<String>,
}

impl KeptModel {
    /// Returns the model to train it without a plan.
    fn model(self) -> Model {
        let KeptModel { name, sequence: context, identity, tokens } = self;
        Model::Named(Named { name, context, tokens, identity })
    }

    /// The model to write a text of so many bytes.
    fn writer(&self, bytes: usize) -> Result<GraphModel> {
        let source = Source::open(&self.name)?;
        let found = format!("{:016x}", fingerprint(&source.graph(1, self.sequence)?));
        let (name, expected) = (&self.name, &self.identity);
        let message = format!("{name} has the fingerprint {found}, the checkpoint's {expected}");
        ensure_or_hint(found == *expected, message, "give the model's file as it was")?;
        model::writer(&source, (self.sequence, self.tokens.as_deref()), bytes)
    }
}

/// The model that a planned checkpoint keeps; none if it was trained without a plan.
pub fn kept_model(checkpoint: &Checkpoint) -> Option<KeptModel> {
    serde_json::from_value(checkpoint.manifest().progress.config.clone()).ok()
}

/// The model of a checkpoint to write a text of so many bytes.
///
/// # Errors
/// If it is impossible, no model of text, or its file is another one than it was.
pub fn kept_writer(checkpoint: &Checkpoint, bytes: usize) -> Result<GraphModel> {
    match kept_model(checkpoint) {
        Some(kept) => kept.writer(bytes),
        None => kept_recipe(checkpoint)?.model.writer(bytes),
    }
}

/// Returns the model of a checkpoint, with a plan or without, to compare it with a plan's.
///
/// # Errors
/// If the checkpoint has no recipe of this version, or the model's file is another one.
pub fn model_of(checkpoint: &Checkpoint) -> Result<KeptModel> {
    kept_model(checkpoint).map_or_else(|| kept_recipe(checkpoint)?.model.kept(), Ok)
}

fn usual_model() -> Model {
    DEFAULT.model
}

/// The recipe that a checkpoint keeps.
pub fn kept_recipe(checkpoint: &Checkpoint) -> Result<Recipe> {
    let config = checkpoint.manifest().progress.config["recipe"].clone();
    serde_json::from_value(config)
        .with_context(|| format!("{} keeps no recipe of this version", checkpoint.path().display()))
}

fn check_data(checkpoint: &Checkpoint, corpus: &Corpus) -> Result<()> {
    let (expected, found) = (&checkpoint.manifest().progress.data, corpus.fingerprint());
    let message = format!("the checkpoint was trained on other data: {expected}, this is {found}");
    ensure_or_hint(expected == found, message, "give the same --data as before")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_come_before_defaults_and_warm_up_follows_the_steps() {
        assert_eq!(recipe(&RecipeFlags::default(), None).unwrap(), DEFAULT);
        let flags = RecipeFlags { steps: Some(31), width: Some(64), ..RecipeFlags::default() };
        let found = recipe(&flags, None).unwrap();
        assert_eq!((found.steps, found.warmup), (31, 40));
        let long = RecipeFlags { steps: Some(4_000), ..RecipeFlags::default() };
        assert_eq!(recipe(&long, None).unwrap().warmup, 400);
        assert!(found.model.describe().starts_with("width 64, 4 layers"));
        let refused = |flags| recipe(&flags, None).unwrap_err().to_string();
        for lr in [f32::NAN, -1.0] {
            let error = refused(RecipeFlags { lr: Some(lr), ..RecipeFlags::default() });
            assert_eq!(error, format!("--lr {lr}, expected 0 or more"));
        }
        for batch in [1 << 20, usize::MAX] {
            let error = refused(RecipeFlags { batch: Some(batch), ..RecipeFlags::default() });
            assert!(error.ends_with("expected at most 16777216 bytes together"), "{error}");
        }
    }
}
