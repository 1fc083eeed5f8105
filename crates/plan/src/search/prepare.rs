//! Models prepared for planning at one size of micro-batch: classes of equal blocks, the tensors
//! between blocks, and the work of each class.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use thinwire_model::{Block, Graph, NodeId, Role, TensorId, backward, classes};

use super::Pin;
use super::cache::ModelCache;
use super::pin::pinned;
use crate::Error;
use crate::cost::{Pinned, Work, work};

/// Model, divided into blocks.
#[derive(Debug)]
pub struct Prepared {
    /// Model.
    pub graph: Graph,
    /// Classes of equal blocks, each by its first block.
    pub classes: Vec<Class>,
    /// Class of every block.
    pub of_block: Vec<usize>,
    /// Elements of all parameters.
    pub parameters: f64,
    /// Users of each parameter that several blocks read, in order.
    pub(super) shared: Vec<Vec<User>>,
    /// Results that do not depend on links.
    pub(super) cache: ModelCache,
}

/// Block that represents all equal ones.
#[derive(Debug)]
pub struct Class {
    /// Nodes of the block.
    pub nodes: Range<NodeId>,
    /// Tensor from the previous block.
    pub entry: Option<TensorId>,
    /// Tensor for the next block.
    pub exit: Option<TensorId>,
    /// Work of the nodes of the block.
    pub work: HashMap<NodeId, Work>,
}

/// Input of a node that is a parameter.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    /// Block of the node.
    pub block: usize,
    /// Node, as the first block of the class names it.
    pub node: NodeId,
    /// Index of the input.
    pub input: usize,
}

impl Prepared {
    /// Prepares a model.
    ///
    /// # Errors
    /// Returns an error if the model has no gradients, or if two blocks are joined by more than one tensor.
    pub fn new(graph: Graph) -> Result<Prepared, Error> {
        Prepared::pinned(graph, &[])
    }

    /// Prepares a model for which the user has chosen some cuts. Blocks with different pins are not
    /// equal.
    ///
    /// # Errors
    /// Returns the errors of [`Prepared::new`], and an error if a pin matches no node or pins
    /// contradict each other.
    pub fn pinned(graph: Graph, pins: &[Pin]) -> Result<Prepared, Error> {
        let pinned = pinned(&graph, pins)?;
        let wrong = |error: thinwire_model::Error| Error::impossible(error.to_string());
        let training = backward(&graph).map_err(wrong)?;
        let waists = waists(&graph)?;
        let mut of_block = vec![0; graph.blocks.len()];
        let mut all = Vec::new();
        let of = |block: usize| pins_of(&pinned, graph.blocks[block].nodes.clone());
        for (place, blocks) in classes(&graph).iter().flat_map(|class| alike(class, of)).enumerate()
        {
            blocks.iter().for_each(|block| of_block[*block] = place);
            let first = blocks[0];
            let nodes = graph.blocks[first].nodes.clone();
            let entry = first.checked_sub(1).and_then(|before| waists[before]);
            let mut work = work(&training, nodes.clone());
            for (id, work) in &mut work {
                work.pinned = pinned.get(id).cloned().unwrap_or_default();
            }
            all.push(Class { nodes, entry, exit: waists[first], work });
        }
        let parameters = graph.parameters().map(|(_, tensor)| tensor.elements() as f64).sum();
        let cache = ModelCache::default();
        let shared = shared(&graph, |block| all[of_block[block]].nodes.start);
        Ok(Prepared { graph, classes: all, of_block, parameters, shared, cache })
    }

    /// Returns the model with a cache that shares with another model whatever holds for every size of
    /// micro-batch.
    pub(super) fn beside(self, other: &Prepared) -> Prepared {
        Prepared { cache: ModelCache::beside(&other.cache), ..self }
    }
}

/// Returns the users of each parameter that several blocks read; `first` gives the first node of the first
/// block of a block's class.
fn shared(graph: &Graph, first: impl Fn(usize) -> NodeId) -> Vec<Vec<User>> {
    let mut users: BTreeMap<TensorId, Vec<User>> = BTreeMap::new();
    for (block, Block { nodes, .. }) in graph.blocks.iter().enumerate() {
        for id in nodes.clone() {
            for (input, tensor) in graph.nodes[id].inputs.iter().enumerate() {
                if matches!(graph.tensors[*tensor].role, Role::Parameter(_)) {
                    let node = id - nodes.start + first(block);
                    users.entry(*tensor).or_default().push(User { block, node, input });
                }
            }
        }
    }
    let several = |users: &Vec<User>| users.iter().any(|user| user.block != users[0].block);
    users.into_values().filter(several).collect()
}

/// Returns the pins of some nodes, by the nodes' indices among them.
fn pins_of(
    pinned: &HashMap<NodeId, Vec<Pinned>>,
    nodes: Range<NodeId>,
) -> Vec<(usize, Vec<Pinned>)> {
    let first = nodes.start;
    nodes.filter_map(|id| Some((id - first, pinned.get(&id)?.clone()))).collect()
}

/// Returns the blocks of a class, grouped by their pins.
fn alike<Pins: PartialEq>(
    class: &thinwire_model::Class,
    of: impl Fn(usize) -> Pins,
) -> Vec<Vec<usize>> {
    let mut groups: Vec<(Pins, Vec<usize>)> = Vec::new();
    for block in &class.blocks {
        let pins = of(*block);
        match groups.iter_mut().find(|(known, _)| *known == pins) {
            Some((_, blocks)) => blocks.push(*block),
            None => groups.push((pins, vec![*block])),
        }
    }
    groups.into_iter().map(|(_, blocks)| blocks).collect()
}

/// Returns for every block the tensor that later blocks read; `None` for the last block.
fn waists(graph: &Graph) -> Result<Vec<Option<TensorId>>, Error> {
    let mut block_of = vec![0; graph.nodes.len()];
    for (at, block) in graph.blocks.iter().enumerate() {
        block.nodes.clone().for_each(|node| block_of[node] = at);
    }
    let mut last_read = vec![0; graph.tensors.len()];
    for (node, block) in graph.nodes.iter().zip(&block_of) {
        node.inputs.iter().for_each(|tensor| last_read[*tensor] = *block);
    }
    let mut open: Vec<TensorId> = Vec::new();
    let mut waists = Vec::new();
    for (at, block) in graph.blocks.iter().enumerate() {
        let made = graph.nodes[block.nodes.clone()].iter().flat_map(|node| &node.outputs);
        open.extend(made.filter(|tensor| graph.tensors[**tensor].role == Role::Activation));
        open.retain(|tensor| last_read[*tensor] > at);
        if open.len() > 1 {
            let names: Vec<_> =
                open.iter().map(|tensor| graph.tensors[*tensor].name.as_str()).collect();
            let found = format!("{} tensors leave block '{}'", open.len(), block.name);
            return Err(Error::impossible(format!("{found}, expected one: {}", names.join(", "))));
        }
        waists.push(open.first().copied());
    }
    Ok(waists)
}
