//! What was asked for: the plan's source, the text, and how it is learnt.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use thinwire_plan::output::PlanFile;
use thinwire_train::{Corpus, LearningRate};

use super::build::Built;
use crate::failure::{OrHint, hinted};
use crate::training::corpus;
use crate::training::plan::{Recipe, recipe};
use crate::training::settings::{GradDtype, RecipeFlags, Settings};

/// No plan has more bytes.
const BYTES_MAX: u64 = 1 << 26;

/// A planned training, as far as one process knows it.
pub struct Request {
    /// Where the plan was read.
    pub path: PathBuf,
    /// The plan and its model.
    pub built: Built,
    /// What is learnt, and how; the model and the batch are the plan's.
    pub recipe: Recipe,
    /// The text.
    pub corpus: Corpus,
    /// The rest of what was typed.
    pub settings: Settings,
    data: String,
}

impl Request {
    /// Reads the plan and the text, and checks what one process can check.
    ///
    /// # Errors
    /// If a file cannot be read, or flags say what the plan says already.
    pub fn resolve(settings: &Settings, plan: &Path) -> Result<Request> {
        check_flags(&settings.recipe)?;
        let built = Built::of(read(plan)?).with_context(|| plan.display().to_string())?;
        let (data, corpus) = corpus::read(settings.data.as_deref())?;
        let recipe = recipe(&settings.recipe, None)?;
        Ok(Request {
            path: plan.to_owned(),
            built,
            recipe,
            corpus,
            settings: settings.clone(),
            data,
        })
    }

    /// How many ranks are started unless somebody says it.
    pub fn usual_ranks(&self) -> u32 {
        self.built.plan.ranks() as u32
    }

    /// Refuses a world that the plan is not for.
    ///
    /// # Errors
    /// If it is for another number of ranks.
    pub fn check_world(&self, world: u32, said: &str) -> Result<()> {
        let (path, planned) = (&self.path, self.built.plan.ranks());
        if planned == world as usize {
            return Ok(());
        }
        let error = anyhow!("{} is for {planned} ranks, {said} {world}", path.display());
        Err(hinted(error, format!("start {planned} ranks, or make a plan for {world}")))
    }

    /// The learning rate, step by step.
    pub fn learning_rate(&self) -> LearningRate {
        let Recipe { lr, warmup, steps, .. } = self.recipe;
        LearningRate { peak: lr, floor: lr / 10.0, warmup_steps: warmup, steps }
    }

    /// What all ranks must have in common, by name.
    pub fn facts(&self) -> Vec<(String, String)> {
        let mut facts = vec![
            ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("data".to_owned(), self.corpus.fingerprint().to_owned()),
        ];
        let hash = thinwire_wire::checksum(self.built.file.text().as_bytes());
        facts.push(("plan".to_owned(), format!("{hash:08x}")));
        facts.extend(self.described());
        facts
    }

    /// What was set, by name.
    pub fn described(&self) -> Vec<(String, String)> {
        let Recipe { steps, seed, lr, warmup, .. } = &self.recipe;
        let file = &self.built.file;
        [
            ("model", file.model.clone()),
            (
                "batch",
                format!("{} rows of {} bytes, all ranks together", file.batch, file.sequence),
            ),
            ("mesh", format!("{} stages of {:?}", file.stage.len(), file.mesh)),
            ("micro-batches", file.micro_batches.to_string()),
            ("steps", steps.to_string()),
            ("seed", seed.to_string()),
            ("learning rate", lr.to_string()),
            ("warm-up", format!("{warmup} steps")),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// The text's name.
    pub fn data_in_words(&self) -> String {
        format!("{} ({})", self.data, self.corpus.fingerprint())
    }
}

fn read(path: &Path) -> Result<PlanFile> {
    let shown = path.display();
    let about = || format!("cannot read {shown}");
    let metadata = path.metadata().with_context(about)?;
    if !metadata.is_file() || metadata.len() > BYTES_MAX {
        let bytes = metadata.len();
        let error =
            anyhow!("{shown} of {bytes} bytes is no plan, expected a file of at most {BYTES_MAX}");
        return Err(hinted(error, "thinwire plan make --output FILE writes one"));
    }
    let text = std::fs::read_to_string(path).with_context(about)?;
    let file = PlanFile::parse(&text).with_context(|| shown.to_string());
    file.or_hint("thinwire plan make --output FILE writes one")
}

/// Refuses flags about what the plan decides.
fn check_flags(flags: &RecipeFlags) -> Result<()> {
    let RecipeFlags { width, layers, heads, context, batch, .. } = flags;
    let given = [
        ("width", width),
        ("layers", layers),
        ("heads", heads),
        ("context", context),
        ("batch", batch),
    ];
    if let Some((name, value)) = given.iter().find_map(|(name, value)| Some((name, (**value)?))) {
        let error = anyhow!("--{name} {value} with --plan, which has its model and batch");
        return Err(hinted(error, format!("leave --{name} out, or make another plan")));
    }
    match flags.grad_dtype {
        None | Some(GradDtype::F32) => Ok(()),
        Some(dtype) => Err(hinted(
            anyhow!("--grad-dtype {dtype:?} with --plan, whose gradients are F32"),
            "leave --grad-dtype out",
        )),
    }
}
