//! What is to be run: where every node works, and when.
//!
//! Ranks form `stages` meshes of the same shape, one after the other. A block of the model belongs
//! to a chunk of the pipeline; chunk c is on stage c modulo `stages`, so that a stage has several
//! chunks where the pipeline is interleaved.

use thinwire_model::{Graph, NodeId, Origin, Strategy, Training};

use super::carriage::Carriage;
use super::order::{self, Turn};
use crate::error::{Error, Kind};

/// A dimension of the mesh that every stage is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshDim {
    /// What it is called, such as "data".
    pub name: String,
    /// How many ranks it has.
    pub size: usize,
}

/// How far a parameter's state is cut along the dimensions of the mesh on which it is replicated
/// (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharding {
    /// Nothing is cut.
    Nothing,
    /// What the optimiser keeps.
    State,
    /// That, and the sum of gradients.
    Gradients,
    /// That, and the parameter itself, which is gathered where it is used.
    Parameters,
}

/// What a plan says of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlan {
    /// The chunk of the pipeline that it is in.
    pub chunk: usize,
    /// Whether what it computes is computed again for backward, instead of being kept.
    pub recompute: bool,
}

/// What a part of the batch does where parts do unequal work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its micro-batches of a step.
    pub micro_batches: usize,
    /// For every stage, what it does in a step.
    pub orders: Vec<Vec<Turn>>,
}

/// How a graph is run by many ranks.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The mesh of every stage.
    pub mesh: Vec<MeshDim>,
    /// How many stages there are.
    pub stages: usize,
    /// For every node of the graph, what it does on each dimension of the mesh.
    pub strategies: Vec<Strategy>,
    /// For every block of the graph.
    pub blocks: Vec<BlockPlan>,
    /// For every parameter, in the order of [`Graph::parameters`].
    pub sharding: Vec<Sharding>,
    /// For every parameter, what its gradient travels by where ranks sum it.
    pub codecs: Vec<Carriage>,
    /// What activations and their gradients travel by, between stages and within them: whatever is
    /// meant for the outermost units of neighbours between which a transfer goes. Empty where all
    /// travels as it is.
    pub activations: Vec<Carriage>,
    /// Micro-batches of a step.
    pub micro_batches: usize,
    /// For every stage, what it does in a step.
    pub orders: Vec<Vec<Turn>>,
    /// For every part along the first dimension of the mesh, what it does; empty where all do alike.
    /// Together they do as much as if they did.
    pub shares: Vec<Share>,
}

impl Plan {
    /// One rank does it all.
    pub fn alone(graph: &Graph) -> Plan {
        Plan {
            mesh: Vec::new(),
            stages: 1,
            strategies: vec![Strategy(Vec::new()); graph.nodes.len()],
            blocks: vec![BlockPlan { chunk: 0, recompute: false }; graph.blocks.len()],
            sharding: vec![Sharding::Nothing; graph.parameters().count()],
            codecs: vec![Carriage::raw(); graph.parameters().count()],
            activations: Vec::new(),
            micro_batches: 1,
            orders: vec![order::gpipe(0, 1, 1, 1)],
            shares: Vec::new(),
        }
    }

    /// The lengths of the mesh.
    pub fn sizes(&self) -> Vec<usize> {
        self.mesh.iter().map(|dim| dim.size).collect()
    }

    /// The ranks of one stage.
    pub fn stage_ranks(&self) -> usize {
        self.mesh.iter().map(|dim| dim.size).product()
    }

    /// All ranks.
    pub fn ranks(&self) -> usize {
        self.stages * self.stage_ranks()
    }

    /// The chunks of the pipeline.
    pub fn chunks(&self) -> usize {
        self.blocks.iter().map(|block| block.chunk + 1).max().unwrap_or(1)
    }

    /// What tells plans apart whose codecs owe something; none if none do.
    pub(super) fn owing(&self) -> Option<String> {
        let owes = self.codecs.iter().any(|carriage| carriage.codec.needs_feedback());
        owes.then(|| format!("{:08x}", thinwire_wire::checksum(format!("{self:?}").as_bytes())))
    }

    /// What is said of the block of a node; nodes before the first block go with it.
    pub fn block_of(&self, graph: &Graph, node: NodeId) -> BlockPlan {
        let before = graph.blocks.iter().take_while(|block| block.nodes.start <= node).count();
        let none = BlockPlan { chunk: 0, recompute: false };
        self.blocks.get(before.saturating_sub(1)).copied().unwrap_or(none)
    }

    /// Whether the plan is one of this graph, and its orders come to an end.
    ///
    /// # Errors
    /// If it is not.
    pub fn check(&self, training: &Training) -> Result<(), Error> {
        let graph = &training.graph;
        let forward = training.origins.iter().filter(|origin| **origin == Origin::Forward).count();
        let parameters = graph.parameters().count();
        let counts = [
            ("strategies", self.strategies.len(), forward),
            ("blocks", self.blocks.len(), graph.blocks.len()),
            ("shardings", self.sharding.len(), parameters),
            ("codecs", self.codecs.len(), parameters),
            ("orders", self.orders.len(), self.stages),
        ];
        if let Some((name, found, expected)) = counts.iter().find(|(_, a, b)| a != b) {
            return Err(invalid(format!("{name} of the plan: {found}, expected {expected}")));
        }
        let sizes = self.sizes();
        for (node, strategy) in graph.nodes.iter().zip(&self.strategies) {
            let declaration = graph.declaration(node);
            if strategy.0.len() != sizes.len() || !declaration.allows(strategy, &sizes) {
                let text = declaration.describe(strategy);
                let name = &node.name;
                return Err(invalid(format!("{name} cannot be cut as '{text}' on mesh {sizes:?}")));
            }
        }
        self.check_shares()?;
        order::check(&self.orders, self.chunks(), self.micro_batches)
    }

    fn check_shares(&self) -> Result<(), Error> {
        if self.shares.is_empty() {
            return Ok(());
        }
        let counts: Vec<usize> = self.shares.iter().map(|share| share.micro_batches).collect();
        let (parts, each) = (self.sizes().first().copied().unwrap_or(1), self.micro_batches);
        let all = counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count));
        if counts.len() != parts || counts.contains(&0) || all != Some(parts * each) {
            let found = format!("parts of the mesh have {counts:?} micro-batches");
            let expected = format!("expected {} in {parts} parts, none without", parts * each);
            return Err(invalid(format!("{found}, {expected}")));
        }
        self.shares
            .iter()
            .try_for_each(|share| order::check(&share.orders, self.chunks(), share.micro_batches))
    }
}

pub(super) fn invalid(text: String) -> Error {
    Error::new(Kind::Invalid, text)
}
