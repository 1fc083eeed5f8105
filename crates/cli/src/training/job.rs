//! A training job, resolved from the flags, a checkpoint and the defaults.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use serde_json::Value;
use thinwire_checkpoint::Location;
use thinwire_job::Place;
use thinwire_link::Bandwidth;
use thinwire_plan::report::{PlanFile, counted, devices};
use thinwire_policy::Spec;
use thinwire_report::training::{Report, Run};
use thinwire_server::Checkpoint as Weights;
use thinwire_sync::{Mode, Policy, check_combination};
use thinwire_train::checkpoint::Checkpoint;
use thinwire_train::session::{self, Computation};
use thinwire_train::spmd::{Codecs, ExchangeOptions, Modality};
use thinwire_train::{Adam, Corpus, Dataset, Gradients, Images};
use thinwire_wire::World;

use super::exchange::{self, Exchange};
use super::model::Model;
use super::plan::{KeptPlan, Parallelism, checksum, own_codec, travels};
use super::policies::{self, JobKind};
use super::recipe::{Recipe, differences};
use super::settings::{Codec, GradDtype, Settings, Typed};
use super::{machine, trace};
use crate::failure::{self, OrHint, hinted};
use crate::file;
use crate::metrics::RankMetrics;
use crate::size::Size;

/// Training job that all ranks follow.
pub struct TrainingJob {
    /// The text or the images.
    pub dataset: Dataset,
    /// Name of the data.
    pub data: String,
    /// Settings of learning.
    pub recipe: Recipe,
    /// Initial values of the parameters, or `None` if they are drawn at random.
    pub weights: Option<Weights>,
    /// The model, or its plan.
    pub parallelism: Parallelism,
    /// The options of the gradients' exchange.
    pub exchange: Exchange,
    /// Codec of gradients; `None` if a plan determines the codecs.
    pub codec: Option<Policy>,
    /// The other flags.
    pub settings: Settings,
    /// The checkpoint to resume from.
    pub resume: Option<Checkpoint>,
    /// The folder and the interval of new checkpoints, if any are written.
    pub policy: Option<thinwire_checkpoint::Policy>,
    /// Whether the training may propose another mode.
    pub advises: bool,
    /// Policies that adapt the training while it runs.
    pub policies: Vec<Spec>,
    /// Metrics of this process as a rank.
    pub metrics: RankMetrics,
    /// The exchange saved in the checkpoint.
    kept: Option<Exchange>,
}

/// The sources and docs of this program.
const OWN: &str = include_str!(concat!(env!("OUT_DIR"), "/corpus.txt"));
/// Name of the fact with the first step of a training.
pub const FIRST_STEP: &str = "first step";
/// Name of the fact with the checkpoint folder of the ranks.
pub const CHECKPOINT_DIR: &str = "--checkpoint-dir";

/// Codec of momenta, unless another one is requested.
const ONEBIT: &str = "onebit";

/// The manifest's key for the path of the data.
pub const TEXT: &str = "text";

impl TrainingJob {
    /// Reads the data and the checkpoint, and makes all checks that one process can make.
    ///
    /// # Errors
    /// If data or checkpoint are missing or damaged, or the flags are not valid.
    pub fn resolve(typed: Typed<'_>) -> Result<TrainingJob> {
        let mut recipe = Recipe::resolve(&typed.settings.recipe, typed.resume.as_ref())?;
        let parallelism = Parallelism::resolve(&typed, &recipe)?;
        let done = typed.resume.as_ref().map_or(0, |found| found.progress().step);
        recipe.check_steps(done)?;
        if let Some(file) = parallelism.built().and_then(|built| built.computation.file.as_ref()) {
            recipe.batch = file.batch;
        }
        let weights = weights(&typed)?;
        let codec = own_codec(&typed);
        let Typed { settings, resume, policy, mode, optimizer, advises, policies, .. } = typed;
        let kept = resume.as_ref().map(Exchange::kept).transpose()?.flatten();
        // Impossible models are found before any rank is started.
        let elements = parallelism.elements()?;
        let optimizer = Exchange::optimizer(optimizer, kept.as_ref())?;
        let usual = match optimizer {
            Adam::AdamW => Codec::default(),
            Adam::OneBit | Adam::ZeroOne => ONEBIT.parse()?,
        };
        let usual = (!parallelism.is_planned()).then_some(usual);
        let (exchange, codec) =
            Exchange::resolve(settings, codec, kept.as_ref(), usual, elements, mode)?;
        let exchange = Exchange { optimizer, ..exchange };
        refuse_with_plan(&exchange, &parallelism)?;
        exchange.check_optimizer(codec.as_ref())?;
        if let (None, Some(flag)) = (&codec, settings.exchange_flag()) {
            let error = anyhow!(
                "{flag} has no effect on the codecs of a plan: the plan decides how gradients are sent"
            );
            return Err(hinted(
                error,
                "name the codec of gradients too: --codec none or another one",
            ));
        }
        let modality = parallelism.modality(&settings.recipe)?;
        let (settings, dataset, data) = read_data(settings, resume.as_ref(), &modality)?;
        Ok(TrainingJob {
            dataset,
            data,
            recipe,
            weights,
            parallelism,
            exchange,
            codec,
            settings,
            resume,
            policy,
            advises,
            policies: policies.to_vec(),
            metrics: RankMetrics::default(),
            kept,
        })
    }

    /// Returns notices for a training that resumes with `world` ranks: differences from its checkpoint, and
    /// settings that the checkpoint does not contain.
    ///
    /// # Errors
    /// If the checkpoint has no settings that this version can read.
    pub fn said_of_resuming(&self, computation: &Computation, world: u32) -> Result<Vec<String>> {
        let Some(checkpoint) = &self.resume else { return Ok(Vec::new()) };
        let mut before = Recipe::kept(checkpoint)?.told();
        let mut now = self.recipe.told();
        let mut add = |name, was: String, is: String| {
            before.push((name, was));
            now.push((name, is));
        };
        let (was, is) = (Model::kept(checkpoint)?.context(), computation.context);
        add("sequence", was.to_string(), is.to_string());
        add("ranks", checkpoint.progress().world.to_string(), world.to_string());
        if let (Some(file), Some(kept)) = (&computation.file, KeptPlan::of(checkpoint)?) {
            add("plan", checksum(&kept.file), checksum(&file.text()));
        }
        let exchange = self.exchange.described();
        let assumed = match &self.kept {
            Some(kept) => {
                before.extend(kept.described());
                now.extend(exchange);
                None
            }
            None if checkpoint.is_sharded() || self.parallelism.is_planned() => None,
            None => Some(assumed(&exchange)),
        };
        Ok(differences(&before, &now).into_iter().chain(assumed).collect())
    }

    /// Returns the settings of a session with a codec or a plan. `config` contains the command's settings for
    /// its checkpoints.
    pub fn session(
        &self,
        codec: Option<&Policy>,
        place: &Place,
        config: Value,
    ) -> session::Settings<'_> {
        let sync = thinwire_sync::Options {
            seed: self.recipe.seed,
            timeout: self.settings.link.timeout,
            local_ranks: Some(place.local_world as usize),
            unchecked: self.settings.unchecked,
            ..self.exchange.options(codec, self.recipe.steps)
        };
        let gradients = match self.recipe.grad_dtype {
            GradDtype::F32 => Gradients::F32,
            GradDtype::Bf16 => Gradients::MixedBf16,
        };
        let codecs = if codec.is_some() { Codecs::OfPolicy } else { Codecs::OfPlan };
        session::Settings {
            dataset: &self.dataset,
            batch: self.recipe.batch,
            steps: self.recipe.steps,
            seed: self.recipe.seed,
            rate: self.recipe.learning_rate(),
            adamw: self.recipe.adamw(&self.exchange),
            gradient_norm_max: self.recipe.gradient_norm_max(),
            exchange: ExchangeOptions {
                sync,
                codecs,
                gradients,
                adam: self.exchange.optimizer,
                ..ExchangeOptions::default()
            },
            mode: self.exchange.mode,
            advises: self.advises,
            policies: &self.policies,
            validation_batches: usize::from(self.settings.validation_batches),
            link_bytes_per_s: self.settings.limit(place).map(Bandwidth::bytes_per_s),
            weights: self.weights.as_ref(),
            resume: self.resume.as_ref(),
            policy: self.policy.as_ref(),
            config,
        }
    }

    /// Returns the default number of ranks.
    pub fn usual_ranks(&self) -> u32 {
        self.parallelism.usual_ranks(self.resume.as_ref())
    }

    /// Refuses a number of ranks that cannot share the batch, or that does not match the plan.
    ///
    /// # Errors
    /// If the number of ranks is not possible.
    pub fn check_world(&self, world: u32, said: &str) -> Result<()> {
        self.parallelism.check_world(self.recipe.batch, world, said)
    }

    /// Refuses flags without effect, a number of ranks that is known to be wrong, and outputs that are not
    /// writable, before any time is spent on training. All ranks write checkpoints, but only rank 0 writes
    /// the report and the trace.
    ///
    /// # Errors
    /// The first mistake found.
    pub fn check(&self, codecs: &[Option<&Policy>]) -> Result<()> {
        let settings = &self.settings;
        let is_member = settings.place.member()?.is_some();
        let found = match settings.ranks {
            // Ranks of an elastic job have no place before they have met.
            Some(Size::Elastic { .. }) => None,
            _ if is_member => None,
            _ => settings.place.find()?,
        };
        match settings.ranks {
            // A batch is dealt over any number of ranks that have a row each.
            Some(Size::Elastic { max, .. }) => self.check_world(max, "--ranks says at most")?,
            _ if is_member => {}
            Some(Size::Fixed(ranks)) => self.check_world(ranks, "--ranks says")?,
            None if found.is_none() => {
                self.check_world(self.usual_ranks(), "one machine starts at most")?;
            }
            None => {}
        }
        let is_elastic = is_member || matches!(settings.ranks, Some(Size::Elastic { .. }));
        for codec in codecs {
            let kind = if is_elastic { JobKind::Elastic } else { JobKind::Fixed };
            policies::check(self, *codec, kind)?;
        }
        if let Some(policy) = &self.policy {
            thinwire_checkpoint::check_variables()?;
            let writable =
                machine::ensure_writable(&policy.folder, "checkpoints", "--checkpoint-dir");
            // A replacement trains without a checkpoint of its own, which may find room or its bucket later.
            let is_full = || writable.as_ref().is_err_and(failure::is_of_full_disk);
            let may_wait = is_member
                && match Location::from(policy.folder.as_path()) {
                    Location::Folder(folder) => is_full() && folder.is_dir(),
                    bucket @ Location::Bucket(_) => bucket.store().is_ok(),
                };
            if !may_wait {
                writable?;
            }
        }
        if found.as_ref().is_none_or(|place| place.rank == 0) {
            file::ensure_place(settings.report.0.as_deref(), "the report", "--report, or none")?;
            trace::ensure(settings.trace.as_deref())?;
        }
        let codecs: Vec<&Policy> = codecs.iter().copied().flatten().collect();
        // A plan's own codecs have no flags, and were checked with the plan.
        if codecs.is_empty() {
            return Ok(());
        }
        exchange::check_flags(settings, &codecs)?;
        let given = settings.ranks.and_then(Size::fixed);
        let ranks = found.map(|place| place.world).or(given);
        let world = World::new(0, ranks.unwrap_or(self.usual_ranks()))?;
        codecs.into_iter().try_for_each(|codec| {
            let options = self.exchange.options(Some(codec), self.recipe.steps);
            Ok(check_combination(&options, world)?)
        })
    }

    /// Exports the metrics of this process as a rank, if requested.
    ///
    /// # Errors
    /// If the port is taken.
    pub fn export_metrics(&self, place: &Place) -> Result<()> {
        let (metrics, offset) = (self.metrics.clone(), u16::try_from(place.local_rank));
        self.settings.metrics.export(offset.unwrap_or(u16::MAX), move || metrics.page())
    }

    /// Returns the facts, by name, that must be equal on all ranks.
    pub fn facts(&self) -> Vec<(String, String)> {
        let step = self.resume.as_ref().map_or(0, |checkpoint| checkpoint.progress().step);
        let every = self.policy.as_ref().and_then(|policy| policy.every);
        let folder = self.policy.as_ref().map(|policy| Location::from(policy.folder.as_path()));
        let folder = match folder {
            None => "none".to_owned(),
            // Folders may have other paths on other machines.
            Some(Location::Folder(_)) => "a folder".to_owned(),
            Some(bucket @ Location::Bucket(_)) => bucket.address(),
        };
        let is_planned = self.parallelism.is_planned();
        let whose = if is_planned { "those of a plan" } else { "those of the whole model" };
        let mut facts = vec![
            ("parameters", whose.to_owned()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("data", self.dataset.fingerprint().to_owned()),
            (FIRST_STEP, step.to_string()),
            (CHECKPOINT_DIR, folder),
            ("--weights", self.weights.as_ref().map_or("none".to_owned(), Weights::name)),
            ("form of Adam", self.exchange.optimizer.to_string()),
            ("mode of training", self.exchange.mode.to_string()),
            ("policies", self.named_policies()),
            ("--checkpoint-every", every.map_or("none".to_owned(), |every| every.to_string())),
        ];
        facts.extend(self.parallelism.facts());
        facts.extend(self.recipe.told());
        owned(facts)
    }

    /// Returns the policies as one text.
    fn named_policies(&self) -> String {
        match self.policies.is_empty() {
            true => "none".to_owned(),
            false => self.policies.iter().map(Spec::to_string).collect::<Vec<_>>().join(" "),
        }
    }

    /// Returns the report of `runs`, which followed the plan in `file` if there is one.
    pub fn report(&self, place: &Place, file: Option<&PlanFile>, runs: Vec<Run>) -> Report {
        let settings = &self.settings;
        let mut described = match (&self.parallelism, file) {
            (Parallelism::Replicas(model), _) => {
                let rows = format!("{} rows, all ranks together", self.recipe.batch);
                vec![("model", model.describe()), ("batch", rows)]
            }
            (_, Some(file)) => of_plan(file, self.codec.as_ref()),
            (_, None) => Vec::new(),
        };
        described.extend(self.recipe.told().into_iter().skip(1));
        described.push(("data", format!("{} ({})", self.data, self.dataset.fingerprint())));
        described.push(("optimizer", self.exchange.optimizer.to_string()));
        described.push(("bucket bytes", self.exchange.bucket_bytes.to_string()));
        described.push(("threads per rank", settings.threads(place).to_string()));
        let limit = settings.limit(place);
        Report {
            command: machine::command_line(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            date: machine::date(),
            machine: machine::describe(),
            ranks: place.world,
            link: settings.link.describe(limit, place),
            link_bytes_per_s: limit.map(Bandwidth::bytes_per_s),
            settings: owned(described),
            runs,
            differences: Vec::new(),
        }
    }
}

/// Refuses a mode or an optimiser that needs the whole model on every rank, if ranks have parts of it by a
/// plan.
fn refuse_with_plan(exchange: &Exchange, parallelism: &Parallelism) -> Result<()> {
    let flag = match (exchange.mode, exchange.optimizer) {
        _ if !parallelism.is_planned() => return Ok(()),
        (Mode::Step, Adam::AdamW) => return Ok(()),
        (Mode::Step, optimizer) => format!("--optimizer {optimizer}"),
        (mode, _) => format!("--mode {mode}"),
    };
    let error = anyhow!("{flag} cannot be used with a plan: every rank would need the whole model");
    Err(hinted(error, format!("leave --plan and --parallel out, or leave {flag} out")))
}

/// Returns the file with the initial values of the parameters.
fn weights(typed: &Typed<'_>) -> Result<Option<Weights>> {
    let Some(path) = &typed.settings.recipe.weights else { return Ok(None) };
    if let Some(resumed) = &typed.resume {
        let (path, resumed) = (path.display(), resumed.path().display());
        let error = anyhow!("--weights {path} and --resume {resumed} exclude each other");
        return Err(hinted(
            error,
            "leave one of the two out: the checkpoint already has the values of all parameters",
        ));
    }
    Ok(Some(Weights::open(path)?))
}

/// Returns the settings of a plan by name.
fn of_plan(file: &PlanFile, codec: Option<&Policy>) -> Vec<(&'static str, String)> {
    let rows = match file.sequence {
        1 => format!("{} rows, all ranks together", file.batch),
        bytes => format!("{} rows of {bytes} bytes, all ranks together", file.batch),
    };
    vec![
        ("model", file.model.clone()),
        ("batch", rows),
        ("mesh", format!("{} of {}", counted(file.stage.len(), "stage"), devices(&file.mesh))),
        ("micro-batches", file.micro_batches.to_string()),
        ("encoded", travels(file, codec)),
    ]
}

fn owned(pairs: Vec<(&str, String)>) -> Vec<(String, String)> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns a notice for a checkpoint that does not contain the settings of its exchange.
fn assumed(exchange: &[(&str, String)]) -> String {
    let values: Vec<String> =
        exchange.iter().map(|(name, value)| format!("{name} {value}")).collect();
    format!(
        "the checkpoint is from an earlier version and does not tell how gradients were sent: training \
         continues with {}",
        values.join(", ")
    )
}

/// Returns the settings with the path of the data, the data and its name. The path is taken from the
/// flags, or else from the checkpoint.
fn read_data(
    settings: &Settings,
    resume: Option<&Checkpoint>,
    modality: &Modality,
) -> Result<(Settings, Dataset, String)> {
    let kept = resume.and_then(|checkpoint| {
        let text = &checkpoint.progress().config[TEXT];
        text.as_str().map(PathBuf::from)
    });
    let given = settings.data.is_some();
    let path = settings.data.clone().or(kept);
    let read = read(path.as_deref(), modality);
    let (name, dataset) = match (given, &path) {
        (false, Some(_)) => read.or_hint(
            "the training of the checkpoint read this data: give the present path of the data \
             with --data",
        )?,
        _ => read?,
    };
    if let Some(checkpoint) = resume {
        let (expected, found) = (&checkpoint.progress().data, dataset.fingerprint());
        if expected != found {
            let error =
                anyhow!("the checkpoint was trained on other data: {expected}, this is {found}");
            return Err(hinted(error, "give the same --data as before"));
        }
    }
    Ok((Settings { data: path, ..settings.clone() }, dataset, name))
}

/// Returns the text or images at `path`, as the model requires, or thinwire's own text, with their name.
///
/// # Errors
/// If there are no such text or images.
fn read(path: Option<&Path>, modality: &Modality) -> Result<(String, Dataset)> {
    let name = path.map(|path| path.display().to_string());
    Ok(match (modality, path) {
        (Modality::Text(_), Some(path)) => {
            (name.unwrap_or_default(), Corpus::from_path(path)?.into())
        }
        (Modality::Text(_), None) => {
            let text = Corpus::from_text(OWN.as_bytes())?;
            ("thinwire's own sources and docs".to_owned(), text.into())
        }
        (Modality::Images(images), Some(path)) => {
            (name.unwrap_or_default(), Images::from_path(path, images.form())?.into())
        }
        (Modality::Images(images), None) => {
            let form = images.form();
            let ([c, h, w], classes) = (form.shape, form.classes);
            let error = anyhow!("a model of {w}x{h} images of {c} channels needs --data");
            let hint = format!(
                "give --data FOLDER with {classes} folders of .png or .jpg files, or FILE.npz"
            );
            return Err(hinted(error, &hint));
        }
    })
}
