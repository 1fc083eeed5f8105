//! Parallelism of a training: replicas of the whole model, or a plan that cuts it. The plan comes from a file
//! or a checkpoint, or is made at the start of the training.

mod built;
mod calibrate;
mod footprint;
mod links;
mod machines;
mod make;

pub use built::{Built, KeptPlan, PLANNED};
pub use calibrate::cluster as calibrate;
pub use machines::checksum;
pub use make::{Asked, travels};

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use thinwire_collective::Group;
use thinwire_link::Bandwidth;
use thinwire_model::Graph;
use thinwire_plan::report::PlanFile;
use thinwire_plan::search::{self, check_pins};
use thinwire_train::checkpoint::Checkpoint;
use thinwire_train::spmd::Modality;
use thinwire_train::{Parameter, rows};

use super::model::{self, Model};
use super::recipe::{Recipe, check_batch};
use super::settings::{Codec, Parallel, PlanFlags, RecipeFlags, Settings, Typed, refuse};
use crate::failure::{OrHint, hinted};
use crate::size::Size;
use crate::{codings, file, source};
use machines::{Machines, RANKS_MAX, start_hint};
use make::PlanRequest;

/// The way in which ranks share a batch and divide the model.
pub enum Parallelism {
    /// Every rank has the whole model.
    Replicas(Model),
    /// The plan of a file or a checkpoint, with the request for it if it was made for a training.
    Planned(PathBuf, Box<Built>, Option<Asked>),
    /// A plan that will be made for the present ranks.
    Made(Box<PlanRequest>),
}

impl Parallelism {
    /// Reads the plan or the model, and makes all checks that one process can make. Without flags, a training
    /// resumes with the parallelism of its checkpoint.
    ///
    /// # Errors
    /// If a file cannot be read, or flags set values that the plan already defines.
    pub fn resolve(typed: &Typed<'_>, recipe: &Recipe) -> Result<Parallelism> {
        let Some(flags) = typed.plan else { return replicas(typed, recipe) };
        if flags.parallel.is_none_or(|parallel| parallel == Parallel::None) {
            let hint = "add --parallel auto, or give this flag to thinwire plan make, and its plan to --plan";
            flags.activations.refuse("needs --parallel", hint)?;
        }
        let kept = typed.resume.as_ref().map(KeptPlan::of).transpose()?.flatten();
        match (flags.parallel, &flags.plan, kept) {
            (Some(Parallel::None), ..) => {
                flags.refuse_requests(
                    "cannot be used with --parallel none: it makes no plan",
                    "leave --pin and --cluster out",
                )?;
                replicas(typed, recipe)
            }
            (Some(parallel), _, kept) => made(typed, parallel, flags, recipe, kept),
            (None, Some(path), _) => {
                let hint = "leave --pin and --cluster out, or give --parallel instead of --plan";
                flags.refuse_requests(
                    "cannot be used with --plan: that plan is already made",
                    hint,
                )?;
                refuse_decided(typed)?;
                let tokens = typed.settings.recipe.input.as_ref().map(|tokens| tokens.0.clone());
                let built = Built::planned(read(path)?, tokens);
                let built = built.with_context(|| path.display().to_string())?;
                Ok(Parallelism::Planned(path.clone(), Box::new(built), None))
            }
            (None, None, Some(kept)) => {
                refuse_decided(typed).context("the checkpoint continues by its plan")?;
                let (path, built) = kept.built(typed.settings, typed.resume.as_ref())?;
                Ok(Parallelism::Planned(path, Box::new(built), kept.asked))
            }
            (None, None, None) => replicas(typed, recipe),
        }
    }

    /// Returns the whole model on every rank.
    ///
    /// # Errors
    /// If ranks have parts of a model.
    pub fn model(&self) -> Result<&Model> {
        match self {
            Parallelism::Replicas(model) => Ok(model),
            _ => Err(anyhow!("a plan cannot be used in an elastic job or with servers")),
        }
    }

    /// Returns the plan, if it exists before ranks connect.
    pub fn built(&self) -> Option<&Built> {
        match self {
            Parallelism::Planned(_, built, _) => Some(built),
            _ => None,
        }
    }

    /// Returns a warning if the emulated bandwidth of links differs from the bandwidth in a cluster
    /// file.
    pub fn warning(&self, limit: Option<Bandwidth>) -> Option<String> {
        let Parallelism::Made(request) = self else { return None };
        request.cluster.as_ref()?.warning(limit)
    }

    /// Returns whether there is a plan, or one will be made.
    pub fn is_planned(&self) -> bool {
        !matches!(self, Parallelism::Replicas(_))
    }

    /// Returns the default number of ranks.
    pub fn usual_ranks(&self, resume: Option<&Checkpoint>) -> u32 {
        let ranks = match self {
            Parallelism::Replicas(_) => {
                resume.map_or(2, |checkpoint| checkpoint.progress().world as usize)
            }
            Parallelism::Planned(_, built, _) => built.computation.plan.ranks(),
            Parallelism::Made(request) => request.cluster.as_ref().map_or(2, |it| it.devices),
        };
        ranks.min(RANKS_MAX) as u32
    }

    /// Returns the request, if the plan was made for this training or for the one that it resumes.
    pub fn asked(&self) -> Option<&Asked> {
        match self {
            Parallelism::Replicas(_) => None,
            Parallelism::Planned(_, _, asked) => asked.as_ref(),
            Parallelism::Made(request) => Some(&request.asked),
        }
    }

    /// Refuses a number of ranks that does not match the plan, or cannot share the batch.
    ///
    /// # Errors
    /// If the number of ranks is not possible.
    pub fn check_world(&self, batch: usize, world: u32, said: &str) -> Result<()> {
        let ranks = world as usize;
        match self {
            Parallelism::Replicas(model) => check_batch(batch, model.unit()?, ranks),
            Parallelism::Planned(path, built, _) if built.computation.plan.ranks() != ranks => {
                let planned = built.computation.plan.ranks();
                let error =
                    anyhow!("{} is for {planned} ranks, but {said} {world}", path.display());
                Err(hinted(error, start_hint(planned, &format!("make a plan for {world}"))))
            }
            Parallelism::Planned(..) => Ok(()),
            Parallelism::Made(request) => request.check_world(ranks, said),
        }
    }

    /// Returns the facts, by name, that must be equal on all ranks.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        match self {
            Parallelism::Replicas(model) => vec![("model", model.describe())],
            Parallelism::Planned(_, built, _) => {
                built.computation.file.iter().map(|file| ("plan", checksum(&file.text()))).collect()
            }
            Parallelism::Made(request) => request.facts(),
        }
    }

    /// Makes the plan if the training requests one, or the model for a rank's rows. The ranks must be
    /// connected.
    ///
    /// # Errors
    /// If there is no plan for these machines, or a peer is lost.
    pub fn make(
        &self,
        group: Group,
        settings: &Settings,
        batch: usize,
    ) -> Result<(Option<Built>, Group)> {
        match self {
            Parallelism::Planned(..) => Ok((None, group)),
            Parallelism::Replicas(model) => {
                let rows = rows(batch, model.unit()?, group.world()).len();
                Ok((Some(Built::replica(model, rows)?), group))
            }
            Parallelism::Made(request) => {
                let (file, group) = request.plan(group)?;
                let tokens = settings.recipe.input.as_ref().map(|tokens| tokens.0.clone());
                Ok((Some(Built::planned(file, tokens)?), group))
            }
        }
    }

    /// Returns the model's modality. Flags may name the input for tokens.
    ///
    /// # Errors
    /// If the model is not valid, or reads neither text nor images.
    pub fn modality(&self, flags: &RecipeFlags) -> Result<Modality> {
        match self {
            Parallelism::Replicas(model) => Ok(model.smallest()?.modality().clone()),
            Parallelism::Planned(_, built, _) => Ok(built.computation.modality.clone()),
            Parallelism::Made(request) => {
                let source = source::Source::open(&request.model)?;
                let graph = source.graph(source.fixed_batch()?.unwrap_or(1), request.sequence)?;
                let tokens = flags.input.as_ref().map(|tokens| &tokens.0[..]);
                Modality::new(&graph, tokens).or_hint(model::HINT)
            }
        }
    }

    /// Returns the number of elements of all parameters.
    ///
    /// # Errors
    /// If the model is not valid, or reads neither text nor images.
    pub fn elements(&self) -> Result<usize> {
        let of = |graph: &Graph| -> usize {
            graph.parameters().map(|(_, tensor)| tensor.elements()).sum()
        };
        Ok(match self {
            Parallelism::Replicas(model) => {
                model.smallest()?.parameters().iter().map(Parameter::elements).sum()
            }
            Parallelism::Planned(_, built, _) => of(&built.computation.training.graph),
            Parallelism::Made(request) => {
                let source = source::Source::open(&request.model)?;
                of(&source.graph(source.fixed_batch()?.unwrap_or(1), request.sequence)?)
            }
        })
    }
}

/// Returns the requested codec of gradients, or `None` if a planner decides whether to use it.
pub fn own_codec<'a>(typed: &Typed<'a>) -> Option<&'a Codec> {
    let parallel = typed.plan.and_then(|flags| flags.parallel);
    let plans = parallel.is_some_and(|parallel| parallel != Parallel::None);
    typed.codec.filter(|codec| !plans || !is_planned(codec, typed.settings))
}

/// Returns whether a planner may choose a codec: a plan can hold the codec, but no flags of an exchange.
fn is_planned(codec: &Codec, settings: &Settings) -> bool {
    codings::can_plan(&codec.policy) && settings.exchange_flag().is_none()
}

/// Returns the parallelism with the whole model on every rank. The model of a checkpoint cannot be changed.
fn replicas(typed: &Typed<'_>, recipe: &Recipe) -> Result<Parallelism> {
    let flags = &typed.settings.recipe;
    let kept = typed.resume.as_ref().map(Model::kept).transpose()?;
    let model = Model::of(flags, kept.as_ref().unwrap_or(&model::DEFAULT))?;
    kept.map_or(Ok(()), |kept| model.check_is(&kept))?;
    if let (Some(tokens), Model::Sizes(_)) = (&flags.input, &model) {
        let error = anyhow!("--input tokens={} needs --model or --plan", tokens.0);
        return Err(hinted(
            error,
            "leave --input out: the default model knows its input of tokens",
        ));
    }
    recipe.check_tokens(model.context())?;
    Ok(Parallelism::Replicas(model))
}

/// Returns the parallelism of a plan that will be made, with its search, its fixed decisions and its
/// machines. Options that are not given are taken from the checkpoint. If no options are given, so is
/// the plan.
fn made(
    typed: &Typed<'_>,
    parallel: Parallel,
    flags: &PlanFlags,
    recipe: &Recipe,
    kept: Option<KeptPlan>,
) -> Result<Parallelism> {
    let (settings, resume) = (typed.settings, typed.resume.as_ref());
    let cluster = flags.cluster.as_deref().map(Machines::read).transpose()?;
    let asked = Asked {
        parallel,
        pins: flags.pin.clone(),
        machines: cluster.as_ref().map(|machines| checksum(&machines.text)),
        codec: typed
            .codec
            .filter(|codec| is_planned(codec, settings))
            .map(|codec| codec.typed.clone()),
        error_budget: settings.error_budget,
        activations: flags.activations.clone(),
    };
    let before = resume.map(Model::kept).transpose()?;
    let given = settings.recipe.sizes().iter().any(|(_, size)| size.is_some());
    let (model, sequence) = match before {
        // A checkpoint knows its model, unless the user says another.
        Some(kept) if !given => (kept.name(), kept.context()),
        before => {
            let model = Model::of(&settings.recipe, before.as_ref().unwrap_or(&model::DEFAULT))?;
            (model.planned_name(), model.context())
        }
    };
    recipe.check_tokens(sequence)?;
    let before = kept.as_ref().and_then(|kept| kept.asked.as_ref());
    let asked = before.map_or(asked.clone(), |before| asked.or(before));
    let decided = asked.settings()?;
    if let Some(kept) = kept.filter(|kept| kept.asked.as_ref() == Some(&asked)) {
        let (path, built) = kept.built(settings, resume)?;
        let ranks = settings.place.find()?.map(|place| place.world);
        let ranks = ranks.or(settings.ranks.and_then(Size::fixed));
        if built.is_for(&model, sequence, recipe.batch, ranks) {
            return Ok(Parallelism::Planned(path, Box::new(built), Some(asked)));
        }
    }
    ensure_pins(&decided, &model, sequence)?;
    let (settings, batch) = (decided, recipe.batch);
    let request = PlanRequest { asked, settings, cluster, model, sequence, batch };
    Ok(Parallelism::Made(Box::new(request)))
}

/// Refuses flags for values that an existing plan already defines.
fn refuse_decided(typed: &Typed<'_>) -> Result<()> {
    let flags = &typed.settings.recipe;
    let [model, width, layers, heads, context] = flags.sizes();
    let batch = ("--batch", flags.batch.map(|batch| batch.to_string()));
    let why = "cannot be used with --plan: the plan has its own model and batch";
    let hint = "leave this flag out, or make another plan with it";
    refuse([width, layers, heads, context, batch, model], why, hint)?;
    let usual = thinwire_sync::Options::default().error_budget;
    let budget = typed.settings.error_budget.filter(|given| *given != usual);
    let budget = budget.filter(|_| typed.codec.is_none()).map(|budget| budget.to_string());
    refuse(
        [("--error-budget", budget)],
        "cannot be used with --plan: the plan has its own error budget",
        hint,
    )
}

fn read(path: &Path) -> Result<PlanFile> {
    let text = file::text(path, &file::PLAN)?;
    PlanFile::parse(&text).with_context(|| path.display().to_string()).or_hint(file::PLAN.hint)
}

/// Refuses pins that match no node of the model, before ranks are started and measured.
fn ensure_pins(settings: &search::Settings, model: &str, sequence: usize) -> Result<()> {
    if settings.pins.is_empty() {
        return Ok(());
    }
    let source = source::Source::open(model)?;
    let graph = source.graph(source.fixed_batch()?.unwrap_or(1), sequence)?;
    Ok(check_pins(&graph, &settings.pins)?)
}
