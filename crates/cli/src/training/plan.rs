//! A training resolved: what the flags, a checkpoint and the defaults mean together.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use thinwire_job::Place;
use thinwire_model::fingerprint;
use thinwire_schedule::Algorithm;
use thinwire_sync::Momentum;
use thinwire_train::checkpoint::{self, Checkpoint};
use thinwire_train::spmd::Derived;
use thinwire_train::{
    AdamWOptions, Config, Corpus, Gradients, LearningRate, Model as _, Parameter,
};

use super::corpus;
use super::model::{self, Model};
use super::settings::{GradDtype, RecipeFlags, Settings, Tokens};
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
    /// What gradients are rounded to before they leave.
    pub grad_dtype: GradDtype,
}

/// Where and how often training is frozen.
#[derive(Clone, Debug)]
pub struct Keep {
    /// The folder of the checkpoints.
    pub folder: PathBuf,
    /// After how many steps one is written; the last step writes one anyway.
    pub every: Option<u64>,
}

/// What all ranks follow.
pub struct Plan {
    /// The text.
    pub corpus: Corpus,
    /// The text's name.
    pub data: String,
    /// What is learnt, and how.
    pub recipe: Recipe,
    /// Who sends what to whom; chosen by the planner if there is none.
    pub algorithm: Option<Algorithm>,
    /// The size of a bucket of gradients.
    pub bucket_bytes: usize,
    /// The rest of what was typed.
    pub settings: Settings,
    /// Where training goes on from.
    pub resume: Option<Checkpoint>,
    /// Whether and where it is frozen.
    pub keep: Option<Keep>,
}

/// The most bytes that a step predicts, all ranks together.
const TOKENS_MAX: usize = 1 << 24;

/// What a training starts from unless it is told otherwise: two minutes on two cores.
const DEFAULT: Recipe = Recipe {
    model: Model::Sizes(Config { context: 128, width: 128, layers: 4, heads: 4 }),
    batch: 16,
    steps: 400,
    seed: 1,
    lr: 4e-3,
    warmup: 40,
    clip: 1.0,
    grad_dtype: GradDtype::F32,
};

impl Plan {
    /// Reads the data and the checkpoint, and checks all that one process can check.
    ///
    /// # Errors
    /// If anything is missing, damaged or impossible.
    pub fn resolve(
        settings: &Settings,
        resume: Option<&PathBuf>,
        keep: Option<Keep>,
    ) -> Result<Plan> {
        let resume = resume.map(|path| checkpoint::resolve(path)).transpose()?;
        resume.as_ref().map_or(Ok(()), check_unplanned)?;
        let recipe = recipe(&settings.recipe, resume.as_ref())?;
        if let (Some(Tokens(name)), Model::Sizes(_)) = (&settings.recipe.input, &recipe.model) {
            let error = anyhow!("--input tokens={name} without --model or --plan");
            return Err(hinted(error, "leave it out: the usual model knows its tokens"));
        }
        // Impossible models are found before any rank is started.
        let parameters = recipe.model.smallest()?.parameters().to_vec();
        let (data, corpus) = corpus::read(settings.data.as_deref())?;
        if let Some(checkpoint) = &resume {
            check_data(checkpoint, &corpus)?;
        }
        Ok(Plan {
            corpus,
            data,
            recipe,
            algorithm: settings.algorithm.0,
            bucket_bytes: settings.bucket_bytes.unwrap_or_else(|| bucket_bytes(&parameters)),
            settings: settings.clone(),
            resume,
            keep,
        })
    }

    /// How many ranks to start here: as many as were asked for or as the checkpoint had.
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

    /// What the trainer wants to know.
    pub fn options(&self) -> thinwire_train::Options {
        let Recipe { lr, warmup, steps, clip, grad_dtype, .. } = self.recipe;
        let adamw = AdamWOptions::default();
        // Momentum is added up once: before encoding, or here.
        let beta1 = if self.momentum().is_some() { 0.0 } else { adamw.beta1 };
        thinwire_train::Options {
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
        self.settings.momentum_correction.map(corrected)
    }

    /// What all ranks must have in common, by name.
    pub fn facts(&self) -> Vec<(String, String)> {
        let step = self.resume.as_ref().map_or(0, |checkpoint| checkpoint.manifest().progress.step);
        let mut facts = vec![
            ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("data".to_owned(), self.corpus.fingerprint().to_owned()),
            ("first step".to_owned(), step.to_string()),
        ];
        let every = self.keep.as_ref().and_then(|keep| keep.every);
        let every = every.map_or("none".to_owned(), |every| every.to_string());
        let folder = if self.keep.is_some() { "a folder" } else { "none" };
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
        settings.push(("bucket bytes".to_owned(), self.bucket_bytes.to_string()));
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

/// Small enough that the last bucket, which nothing hides, is a small part of all; large enough
/// that a message is worth its header and a wake-up.
fn bucket_bytes(parameters: &[Parameter]) -> usize {
    let elements: usize = parameters.iter().map(Parameter::elements).sum();
    (4 * elements / 16).clamp(64 << 10, 4 << 20)
}

/// Flags before the checkpoint before the defaults; what a checkpoint fixes cannot be changed.
pub(super) fn recipe(flags: &RecipeFlags, resume: Option<&Checkpoint>) -> Result<Recipe> {
    let kept = resume.map(kept_recipe).transpose()?;
    let base = kept.as_ref().unwrap_or(&DEFAULT);
    let model = Model::of(flags, &base.model)?;
    let fixed = resume.is_some_and(|checkpoint| kept_model(checkpoint).is_none());
    if fixed && !model.is(&base.model) {
        let (found, expected) = (model.describe(), base.model.describe());
        let error = anyhow!("the checkpoint's model has {expected}, the flags say {found}");
        return Err(hinted(error, "leave the model's flags out when resuming"));
    }
    let steps = flags.steps.unwrap_or(base.steps);
    let warmup = match (&kept, flags.steps) {
        (None, Some(steps)) => steps.div_ceil(10),
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
    /// How the plan calls it.
    #[serde(rename = "model")]
    pub name: String,
    /// Tokens of its sequences.
    pub sequence: usize,
    /// Its fingerprint for one such sequence.
    pub identity: String,
    /// What it calls its tokens, where that is not clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<String>,
}

impl KeptModel {
    /// The model to write a text of so many bytes.
    fn writer(&self, bytes: usize) -> Result<Derived> {
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

/// What a planned checkpoint keeps of how it was trained: the batch is the plan's, and so is the
/// model, which need not be a GPT.
pub fn planned_config(recipe: &Recipe, batch: usize, model: &KeptModel) -> serde_json::Value {
    let mut recipe = serde_json::json!(Recipe { batch, ..recipe.clone() });
    recipe.as_object_mut().and_then(|fields| fields.remove("model"));
    let mut config = serde_json::json!(model);
    config["recipe"] = recipe;
    config
}

/// The model of a checkpoint to write a text of so many bytes.
///
/// # Errors
/// If it is impossible, no model of text, or its file is another one than it was.
pub fn kept_writer(checkpoint: &Checkpoint, bytes: usize) -> Result<Derived> {
    match kept_model(checkpoint) {
        Some(kept) => kept.writer(bytes),
        None => kept_recipe(checkpoint)?.model.writer(bytes),
    }
}

/// Refuses a checkpoint whose parameters lie in parts.
fn check_unplanned(checkpoint: &Checkpoint) -> Result<()> {
    let Some(kept) = kept_model(checkpoint) else { return Ok(()) };
    let (path, model) = (checkpoint.path().display(), kept.name);
    let ranks = checkpoint.manifest().progress.world;
    let error = anyhow!("{path} is of a planned training of {model}, in parts of {ranks} ranks");
    Err(hinted(error, "go on with --plan FILE or --parallel auto"))
}

/// What to say where the text comes otherwise than before a checkpoint: batch, sequence and seed.
pub fn changes(before: (usize, usize, u64), now: (usize, usize, u64)) -> Option<String> {
    let told = |(batch, sequence, seed): (usize, usize, u64)| {
        format!("batch {batch}, sequences of {sequence} and seed {seed}")
    };
    (before != now).then(|| {
        let (before, now) = (told(before), told(now));
        format!("warning: the checkpoint was trained with {before}, this goes on with {now}: the text comes in another order")
    })
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

pub(super) fn check_data(checkpoint: &Checkpoint, corpus: &Corpus) -> Result<()> {
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
        assert_eq!((found.steps, found.warmup), (31, 4));
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
