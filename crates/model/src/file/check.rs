//! Checks of a model file: tensors, nodes, loss, blocks and sequence.

use super::Stretch;
use super::sizes::NUMBER_MAX;
use crate::graph::check_sizes;
use crate::{Block, Element, Error, Graph, Kind, Node, Role, Tensor, TensorId};

/// Largest number of dimensions; a larger one is refused as a mistake.
const DIMENSIONS_MAX: usize = 16;

/// Checks that sizes and numbers of dimensions are in range and no tensor is empty, and returns the tensors.
pub(super) fn tensors(tensors: Vec<Tensor>) -> Result<Vec<Tensor>, Error> {
    for tensor in &tensors {
        let dimensions = tensor.shape.len();
        if dimensions > DIMENSIONS_MAX {
            let message =
                format!("a shape of {dimensions} dimensions, expected at most {DIMENSIONS_MAX}");
            return Err(Error::new(Kind::Sizes, message).at(&tensor.name));
        }
        if tensor.shape.contains(&0) {
            let message = format!("shape {:?} has nothing in it, expected 1 or more", tensor.shape);
            return Err(Error::new(Kind::Sizes, message).at(&tensor.name));
        }
        check_sizes(std::slice::from_ref(&tensor.shape)).map_err(|error| error.at(&tensor.name))?;
    }
    Ok(tensors)
}

/// Adds nodes. Each must read tensors that exist before it, and write the outputs of its operator.
pub(super) fn nodes(graph: &mut Graph, nodes: Vec<Node>) -> Result<(), Error> {
    let activation = |tensor: &Tensor| tensor.role == Role::Activation;
    let mut there: Vec<bool> = graph.tensors.iter().map(|tensor| !activation(tensor)).collect();
    for (at, node) in nodes.into_iter().enumerate() {
        check(graph, &node, &mut there)
            .map_err(|error| error.at(&format!("node {at} '{}'", node.name)))?;
        graph.nodes.push(node);
    }
    let missing = there.iter().position(|there| !there);
    missing.map_or(Ok(()), |missing| {
        let name = &graph.tensors[missing].name;
        let message = format!("tensor {missing} '{name}' is an activation, and no node writes it");
        Err(Error::new(Kind::File, message))
    })
}

/// Checks that a node can be added, and marks the tensors that it writes as existing.
fn check(graph: &Graph, node: &Node, there: &mut [bool]) -> Result<(), Error> {
    for id in &node.inputs {
        if !there[known(graph, *id, "input")?] {
            let name = &graph.tensors[*id].name;
            let message = format!("it reads tensor {id} '{name}', which no node before it writes");
            return Err(Error::new(Kind::File, message));
        }
    }
    let shapes: Vec<&[usize]> =
        node.inputs.iter().map(|id| &graph.tensors[*id].shape[..]).collect();
    let given = node.operator.declare(&shapes)?.output_shapes();
    check_sizes(&given)?;
    if given.len() != node.outputs.len() {
        let message = format!("it writes {} tensors, expected {}", node.outputs.len(), given.len());
        return Err(Error::new(Kind::File, message));
    }
    for (id, given) in node.outputs.iter().zip(given) {
        let tensor = &graph.tensors[known(graph, *id, "output")?];
        let Tensor { name, shape, element, .. } = tensor;
        if *shape != given || *element != Element::Float {
            let message = format!(
                "its output '{name}' is {element:?} of shape {shape:?}, expected Float of {given:?}"
            );
            return Err(Error::new(Kind::File, message));
        }
        if std::mem::replace(&mut there[*id], true) {
            let message = format!("it writes tensor {id} '{}', which exists already", tensor.name);
            return Err(Error::new(Kind::File, message));
        }
    }
    Ok(())
}

/// Returns a tensor that must exist.
pub(super) fn known(graph: &Graph, id: TensorId, what: &str) -> Result<TensorId, Error> {
    let count = graph.tensors.len();
    if id >= count {
        let message = format!("{what} is tensor {id}, expected one of the {count}");
        return Err(Error::new(Kind::File, message));
    }
    Ok(id)
}

/// Returns the loss, which must have one element.
pub(super) fn loss(graph: &Graph, id: TensorId) -> Result<TensorId, Error> {
    let shape = &graph.tensors[known(graph, id, "loss")?].shape;
    if shape.iter().any(|length| *length != 1) {
        let message = format!("the loss has shape {shape:?}, expected one element");
        return Err(Error::new(Kind::File, message));
    }
    Ok(id)
}

/// Checks that sequences are as long as the model's indices that have a value for every position of every
/// sequence, if it has such indices; the length is 1 for a model without sequences.
pub(super) fn sequence(graph: &Graph, batch: usize, sequence: usize) -> Result<(), Error> {
    if sequence == 0 || sequence as u64 > NUMBER_MAX {
        let message = format!("a sequence of {sequence}, expected 1 to {NUMBER_MAX}");
        return Err(Error::new(Kind::Sizes, message));
    }
    let places = graph.tensors.iter().filter(|tensor| {
        let [rows, _] = tensor.shape[..] else { return false };
        tensor.role == Role::Input && tensor.element == Element::Index && rows == batch
    });
    let places: Vec<&Tensor> = places.collect();
    if sequence == 1 || places.is_empty() || places.iter().any(|one| one.shape[1] == sequence) {
        return Ok(());
    }
    let (name, length) = (&places[0].name, places[0].shape[1]);
    let message =
        format!("sequence is {sequence}, expected {length}, the length of input '{name}'");
    Err(Error::new(Kind::Sizes, message))
}

/// Adds blocks, which must contain all nodes, one after the other.
pub(super) fn blocks(graph: &mut Graph, blocks: &[Stretch]) -> Result<(), Error> {
    let mut next = 0_usize;
    for Stretch { name, nodes } in blocks {
        let end = next.saturating_add(*nodes);
        graph.blocks.push(Block { name: name.clone(), nodes: next..end });
        next = end;
    }
    let refused = |message: String| Err(Error::new(Kind::File, message));
    if let Some(at) = blocks.iter().position(|block| block.nodes == 0) {
        let name = &blocks[at].name;
        return refused(format!("block {at} '{name}' has 0 nodes, expected 1 or more"));
    }
    if next != graph.nodes.len() {
        return refused(format!(
            "blocks have {next} nodes in total, expected {}",
            graph.nodes.len()
        ));
    }
    Ok(())
}
