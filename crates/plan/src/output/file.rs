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
//! Law: what is written is read back as the same plan.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thinwire_model::{Cut, Declaration, Graph, NodeId, Strategy, fingerprint};

use super::activations::activations;
use super::check;
use super::codecs::codecs;
use super::spared::{divisions, recomputed};
use crate::Cluster;
use crate::Error;
use crate::cost::Precision;
use crate::pipeline::Schedule;
use crate::search::{Chain, Found, Outcome, Planner, StageOutcome, costs, pinned, zero_stage};

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanFile {
    /// The model's name.
    pub model: String,
    /// The version of the file: the first that knows all that is in it.
    #[serde(default = "version")]
    pub version: u64,
    /// The model's fingerprint, for one micro-batch, in hexadecimal digits.
    pub fingerprint: String,
    /// Sequences of a step.
    pub batch: usize,
    /// Tokens of a sequence.
    pub sequence: usize,
    /// Into how many micro-batches the batch is cut.
    pub micro_batches: usize,
    /// The mesh of a stage's devices, the last dimension nearest.
    pub mesh: Vec<usize>,
    /// Whether forward is computed again in backward, in all blocks.
    pub recompute: bool,
    /// The blocks in which it is, where only some do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recomputed: Vec<String>,
    /// 0, 1, 2 or 3: what is divided among ranks that share a parameter's work.
    pub zero: u8,
    /// What numbers time and memory were predicted for.
    #[serde(default)]
    pub precision: Numbers,
    /// Micro-batches that each part along the first dimension of the mesh does, where devices
    /// differ; without them each does `micro_batches`. Their sum is the same either way, so gradients
    /// are divided by the whole batch as ever.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<usize>,
    /// For every rank, the number of the cluster's device on which it is to be started, where that
    /// is another order than the cluster file's. The planner leaves it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<usize>,
    /// Predicted seconds of a step.
    pub step_s: f64,
    /// No plan takes less than this.
    pub bound_s: f64,
    /// The order of passes.
    pub schedule: Schedule,
    /// The stages.
    pub stage: Vec<StageFile>,
    /// What gradients are encoded with; those that are not named travel as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub codec: Vec<CodecFile>,
    /// What activations and their gradients are encoded with; nothing if they travel as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub activation: Vec<ActivationFile>,
    /// Parameters of which something else is divided than `zero` says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub division: Vec<DivisionFile>,
    /// The ways in which blocks are done.
    pub way: Vec<WayFile>,
}

/// How numbers are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Numbers {
    /// In single precision.
    #[default]
    Single,
    /// In half precision, with exact parameters beside it.
    Mixed,
}

fn version() -> u64 {
    check::FIRST
}

/// A stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageFile {
    /// Its first block.
    pub first: String,
    /// Its last block.
    pub last: String,
    /// Predicted bytes of each of its devices.
    pub memory_bytes: u64,
}

/// A codec, and the parameters whose gradients it encodes where ranks sum them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodecFile {
    /// The codec's name, as `--codec` takes it.
    pub name: String,
    /// The innermost level of the cluster on which it is used; on levels within, gradients are
    /// summed as they are. Without a level it is used on all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// How many devices the levels within that one have together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<usize>,
    /// The parameters, by their names in the model.
    pub parameters: Vec<String>,
}

/// A codec of activations and their gradients, between stages and within them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActivationFile {
    /// The codec's name, as `--codec` takes it; `none` where they travel as they are.
    pub name: String,
    /// The innermost level of the cluster on which it is used. What crosses several levels travels
    /// by the codec of the outermost one. Without a level it is used on all that have none of their
    /// own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// How many devices the levels within that one have together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<usize>,
}

/// Parameters of which the same is divided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DivisionFile {
    /// 0, 1, 2 or 3.
    pub zero: u8,
    /// The parameters, by their names in the model.
    pub parameters: Vec<String>,
}

/// How some equal blocks are done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WayFile {
    /// Which blocks.
    pub blocks: Vec<String>,
    /// The strategy of every node, by its name within the block.
    pub nodes: BTreeMap<String, String>,
}

impl PlanFile {
    /// The file of what a planner has found.
    ///
    /// # Errors
    /// If the planner has planned something else.
    pub fn new(
        model: &str,
        sequence: usize,
        planner: &Planner,
        cluster: &Cluster,
        found: &Found,
    ) -> Result<PlanFile, Error> {
        let Outcome { candidate, schedule, choice, stages, .. } = &found.best;
        let unplanned = || Error::impossible("the planner has not made this plan");
        let prepared = planner.prepared(candidate).ok_or_else(unplanned)?;
        let graph = &prepared.graph;
        let costs = costs(cluster, candidate, &planner.settings_of(&found.best));
        let chain = Chain::new(prepared, &costs, candidate.rule)?;
        let way = |way: usize| {
            let used = choice.of_block.iter().enumerate().filter(|(_, of)| **of == way);
            let blocks: Vec<usize> = used.map(|(block, _)| block).collect();
            let class = prepared.of_block[blocks[0]];
            let first = prepared.of_block.iter().position(|of| *of == class).unwrap_or(0);
            let prefix = format!("{}.", graph.blocks[first].name);
            let nodes = chain.strategies(choice, way).into_iter().map(|(id, strategy)| {
                let name = &graph.nodes[id].name;
                let name = name.strip_prefix(&prefix).unwrap_or(name).to_owned();
                (name, graph.declaration(&graph.nodes[id]).describe(strategy))
            });
            let nodes = nodes.collect();
            let blocks = blocks.iter().map(|block| graph.blocks[*block].name.clone()).collect();
            WayFile { blocks, nodes }
        };
        let stage = |stage: &StageOutcome| StageFile {
            first: graph.blocks[stage.blocks.start].name.clone(),
            last: graph.blocks[stage.blocks.end - 1].name.clone(),
            memory_bytes: stage.bytes() as u64,
        };
        let (most, division) = divisions(prepared, &chain, &found.best);
        let activation = activations(planner, cluster, found)?;
        Ok(PlanFile {
            model: model.to_owned(),
            version: if activation.is_empty() { check::FIRST } else { check::VERSION },
            fingerprint: format!("{:016x}", fingerprint(graph)),
            batch: planner.batch(),
            sequence,
            micro_batches: candidate.micro_batches,
            mesh: candidate.mesh.clone(),
            recompute: found.best.recomputed() == prepared.of_block.len(),
            recomputed: recomputed(prepared, &found.best),
            zero: zero_stage(most),
            precision: match planner.settings().precision == Precision::MIXED {
                true => Numbers::Mixed,
                false => Numbers::Single,
            },
            step_s: found.best.seconds,
            bound_s: found.bound_s,
            schedule: *schedule,
            stage: stages.iter().map(stage).collect(),
            shares: found.best.shares.clone(),
            devices: Vec::new(),
            codec: codecs(prepared, cluster, planner.settings(), &found.best),
            activation,
            division,
            way: (0..choice.ways.len()).map(way).collect(),
        })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it is no plan, of another version, or contradicts itself.
    pub fn parse(text: &str) -> Result<PlanFile, Error> {
        check::version(text)?;
        let file = toml::from_str(text).map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            Error::file(format!("line {line}: {}", error.message().replace('\n', ", ")))
        })?;
        check::file(&file)?;
        Ok(file)
    }

    /// The file's text.
    ///
    /// # Panics
    /// Never: everything in a plan can be written.
    pub fn text(&self) -> String {
        toml::to_string(self).expect("a plan has nothing that TOML lacks")
    }

    /// The strategy of every node of the model that this plan is for.
    ///
    /// # Errors
    /// If the model is another one, a node has no strategy or one that it cannot have, or a way
    /// names what the model does not have.
    pub fn strategies(&self, graph: &Graph) -> Result<Vec<Strategy>, Error> {
        let actual = format!("{:016x}", fingerprint(graph));
        if actual != self.fingerprint {
            let PlanFile { fingerprint, batch, micro_batches, sequence, .. } = self;
            let found = format!("the plan is for a model with fingerprint {fingerprint}");
            let sizes = format!("{micro_batches} micro-batches of a batch of {batch}");
            let here = format!("this one has {actual} in {sizes} with sequences of {sequence}");
            return Err(Error::impossible(format!("{found}, {here}")).with_hint(
                "a fingerprint is of batch, micro-batches and sequence, too: make the plan again",
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

/// Whether tensors are where the model itself places them.
fn check_places(graph: &Graph, strategies: &[Strategy]) -> Result<(), Error> {
    for (id, placed) in pinned(graph, &[])? {
        let (node, strategy) = (&graph.nodes[id], &strategies[id]);
        let Some(pin) = placed.iter().find(|pin| !pin.holds(strategy)) else { continue };
        let declaration = graph.declaration(node);
        let [found, expected] =
            [strategy, &Strategy(vec![pin.cut])].map(|strategy| declaration.describe(strategy));
        let message = format!("'{}' is cut as '{found}', the model places it", node.name);
        return Err(Error::file(format!("{message} '{expected}' on dimension {}", pin.dim)));
    }
    Ok(())
}

/// A strategy from its text: axes by their names, `-` for none, `+` for partial sums.
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
