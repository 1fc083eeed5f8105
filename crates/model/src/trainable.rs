//! Checks that a graph can be trained.
//!
//! Plans refer to nodes and blocks by name, and checkpoints to parameters, so names must be unique. Every
//! parameter must consist of real numbers on which the loss depends, since otherwise it has no gradient.

use crate::{Element, Error, Graph, Initial, Kind, Role, Tensor, backward, check_distinct};

/// Largest standard deviation; a larger one is refused as a mistake.
const DEVIATION_MAX: f64 = 1e3;

/// Refuses a graph in which something could not be trained, and names it.
///
/// # Errors
/// If two nodes, blocks or parameters have the same name, a parameter has indices or an invalid initial
/// value, or the loss has no gradient with respect to it.
pub fn check_trainable(graph: &Graph) -> Result<(), Error> {
    check_distinct(Kind::Name, "nodes", graph.nodes.iter().map(|node| &*node.name))?;
    check_distinct(Kind::Name, "blocks", graph.blocks.iter().map(|block| &*block.name))?;
    check_distinct(Kind::Name, "parameters", graph.parameters().map(|(_, tensor)| &*tensor.name))?;
    graph.parameters().try_for_each(|(_, tensor)| check_parameter(tensor))?;
    let gradients = backward(graph)?.gradients;
    match graph.parameters().find(|(id, _)| gradients[*id].is_none()) {
        None => Ok(()),
        Some((_, tensor)) => {
            let message = "the loss does not depend on this parameter, expected only parameters \
                that it depends on";
            Err(Error::new(Kind::Gradient, message).at(&tensor.name))
        }
    }
}

fn check_parameter(tensor: &Tensor) -> Result<(), Error> {
    let wrong = |message: String| Err(Error::new(Kind::File, message).at(&tensor.name));
    if tensor.element != Element::Float {
        return wrong(format!("a parameter of element {:?}, expected Float", tensor.element));
    }
    match tensor.role {
        Role::Parameter(Initial::Normal(found)) if !(0.0..=DEVIATION_MAX).contains(&found) => {
            wrong(format!("a deviation of {found:e}, expected 0 to {DEVIATION_MAX}"))
        }
        _ => Ok(()),
    }
}
