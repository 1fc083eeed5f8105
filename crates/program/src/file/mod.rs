//! Plan files: TOML that can be read, edited and run.
//!
//! ```toml
//! model = "gpt2-medium"
//! version = 1
//! fingerprint = "35bb0a9e61f1be4c"   # of the model for one micro-batch
//! batch = 64
//! mesh = [4, 2]                      # of a stage's devices, the last dimension nearest
//!
//! [[way]]                            # how blocks are done
//! blocks = ["block.0", "block.1"]
//! nodes = { "mlp.up" = "b,n" }       # an axis per mesh dimension, or - for none
//! ```
//!
//! Law: writing a plan and reading it gives the same plan.

mod check;
mod read;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thinwire_model::{Cut, Declaration, Graph, NodeId, Operator, Strategy, fingerprint};

use crate::pipeline::Schedule;
use crate::{Error, mesh_dimension};

pub use check::{FIRST_VERSION, MICRO_BATCHES_MAX, VERSION};

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanFile {
    /// The model's name.
    pub model: String,
    /// The version of the file: the first version that has all of its fields.
    #[serde(default = "version")]
    pub version: u64,
    /// The fingerprint of the model for one micro-batch, in hexadecimal digits.
    pub fingerprint: String,
    /// Sequences of a step.
    pub batch: usize,
    /// Tokens of a sequence.
    pub sequence: usize,
    /// The number of micro-batches into which the batch is cut.
    pub micro_batches: usize,
    /// The mesh of a stage's devices, the last dimension nearest.
    pub mesh: Vec<usize>,
    /// Whether all blocks recompute the forward pass in the backward pass.
    pub recompute: bool,
    /// The blocks that recompute the forward pass, if only some do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recomputed: Vec<String>,
    /// The ZeRO stage: 0, 1, 2 or 3. It determines what the ranks that share a parameter's work divide.
    pub zero: u8,
    /// The precision for which time and memory were predicted.
    #[serde(default)]
    pub precision: Numbers,
    /// Number of micro-batches of each part along the first dimension of the mesh, if devices differ; if
    /// empty, each part has `micro_batches`. The sum is the same in both cases, so gradients are always
    /// divided by the whole batch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<usize>,
    /// For every rank, the number of the cluster's device on which it must be started, if links differ and
    /// another order than the cluster file's is faster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<usize>,
    /// Predicted seconds of a step.
    pub step_s: f64,
    /// Lower bound on the seconds of any plan.
    pub bound_s: f64,
    /// The order of passes.
    pub schedule: Schedule,
    /// The stages.
    pub stage: Vec<StageFile>,
    /// The codecs of gradients; gradients of parameters that are not named are sent raw.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub codec: Vec<CodecFile>,
    /// The codecs of activations and their gradients; empty if they are sent raw.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub activation: Vec<ActivationFile>,
    /// Parameters with another ZeRO stage than `zero`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub division: Vec<DivisionFile>,
    /// The strategies of blocks.
    pub way: Vec<WayFile>,
}

/// The precision of a step's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Numbers {
    /// In single precision.
    #[default]
    Single,
    /// In half precision, with exact copies of the parameters.
    Mixed,
}

fn version() -> u64 {
    check::FIRST_VERSION
}

/// A stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageFile {
    /// The stage's first block.
    pub first: String,
    /// The stage's last block.
    pub last: String,
    /// Predicted memory of each device of the stage, in bytes.
    pub memory_bytes: u64,
}

/// A codec, and the parameters whose gradients it encodes when ranks sum them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodecFile {
    /// The codec's name, as `--codec` takes it.
    pub name: String,
    /// The innermost level of the cluster on which the codec is used; on the levels within, gradients
    /// are summed raw. Without a level, it is used on all levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// The number of neighbouring devices that the levels within `level` join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<usize>,
    /// The parameters, by their names in the model.
    pub parameters: Vec<String>,
}

/// A codec of activations and their gradients, between stages and within them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActivationFile {
    /// The codec's name, as `--codec` takes it; `none` if they are sent raw.
    pub name: String,
    /// The innermost level of the cluster on which the codec is used. Tensors that cross several levels
    /// use the codec of the outermost level. Without a level, it is used on all levels that have no
    /// codec of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// The number of neighbouring devices that the levels within `level` join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<usize>,
}

/// Parameters with the same ZeRO stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DivisionFile {
    /// The ZeRO stage: 0, 1, 2 or 3.
    pub zero: u8,
    /// The parameters, by their names in the model.
    pub parameters: Vec<String>,
}

/// The strategies of some equal blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WayFile {
    /// The blocks, by their names.
    pub blocks: Vec<String>,
    /// The strategy of every node, by its name within the block.
    pub nodes: BTreeMap<String, String>,
}

impl PlanFile {
    /// Reads a file.
    ///
    /// # Errors
    /// If it is not a plan, is of another version, or contradicts itself.
    pub fn parse(text: &str) -> Result<PlanFile, Error> {
        check::version(text)?;
        let file = toml::from_str(text).map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            Error::file(format!("line {line}: {}", error.message().replace('\n', ", ")))
        })?;
        check::file(&file)?;
        Ok(file)
    }

    /// Returns the file's text.
    ///
    /// # Panics
    /// Never: everything in a plan can be written.
    pub fn text(&self) -> String {
        toml::to_string(self).expect("a plan has nothing that TOML lacks")
    }

    /// Returns the strategy of every node of the model for which this plan is.
    ///
    /// # Errors
    /// If it is another model, a node has no strategy or an impossible one, or the file names something that
    /// the model does not have.
    pub fn strategies(&self, graph: &Graph) -> Result<Vec<Strategy>, Error> {
        let actual = format!("{:016x}", fingerprint(graph));
        if actual != self.fingerprint {
            let PlanFile { fingerprint, batch, micro_batches, sequence, .. } = self;
            let found = format!("the plan is for a model with fingerprint {fingerprint}");
            let sizes = format!("{micro_batches} micro-batches of a batch of {batch}");
            let here = format!("this one has {actual} in {sizes} with sequences of {sequence}");
            return Err(Error::invalid(format!("{found}, {here}")).with_hint(
                "the fingerprint also depends on batch, micro-batches and sequence: make the plan \
                 again",
            ));
        }
        check::ways(&self.way, graph)?;
        let mut all = vec![None; graph.nodes.len()];
        for block in &graph.blocks {
            let way = self.way.iter().find(|way| way.blocks.contains(&block.name));
            let missing = || Error::file(format!("no way says how block '{}' is done", block.name));
            let way = way.ok_or_else(missing)?;
            for id in block.nodes.clone() {
                all[id] = Some(self.strategy(graph, id, &block.name, way)?);
            }
        }
        let outside = || Error::file("the model has nodes outside of its blocks");
        let all = all.into_iter().map(|strategy| strategy.ok_or_else(outside));
        let all = all.collect::<Result<Vec<_>, Error>>()?;
        check_places(graph, &all)?;
        Ok(all)
    }

    fn strategy(
        &self,
        graph: &Graph,
        id: NodeId,
        block: &str,
        way: &WayFile,
    ) -> Result<Strategy, Error> {
        let node = &graph.nodes[id];
        let name = node.name.strip_prefix(&format!("{block}.")).unwrap_or(&node.name);
        let missing = || Error::file(format!("block '{block}' does not say how '{name}' is cut"));
        let text = way.nodes.get(name).ok_or_else(missing)?;
        let declaration = graph.declaration(node);
        let refused = |what: String| Error::file(format!("'{name}' of block '{block}': {what}"));
        let strategy = parse(&declaration, text).map_err(refused)?;
        if strategy.0.len() != self.mesh.len() || !declaration.allows(&strategy, &self.mesh) {
            let mesh = &self.mesh;
            return Err(refused(format!("cannot be cut as '{text}' on mesh {mesh:?}")));
        }
        Ok(strategy)
    }
}

/// Refuses strategies that give a tensor another layout than the model's own placement.
fn check_places(graph: &Graph, strategies: &[Strategy]) -> Result<(), Error> {
    for (node, strategy) in graph.nodes.iter().zip(strategies) {
        let Operator::Place(place) = &node.operator else { continue };
        let declaration = graph.declaration(node);
        for (name, letter) in &place.cuts {
            let unknown = || Error::invalid(format!("no dimension of a mesh is called '{name}'"));
            let dim = mesh_dimension(name).ok_or_else(unknown)?;
            let cut = parse(&declaration, &letter.to_string()).map_err(Error::invalid)?.0[0];
            if strategy.0.get(dim) == Some(&cut) {
                continue;
            }
            let found = declaration.describe(strategy);
            let message = format!("'{}' is cut as '{found}', but the model places it", node.name);
            return Err(Error::file(format!("{message} '{letter}' on dimension {dim}")));
        }
    }
    Ok(())
}

/// Reads a strategy from its text: axes by their names, `-` for none, `+` for partial sums.
fn parse(declaration: &Declaration, text: &str) -> Result<Strategy, String> {
    let cut = |name: &str| {
        let mut letters = name.chars();
        match (letters.next(), letters.next()) {
            (Some('-'), None) => Ok(Cut::Whole),
            (Some('+'), None) => Ok(Cut::Sum),
            (Some(letter), None) if declaration.axis(letter).is_some() => {
                Ok(declaration.axis(letter).map_or(Cut::Whole, Cut::Axis))
            }
            _ => {
                let known: Vec<_> =
                    declaration.axes.iter().map(|axis| axis.name.to_string()).collect();
                Err(format!("'{name}' is no axis, expected one of -, {}", known.join(", ")))
            }
        }
    };
    text.split(',').map(cut).collect::<Result<_, _>>().map(Strategy)
}
