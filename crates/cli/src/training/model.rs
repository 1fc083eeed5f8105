//! Model of a training: a GPT of bytes with given sizes, or any model with a name or a file.

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use thinwire_model::{Graph, fingerprint};
use thinwire_train::Config;
use thinwire_train::checkpoint::Checkpoint;
use thinwire_train::spmd::GraphModel;
use thinwire_wire::Hint;

use super::settings::{RecipeFlags, refuse};
use crate::failure::{OrHint, hinted};
use crate::source::Source;

/// Largest number of elements of all parameters together.
const ELEMENTS_MAX: usize = 1 << 32;

/// Model that is trained. Checkpoints contain it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Model {
    /// A GPT of bytes with these sizes.
    Sizes(Config),
    /// Any other model.
    Named(Named),
}

/// The default model of a training.
pub const DEFAULT: Model = Model::Sizes(Config { context: 128, width: 128, layers: 4, heads: 4 });

/// A model with a name or a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// Name, or path of the file. In a planned training, it is the name of the plan's model.
    #[serde(alias = "model")]
    pub name: String,
    /// Number of tokens in the model's sequences.
    #[serde(alias = "sequence")]
    pub context: usize,
    /// Name of the input for tokens, if it is not clear from the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<String>,
    /// The fingerprint of the graph for one sequence, or for the model's fixed batch. It depends neither on a
    /// name nor on a plan.
    pub identity: String,
}

impl Model {
    /// Returns the model of a checkpoint.
    ///
    /// # Errors
    /// If the checkpoint has no model that this version can read.
    pub fn kept(checkpoint: &Checkpoint) -> Result<Model> {
        let config = &checkpoint.progress().config;
        // Of a planned training it lies beside the recipe.
        let kept = Some(&config["recipe"]["model"]).filter(|model| !model.is_null());
        serde_json::from_value(kept.unwrap_or(config).clone()).with_context(|| {
            format!("{} has no model that this version can read", checkpoint.path().display())
        })
    }

    /// Returns the model of the flags, or else `before`.
    ///
    /// # Errors
    /// If there is no such model, or flags contradict each other.
    pub fn of(flags: &RecipeFlags, before: &Model) -> Result<Model> {
        let tokens = flags.input.as_ref().map(|tokens| tokens.0.clone());
        match (&flags.model, before) {
            (Some(name), _) => Model::named(name, None, tokens, flags),
            (None, Model::Named(Named { name, context, tokens: told, .. })) => {
                Model::named(name, Some(*context), tokens.or_else(|| told.clone()), flags)
            }
            (None, Model::Sizes(before)) => {
                let config = Config {
                    context: flags.context.unwrap_or(before.context),
                    width: flags.width.unwrap_or(before.width),
                    layers: flags.layers.unwrap_or(before.layers),
                    heads: flags.heads.unwrap_or(before.heads),
                };
                Ok(Model::Sizes(config))
            }
        }
    }

    fn named(
        name: &str,
        before: Option<usize>,
        tokens: Option<String>,
        flags: &RecipeFlags,
    ) -> Result<Model> {
        let [_, width, layers, heads, _] = flags.sizes();
        let why = format!("cannot be used with --model {name}: that model has its own sizes");
        refuse([width, layers, heads], &why, "leave --width, --layers and --heads out")?;
        let source = Source::open(name)?;
        let sequence = match (flags.context, before) {
            (None, Some(before)) => sequence(&source, before),
            (asked, _) => source.sequence(asked),
        };
        let graph = smallest(&source, sequence.with_context(|| name.to_owned())?)?;
        let elements: usize = graph.parameters().map(|(_, tensor)| tensor.elements()).sum();
        if elements > ELEMENTS_MAX {
            let error =
                anyhow!("{name} has {elements} parameters, expected at most {ELEMENTS_MAX}");
            return Err(hinted(error, "thinwire plan make plans larger ones"));
        }
        let context = GraphModel::new(&graph, tokens.as_deref()).or_hint(HINT)?.context();
        let identity = format!("{:016x}", fingerprint(&graph));
        Ok(Model::Named(Named { name: name.to_owned(), context, tokens, identity }))
    }

    /// Returns the largest number of bytes from which a prediction is made.
    pub fn context(&self) -> usize {
        match self {
            Model::Sizes(config) => config.context,
            Model::Named(named) => named.context,
        }
    }

    /// Returns whether it is the same model, regardless of its name.
    pub fn is(&self, other: &Model) -> bool {
        match (self, other) {
            (Model::Named(one), Model::Named(other)) => {
                (one.context, &one.identity) == (other.context, &other.identity)
            }
            _ => self == other,
        }
    }

    /// Refuses any model other than the checkpoint's.
    ///
    /// # Errors
    /// If the model is a different one.
    pub fn check_is(&self, kept: &Model) -> Result<()> {
        if self.is(kept) {
            return Ok(());
        }
        let (found, expected) = (self.describe(), kept.describe());
        let error = anyhow!("the checkpoint's model has {expected}, but the flags give {found}");
        Err(hinted(error, "leave the model's flags out when resuming"))
    }

    /// Returns the graph for a micro-batch, and the number of micro-batches for `rows` rows on a rank.
    ///
    /// # Errors
    /// If the model is not valid, or has a fixed number of rows that does not divide `rows`.
    pub fn graph(&self, rows: usize) -> Result<(Graph, usize)> {
        let source = self.source()?;
        let micro_batch = source.fixed_batch()?.unwrap_or(rows);
        if micro_batch == 0 || !rows.is_multiple_of(micro_batch) {
            let name = self.name();
            let error = anyhow!(
                "{rows} rows on a rank, expected a multiple of {micro_batch}, since {name} reads \
                 {micro_batch} rows at a time"
            );
            return Err(hinted(error, "--batch N counts the rows of all ranks together"));
        }
        let sequence = sequence(&source, self.context())?;
        Ok((graph(&source, micro_batch, sequence)?, rows / micro_batch))
    }

    /// Returns the number of rows of a micro-batch if the model has a fixed number, or else 1.
    ///
    /// # Errors
    /// If the model is not valid.
    pub fn unit(&self) -> Result<usize> {
        Ok(self.source()?.fixed_batch()?.unwrap_or(1))
    }

    /// Returns the model for one row, or for its fixed number of rows.
    ///
    /// # Errors
    /// If it is not valid, or reads neither text nor images.
    pub fn smallest(&self) -> Result<GraphModel> {
        let (graph, _) = self.graph(self.source()?.fixed_batch()?.unwrap_or(1))?;
        GraphModel::new(&graph, self.tokens()).or_hint(HINT)
    }

    /// Returns the model for writing a text of `bytes` bytes.
    ///
    /// # Errors
    /// If it is not valid or not a model of text, or its file has changed.
    pub fn writer(&self, bytes: usize) -> Result<GraphModel> {
        let (source, context) = (self.source()?, self.context());
        if let Model::Named(Named { name, identity: expected, .. }) = self {
            let found = identity(&source, context)?;
            if found != *expected {
                let error = anyhow!(
                    "{name} has fingerprint {found}, but the checkpoint expects {expected}"
                );
                return Err(hinted(error, "give the same model file as in training"));
            }
        }
        let (rows, sequence) = match source {
            Source::Name(_) => (1, context.min(bytes.max(1))),
            _ => (source.fixed_batch()?.unwrap_or(1), sequence(&source, context)?),
        };
        GraphModel::new(&source.graph(rows, sequence)?, self.tokens()).or_hint(HINT)
    }

    /// Returns the model by its name.
    ///
    /// # Errors
    /// If it is not valid.
    pub fn to_named(&self) -> Result<Named> {
        match self {
            Model::Named(named) => Ok(named.clone()),
            Model::Sizes(config) => Named::of(&self.source()?, config.name(), config.context, None),
        }
    }

    /// Returns the model's name for users.
    pub fn describe(&self) -> String {
        match self {
            Model::Sizes(Config { context, width, layers, heads }) => {
                format!("width {width}, {layers} layers, {heads} heads, context {context}")
            }
            Model::Named(Named { name, context, identity, .. }) => {
                format!("{name} ({identity}), context {context}")
            }
        }
    }

    /// Returns the model's name for a planner. A model with given sizes is a GPT.
    pub fn planned_name(&self) -> String {
        match self {
            Model::Named(named) => named.name.clone(),
            Model::Sizes(Config { context, width, layers, heads }) => format!(
                "gpt:layers={layers},width={width},heads={heads},vocabulary=256,positions={context}"
            ),
        }
    }

    /// Returns the model's name, with which its source can be found.
    pub fn name(&self) -> String {
        match self {
            Model::Sizes(config) => config.name(),
            Model::Named(named) => named.name.clone(),
        }
    }

    fn source(&self) -> Result<Source> {
        if let Model::Sizes(config) = self {
            config.check()?;
        }
        Source::open(&self.name())
    }

    /// Returns the name of the input for tokens, if it is not clear from the model.
    pub fn tokens(&self) -> Option<&str> {
        match self {
            Model::Sizes(_) => None,
            Model::Named(named) => named.tokens.as_deref(),
        }
    }
}

impl Named {
    /// Returns the model of a source, for sequences of `context` tokens.
    ///
    /// # Errors
    /// If it has no sequences of this length.
    pub fn of(
        source: &Source,
        name: String,
        context: usize,
        tokens: Option<String>,
    ) -> Result<Named> {
        Ok(Named { name, context, tokens, identity: identity(source, context)? })
    }
}

/// Returns the fingerprint of a model for sequences of `context` tokens.
///
/// # Errors
/// If it has no sequences of this length.
pub fn identity(source: &Source, context: usize) -> Result<String> {
    Ok(format!("{:016x}", fingerprint(&smallest(source, sequence(source, context)?)?)))
}

/// Returns the graph for one row, or for the model's fixed number of rows.
fn smallest(source: &Source, sequence: usize) -> Result<Graph> {
    graph(source, source.fixed_batch()?.unwrap_or(1), sequence)
}

/// Returns the sequence length to pass to a source for sequences of `context` tokens. A file may allow
/// only one length.
fn sequence(source: &Source, context: usize) -> Result<usize> {
    source.sequence(Some(context)).or_else(|_| source.sequence(None))
}

/// Returns the graph for `rows` rows. An error without a hint gets [`HINT`].
fn graph(source: &Source, rows: usize, sequence: usize) -> Result<Graph> {
    source.graph(rows, sequence).map_err(|error| match error.hint() {
        Some(_) => error.into(),
        None => hinted(error, HINT),
    })
}

/// Hint for a model that is neither of text nor of images.
pub const HINT: &str = "a model of text: gpt:layers=4,width=128,heads=4,vocabulary=256,positions=128; \
                    --input tokens=NAME says what a model calls its tokens; or one of images \
                    [batch, channels, rows, columns]";
