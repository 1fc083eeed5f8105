//! The model of a training without a plan: a GPT of bytes by its sizes, or any that has a name or a
//! file.

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use thinwire_model::{Graph, fingerprint};
use thinwire_train::Config;
use thinwire_train::spmd::GraphModel;

use super::job::KeptModel;
use super::settings::RecipeFlags;
use crate::failure::{OrHint, hinted};
use crate::source::Source;

/// The most elements that all parameters together have.
const ELEMENTS_MAX: usize = 1 << 32;

/// Model that is trained. A checkpoint keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Model {
    /// A GPT of bytes of this size.
    Sizes(Config),
    /// Any other.
    Named(Named),
}

/// A model that has a name or a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// Name, or path of the file.
    pub name: String,
    /// Tokens of its sequences.
    pub context: usize,
    /// Name of the input of tokens, where that is not clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<String>,
    /// The fingerprint of its graph.
    pub identity: String,
}

impl Model {
    /// The model of the flags, or else the one that there was before.
    ///
    /// # Errors
    /// If there is none such, or flags contradict each other.
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
        let sizes = [("width", flags.width), ("layers", flags.layers), ("heads", flags.heads)];
        if let Some((flag, value)) = sizes.iter().find_map(|(flag, value)| Some((flag, (*value)?)))
        {
            let error = anyhow!("--{flag} {value} with --model {name}, which has its sizes");
            return Err(hinted(error, format!("leave --{flag} out")));
        }
        let source = Source::open(name)?;
        let sequence = match (flags.context, before) {
            (None, Some(before)) => sequence(&source, before),
            (asked, _) => source.sequence(asked),
        };
        let rows = source.fixed_batch()?.unwrap_or(1);
        let graph = graph(&source, rows, sequence.with_context(|| name.to_owned())?)?;
        let elements: usize = graph.parameters().map(|(_, tensor)| tensor.elements()).sum();
        if elements > ELEMENTS_MAX {
            let error =
                anyhow!("{name} has {elements} parameters, expected at most {ELEMENTS_MAX}");
            return Err(hinted(error, "thinwire plan make cuts larger ones"));
        }
        let context = GraphModel::new(&graph, tokens.as_deref()).or_hint(HINT)?.context();
        let identity = format!("{:016x}", fingerprint(&graph));
        Ok(Model::Named(Named { name: name.to_owned(), context, tokens, identity }))
    }

    /// Bytes that a prediction is made from, at most.
    pub fn context(&self) -> usize {
        match self {
            Model::Sizes(config) => config.context,
            Model::Named(named) => named.context,
        }
    }

    /// Whether it is the same one, whatever it is called.
    pub fn is(&self, other: &Model) -> bool {
        match (self, other) {
            (Model::Named(one), Model::Named(other)) => {
                (one.context, &one.identity) == (other.context, &other.identity)
            }
            _ => self == other,
        }
    }

    /// The model for so many rows on a rank.
    ///
    /// # Errors
    /// If it is impossible, no model of text, or only for another number of rows.
    pub fn learner(&self, rows: usize) -> Result<GraphModel> {
        let source = self.source()?;
        let micro_batch = source.fixed_batch()?.unwrap_or(rows);
        if micro_batch == 0 || !rows.is_multiple_of(micro_batch) {
            let name = self.name();
            let error = anyhow!(
                "{rows} rows on a rank, expected a multiple of the {micro_batch} of {name}"
            );
            return Err(hinted(error, "--batch N says the rows of all ranks together"));
        }
        let sequence = sequence(&source, self.context())?;
        GraphModel::new(&graph(&source, micro_batch, sequence)?, self.tokens()).or_hint(HINT)
    }

    /// The model for one row, or for as many as it must have.
    ///
    /// # Errors
    /// If it is impossible, or no model of text.
    pub fn smallest(&self) -> Result<GraphModel> {
        self.learner(self.source()?.fixed_batch()?.unwrap_or(1))
    }

    /// The model to write a text of so many bytes.
    ///
    /// # Errors
    /// If it is impossible, or no model of text.
    pub fn writer(&self, bytes: usize) -> Result<GraphModel> {
        writer(&self.source()?, (self.context(), self.tokens()), bytes)
    }

    /// Returns the model as a planned training's checkpoint has it.
    ///
    /// # Errors
    /// If it is impossible.
    pub fn kept(&self) -> Result<KeptModel> {
        let (name, sequence) = (self.name(), self.context());
        let identity = format!("{:016x}", fingerprint(&self.source()?.graph(1, sequence)?));
        Ok(KeptModel { name, sequence, identity, tokens: self.tokens().map(str::to_owned) })
    }

    /// Returns the user's name of the model.
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

    fn name(&self) -> String {
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

    fn tokens(&self) -> Option<&str> {
        match self {
            Model::Sizes(_) => None,
            Model::Named(named) => named.tokens.as_deref(),
        }
    }
}

/// The model of a source to write a text of so many bytes; of it are known its context and, where that
/// is not clear, what it calls its tokens.
///
/// # Errors
/// If it is impossible, or no model of text.
pub fn writer(
    source: &Source,
    (context, tokens): (usize, Option<&str>),
    bytes: usize,
) -> Result<GraphModel> {
    let (rows, sequence) = match source {
        Source::Name(_) => (1, context.min(bytes.max(1))),
        _ => (source.fixed_batch()?.unwrap_or(1), sequence(source, context)?),
    };
    GraphModel::new(&source.graph(rows, sequence)?, tokens).or_hint(HINT)
}

/// The length to ask a source for, so that its sequences have so many tokens: a file may have but one.
fn sequence(source: &Source, context: usize) -> Result<usize> {
    source.sequence(Some(context)).or_else(|_| source.sequence(None))
}

/// The model for so many rows; a mistake that says not itself what to do gets the usual hint.
fn graph(source: &Source, rows: usize, sequence: usize) -> Result<Graph> {
    source.graph(rows, sequence).map_err(|error| match error.hint() {
        Some(_) => error.into(),
        None => hinted(error, HINT),
    })
}

const HINT: &str = "a model of text: gpt:layers=4,width=128,heads=4,vocabulary=256,positions=128; \
                    --input tokens=NAME says what a model calls its tokens";
