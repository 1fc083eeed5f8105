//! Request of a planned training: the plan's source, the text, and how the model learns.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use thinwire_plan::output::{PlanFile, counted, devices};
use thinwire_plan::search as planner;
use thinwire_train::checkpoint::Checkpoint;
use thinwire_train::{Corpus, LearningRate};

use super::build::Built;
use super::kept::KeptPlan;
use super::machines::Machines;
use super::make::{Asked, PlanRequest, name, travels};
use crate::failure::{OrHint, hinted};
use crate::training::job::{CheckpointPolicy, Recipe, kept_model, read_text, recipe};
use crate::training::settings::{GradDtype, RecipeFlags, Settings};
use crate::{file, source};

/// As many as --ranks can start.
const RANKS_MAX: usize = 256;

/// Where a plan comes from.
pub enum Source {
    /// A file or a checkpoint, with its plan and model, and what was asked for where it was made for a
    /// training.
    File(PathBuf, Box<Built>, Option<Asked>),
    /// It is made for the ranks that are there.
    Made(Box<PlanRequest>),
}

/// Checkpoint to resume from, and the policy for new ones.
pub type Frozen = (Option<Checkpoint>, Option<CheckpointPolicy>);

/// A planned training, as far as one process knows it.
pub struct Request {
    /// Where the plan comes from.
    pub source: Source,
    /// Settings of learning; the model and the batch are the plan's.
    pub recipe: Recipe,
    /// The text.
    pub corpus: Corpus,
    /// The rest of what was typed.
    pub settings: Settings,
    /// Where training goes on from.
    pub resume: Option<Checkpoint>,
    /// Whether and where it is frozen.
    pub policy: Option<CheckpointPolicy>,
    data: String,
}

impl Request {
    /// Reads the plan and the text, and checks what one process can check.
    ///
    /// # Errors
    /// If a file cannot be read, or flags say what the plan says already.
    pub fn of_file(settings: &Settings, plan: &Path, frozen: Frozen) -> Result<Request> {
        check_flags(&settings.recipe)?;
        check_exchange(settings)?;
        check_budget(settings)?;
        let tokens = settings.recipe.input.as_ref().map(|tokens| &tokens.0[..]);
        let built = Built::of(read(plan)?, tokens).with_context(|| plan.display().to_string())?;
        let source = Source::File(plan.to_owned(), Box::new(built), None);
        Request::new(settings, frozen, |_, _| Ok(source))
    }

    /// The plan that the checkpoint keeps.
    ///
    /// # Errors
    /// If the plan cannot be read, or flags set what it decides already.
    pub fn kept(settings: &Settings, kept: KeptPlan, frozen: Frozen) -> Result<Request> {
        let by_plan = "the checkpoint goes on by its plan";
        check_flags(&settings.recipe).context(by_plan)?;
        check_exchange(settings).context(by_plan)?;
        check_budget(settings).context(by_plan)?;
        Request::new(settings, frozen, |_, resumed| {
            let (path, built) = kept.built(settings, resumed)?;
            Ok(Source::File(path, Box::new(built), kept.asked))
        })
    }

    /// A plan that is to be made: by which search, with which decisions, for which machines.
    /// Options that are not given are those of the checkpoint; with none given, so is the plan.
    ///
    /// # Errors
    /// If a file cannot be read, a pin is none, or a codec is none that plans can hold.
    pub fn made(settings: &Settings, asked: Asked, frozen: Frozen) -> Result<Request> {
        check_dtype(&settings.recipe)?;
        check_exchange(settings)?;
        let cluster = asked.cluster.as_deref().map(Machines::read).transpose()?;
        let machines = cluster.as_ref().map(|machines| checksum(&machines.text));
        let asked = Asked { machines, ..asked };
        let given = settings.recipe.sizes_given();
        Request::new(settings, frozen, |recipe, resumed| {
            // A checkpoint knows its model, unless the user says another.
            let (model, sequence) = match resumed.and_then(kept_model).filter(|_| !given) {
                Some(kept) => (kept.name, kept.sequence),
                None => (name(&recipe.model), recipe.model.context()),
            };
            let kept = resumed.map(KeptPlan::of).transpose()?.flatten();
            let before = kept.as_ref().and_then(|kept| kept.asked.as_ref());
            let asked = before.map_or(asked.clone(), |before| asked.or(before));
            let decided = asked.settings()?;
            if let Some(kept) = kept.filter(|kept| kept.asked.as_ref() == Some(&asked)) {
                let (path, built) = kept.built(settings, resumed)?;
                if built.is_for((&model, sequence), recipe.batch, ranks(settings)?) {
                    return Ok(Source::File(path, Box::new(built), Some(asked)));
                }
            }
            check_pins(&decided, &model, sequence)?;
            let (parallel, batch, settings) = (asked.parallel, recipe.batch, decided);
            let request =
                PlanRequest { parallel, asked, settings, cluster, model, sequence, batch };
            Ok(Source::Made(Box::new(request)))
        })
    }

    fn new(
        settings: &Settings,
        (resume, policy): Frozen,
        source: impl FnOnce(&Recipe, Option<&Checkpoint>) -> Result<Source>,
    ) -> Result<Request> {
        let (settings, corpus, data) = read_text(settings, resume.as_ref())?;
        let recipe = recipe(&settings.recipe, resume.as_ref())?;
        let source = source(&recipe, resume.as_ref())?;
        Ok(Request { source, recipe, corpus, settings, resume, policy, data })
    }

    /// Returns the number of ranks that are started unless somebody says it.
    pub fn usual_ranks(&self) -> u32 {
        let ranks = match &self.source {
            Source::File(_, built, _) => built.plan.ranks(),
            Source::Made(request) => request.cluster.as_ref().map_or(2, |found| found.devices),
        };
        ranks.min(RANKS_MAX) as u32
    }

    /// The request, if the plan was made for this training or for the one that it resumes.
    pub fn asked(&self) -> Option<&Asked> {
        match &self.source {
            Source::File(_, _, asked) => asked.as_ref(),
            Source::Made(request) => Some(&request.asked),
        }
    }

    /// Refuses a world that the plan is not for.
    ///
    /// # Errors
    /// If it is for another number of ranks.
    pub fn check_world(&self, world: u32, said: &str) -> Result<()> {
        let ranks = world as usize;
        match &self.source {
            Source::File(path, built, _) if built.plan.ranks() != ranks => {
                let planned = built.plan.ranks();
                let error = anyhow!("{} is for {planned} ranks, {said} {world}", path.display());
                Err(hinted(error, start_hint(planned, &format!("make a plan for {world}"))))
            }
            Source::File(..) => Ok(()),
            Source::Made(request) => request.check_world(ranks, said),
        }
    }

    /// The learning rate, step by step.
    pub fn learning_rate(&self) -> LearningRate {
        let Recipe { lr, warmup, steps, .. } = self.recipe;
        LearningRate { peak: lr, floor: lr / 10.0, warmup_steps: warmup, steps }
    }

    /// Returns the facts, by name, that all ranks must have in common.
    pub fn facts(&self) -> Vec<(String, String)> {
        // Those without a plan are asked for their parameters first.
        let mut facts = vec![
            ("parameters".to_owned(), "those of a plan".to_owned()),
            ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("data".to_owned(), self.corpus.fingerprint().to_owned()),
        ];
        match &self.source {
            Source::File(_, built, _) => {
                facts.push(("plan".to_owned(), checksum(&built.file.text())));
            }
            Source::Made(request) => facts.extend(request.facts()),
        }
        let first = self.resume.as_ref().map_or(0, |found| found.manifest().progress.step);
        facts.push(("first step".to_owned(), first.to_string()));
        let folder = if self.policy.is_some() { "a folder" } else { "none" };
        facts.push(("--checkpoint-dir".to_owned(), folder.to_owned()));
        let every = self.policy.as_ref().and_then(|policy| policy.every);
        facts.push(("--checkpoint-every".to_owned(), format!("{every:?}")));
        let Recipe { steps, seed, lr, warmup, clip, .. } = &self.recipe;
        for (name, value) in [
            ("steps", steps.to_string()),
            ("seed", seed.to_string()),
            ("learning rate", lr.to_string()),
            ("warm-up", format!("{warmup} steps")),
            ("clip", clip.to_string()),
        ] {
            facts.push((name.to_owned(), value));
        }
        facts
    }

    /// Returns the settings by name.
    pub fn described(&self, file: &PlanFile) -> Vec<(String, String)> {
        let Recipe { steps, seed, lr, warmup, clip, .. } = &self.recipe;
        let rows = format!("{} rows of {} bytes, all ranks together", file.batch, file.sequence);
        [
            ("model", file.model.clone()),
            ("batch", rows),
            ("mesh", format!("{} of {}", counted(file.stage.len(), "stage"), devices(&file.mesh))),
            ("micro-batches", file.micro_batches.to_string()),
            ("encoded", travels(file)),
            ("steps", steps.to_string()),
            ("seed", seed.to_string()),
            ("learning rate", lr.to_string()),
            ("warm-up", format!("{warmup} steps")),
            ("clip", clip.to_string()),
            ("data", format!("{} ({})", self.data, self.corpus.fingerprint())),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

/// Returns a hint: how so many ranks are started, and what else can be done.
pub(super) fn start_hint(ranks: usize, other: &str) -> String {
    match ranks <= RANKS_MAX {
        true => format!("start {ranks} ranks, or {other}"),
        false => format!(
            "start every rank by itself with --rank, --world {ranks} and --coordinator, or by torchrun, mpirun or srun; or {other}"
        ),
    }
}

/// The number of ranks, if it is given.
fn ranks(settings: &Settings) -> Result<Option<u32>> {
    Ok(settings.place.find()?.map(|place| place.world).or(settings.ranks))
}

/// A file, for ranks to compare.
pub(super) fn checksum(text: &str) -> String {
    format!("a file with checksum {:08x}", thinwire_wire::checksum(text.as_bytes()))
}

fn read(path: &Path) -> Result<PlanFile> {
    let text = file::text(path, &file::PLAN)?;
    PlanFile::parse(&text).with_context(|| path.display().to_string()).or_hint(file::PLAN.hint)
}

/// Refuses pins that the model has no node for, before ranks are started and measured.
fn check_pins(settings: &planner::Settings, model: &str, sequence: usize) -> Result<()> {
    if settings.pins.is_empty() {
        return Ok(());
    }
    let source = source::Source::open(model)?;
    let graph = source.graph(source.fixed_batch()?.unwrap_or(1), sequence)?;
    Ok(planner::check_pins(&graph, &settings.pins)?)
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
    if let Some(model) = &flags.model {
        let error = anyhow!("--model {model} with --plan, which has its model and batch");
        return Err(hinted(error, "leave --model out, or make another plan"));
    }
    if let Some((name, value)) = given.iter().find_map(|(name, value)| Some((name, (**value)?))) {
        let error = anyhow!("--{name} {value} with --plan, which has its model and batch");
        return Err(hinted(error, format!("leave --{name} out, or make another plan")));
    }
    check_dtype(flags)
}

/// Refuses flags about an exchange that planned trainings do not have.
fn check_exchange(settings: &Settings) -> Result<()> {
    let usual = thinwire_sync::Options::default();
    let Settings { algorithm, feedback, momentum_correction, warmup_steps, bucket_bytes, .. } =
        settings;
    let feedback = feedback.filter(|feedback| *feedback != usual.feedback);
    let given = [
        algorithm.and_then(|flag| flag.0).map(|value| format!("--algorithm {value}")),
        feedback.map(|value| format!("--feedback {value}")),
        momentum_correction.map(|value| format!("--momentum-correction {value}")),
        warmup_steps.map(|value| format!("--warmup-steps {value}")),
        bucket_bytes.map(|value| format!("--bucket-bytes {value}")),
    ];
    match given.into_iter().flatten().next() {
        None => Ok(()),
        Some(flag) => {
            let error = anyhow!("{flag} with a plan, which says itself how gradients travel");
            Err(hinted(error, "leave it out, or train without --plan and --parallel"))
        }
    }
}

/// Refuses a budget for a plan that was made within one.
fn check_budget(settings: &Settings) -> Result<()> {
    let usual = thinwire_sync::Options::default().error_budget;
    let Some(budget) = settings.error_budget.filter(|given| *given != usual) else {
        return Ok(());
    };
    let error = anyhow!("--error-budget {budget} with --plan, which was made within its own");
    Err(hinted(error, "leave it out, or make another plan"))
}

/// A choice as flags are written.
fn spelled(dtype: GradDtype) -> String {
    format!("{dtype:?}").to_lowercase()
}

fn check_dtype(flags: &RecipeFlags) -> Result<()> {
    match flags.grad_dtype {
        None | Some(GradDtype::F32) => Ok(()),
        Some(dtype) => Err(hinted(
            anyhow!("--grad-dtype {} with --plan, whose gradients are f32", spelled(dtype)),
            "leave --grad-dtype out",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_ranks_than_one_command_starts_are_started_one_by_one() {
        assert_eq!(start_hint(256, "less"), "start 256 ranks, or less");
        assert!(start_hint(257, "less").contains("--rank, --world 257 and --coordinator"));
    }
}
