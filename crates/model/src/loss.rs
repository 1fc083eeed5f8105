//! The loss that training minimises.

use crate::{
    Arithmetic, CrossEntropy, Element, Error, Graph, Kind, Role, Scale, Sum, Tensor, TensorId,
};

/// Adds the mean cross-entropy of classes as the graph's loss. The names of its nodes begin with `path`.
///
/// # Errors
/// If the number of targets differs from the number of predictions in the logits.
pub fn cross_entropy(
    graph: &mut Graph,
    path: &str,
    logits: TensorId,
    targets: TensorId,
) -> Result<(), Error> {
    let name = |name: &str| format!("{path}{name}");
    let terms = graph.apply(name("cross_entropy"), CrossEntropy.into(), &[logits, targets])?;
    let losses = graph.apply(name("losses"), Arithmetic::Subtract.into(), &terms)?[0];
    let shape = graph.tensors[losses].shape.clone();
    let sum = graph.apply(name("sum"), Sum::over(0..shape.len()).into(), &[losses])?[0];
    let count = shape.iter().product::<usize>() as f64;
    graph.loss = Some(graph.apply(name("loss"), Scale(1.0 / count).into(), &[sum])?[0]);
    Ok(())
}

/// Adds a loss to a graph that only computes logits: targets become one more input, and the last dimension of
/// the logits is the classes.
///
/// # Errors
/// If the logits have one dimension or none, or are indices.
pub fn learn(graph: &mut Graph, logits: TensorId) -> Result<(), Error> {
    let Tensor { shape, element, .. } = &graph.tensors[logits];
    let ([leading @ .., _], Element::Float) = (&shape[..], element) else {
        let message = format!("the output has shape {shape:?} of {element:?}, expected classes");
        return Err(Error::new(Kind::Operands, message));
    };
    let leading = leading.to_vec();
    let targets = graph.source("targets", leading, Element::Index, Role::Input);
    cross_entropy(graph, "", logits, targets)
}
