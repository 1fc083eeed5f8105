//! Plans: the ranks on which every node of a model is computed, and the order of the passes.
//!
//! Ranks form `stages` meshes of the same shape, one after the other. A block of the model belongs to a chunk
//! of the pipeline; chunk c is on stage c modulo `stages`, so a stage of an interleaved pipeline has several
//! chunks.

use thinwire_model::{Graph, Origin, Strategy, Training};

use crate::pipeline::{self, Pass, Schedule};
use crate::{Error, Transport};

/// A dimension of the mesh, which is the same for every stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshDim {
    /// The name of the dimension, such as "data".
    pub name: String,
    /// The number of ranks.
    pub size: usize,
}

/// The parts of a parameter's state that ranks divide among them if they share its work (Rajbhandari et al.,
/// "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sharding {
    /// Nothing.
    None,
    /// The optimiser's state (ZeRO 1).
    Optimizer,
    /// Also gradients (ZeRO 2). They are scattered with every micro-batch.
    Gradients,
    /// Also parameters (ZeRO 3). They are gathered for the forward and the backward pass of every
    /// micro-batch.
    Parameters,
}

/// A plan's settings for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlan {
    /// The chunk of the pipeline to which the block belongs.
    pub chunk: usize,
    /// Whether the block's forward pass is computed again for the backward pass, instead of keeping its
    /// results.
    pub recompute: bool,
}

/// The work of a part of the batch, if parts have unequal work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The part's micro-batches in a step.
    pub micro_batches: usize,
    /// For every stage, its passes in a step.
    pub orders: Vec<Vec<Pass>>,
}

/// A plan for running a graph on many ranks.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The mesh of every stage.
    pub mesh: Vec<MeshDim>,
    /// The number of stages.
    pub stages: usize,
    /// For every node of the graph, its cut on each dimension of the mesh.
    pub strategies: Vec<Strategy>,
    /// The settings of every block of the graph.
    pub blocks: Vec<BlockPlan>,
    /// The sharding of every parameter, in the order of [`Graph::parameters`].
    pub sharding: Vec<Sharding>,
    /// For every parameter, the transport of its gradient when ranks sum it.
    pub codecs: Vec<Transport>,
    /// The transports of activations and their gradients, between stages and within them. A transfer
    /// uses the transport of the outermost units of neighbours between which it takes place. Empty if
    /// all tensors are sent raw.
    pub activations: Vec<Transport>,
    /// Micro-batches of a step.
    pub micro_batches: usize,
    /// For every stage, its passes in a step.
    pub orders: Vec<Vec<Pass>>,
    /// For every part along the first dimension of the mesh, its work; empty if all parts have the same work.
    /// The total is the same in both cases.
    pub shares: Vec<Share>,
}

impl Plan {
    /// Returns the plan for one rank, which computes everything.
    pub fn alone(graph: &Graph) -> Plan {
        Plan {
            mesh: Vec::new(),
            stages: 1,
            strategies: vec![Strategy(Vec::new()); graph.nodes.len()],
            blocks: vec![BlockPlan { chunk: 0, recompute: false }; graph.blocks.len()],
            sharding: vec![Sharding::None; graph.parameters().count()],
            codecs: vec![Transport::raw(); graph.parameters().count()],
            activations: Vec::new(),
            micro_batches: 1,
            orders: Schedule::Gpipe.orders(1, 1).expect("GPipe is always possible"),
            shares: Vec::new(),
        }
    }

    /// Returns the lengths of the mesh.
    pub fn sizes(&self) -> Vec<usize> {
        self.mesh.iter().map(|dim| dim.size).collect()
    }

    /// Returns the number of ranks of one stage.
    pub fn stage_ranks(&self) -> usize {
        self.mesh.iter().map(|dim| dim.size).product()
    }

    /// Returns the number of all ranks.
    pub fn ranks(&self) -> usize {
        self.stages * self.stage_ranks()
    }

    /// Returns the number of chunks of the pipeline.
    pub fn chunks(&self) -> usize {
        self.blocks.iter().map(|block| block.chunk + 1).max().unwrap_or(1)
    }

    /// Checks that the plan is for this graph, and that the orders terminate.
    ///
    /// # Errors
    /// If the plan is for another graph, or an order does not terminate.
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
            return Err(Error::invalid(format!(
                "{name} of the plan: {found}, expected {expected}"
            )));
        }
        let sizes = self.sizes();
        for (node, strategy) in graph.nodes.iter().zip(&self.strategies) {
            let declaration = graph.declaration(node);
            if strategy.0.len() != sizes.len() || !declaration.allows(strategy, &sizes) {
                let text = declaration.describe(strategy);
                let name = &node.name;
                return Err(Error::invalid(format!(
                    "{name} cannot be cut as '{text}' on mesh {sizes:?}"
                )));
            }
        }
        self.check_shares()?;
        pipeline::check(&self.orders, self.chunks(), self.micro_batches)
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
            let expected =
                format!("expected {} in {parts} parts, and at least one in each", parts * each);
            return Err(Error::invalid(format!("{found}, {expected}")));
        }
        self.shares.iter().try_for_each(|share| {
            pipeline::check(&share.orders, self.chunks(), share.micro_batches)
        })
    }
}

/// Returns a count with its noun, such as "1 stage" or "3 micro-batches".
pub fn counted(count: usize, name: &str) -> String {
    let more = match name.ends_with("ch") {
        _ if count == 1 => "",
        true => "es",
        false => "s",
    };
    format!("{count} {name}{more}")
}

/// Returns the devices of a mesh as text, such as "4 x 2 devices".
pub fn devices(mesh: &[usize]) -> String {
    let sizes: Vec<String> = mesh.iter().map(usize::to_string).collect();
    let s = if mesh.iter().all(|size| *size == 1) { "" } else { "s" };
    format!("{} device{s}", sizes.join(" x "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_no_plural() {
        assert_eq!([counted(1, "stage"), counted(0, "stage")], ["1 stage", "0 stages"]);
        let batches = [counted(1, "micro-batch"), counted(2, "micro-batch")];
        assert_eq!(batches, ["1 micro-batch", "2 micro-batches"]);
        assert_eq!([devices(&[1]), devices(&[4, 2])], ["1 device", "4 x 2 devices"]);
        assert_eq!([devices(&[1, 1]), devices(&[2, 1])], ["1 x 1 device", "2 x 1 devices"]);
    }
}
