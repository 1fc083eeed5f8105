//! Text for a language model: converts a batch of bytes to the inputs of micro-batches.
//!
//! Inputs are recognised by their roles and shapes, so that models from other programs may name them freely.
//! The loss compares with the targets; tokens are the other index that has a value for every position of
//! every sequence; positions are an index for every position. If this is ambiguous, names decide. Segments
//! are recognised by name, and all tokens belong to the first one.

use std::collections::HashMap;

use thinwire_model::{Array, Element, Graph, Operator, Role, Tensor, TensorId};

use super::invalid;
use crate::error::Error;
use crate::{VOCABULARY, Windows};

/// Inputs of one whole micro-batch; each rank cuts its part out of them.
pub type Inputs = HashMap<TensorId, Array>;

/// Inputs of a model of text, by their tensors.
#[derive(Clone, Debug)]
pub struct Text {
    inputs: Vec<Input>,
    rows: usize,
    length: usize,
}

#[derive(Clone, Debug)]
struct Input {
    tensor: TensorId,
    what: What,
    shape: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Tokens,
    Positions,
    Targets,
    /// Number of the text to which a token belongs, for models that read two texts; here it is always
    /// the first.
    Segments,
}

/// Names of segments, here and in exporters.
const SEGMENTS: [&str; 2] = ["segments", "token_type_ids"];

impl Text {
    /// Returns the inputs of a model, for micro-batches of its own size. `named` is the name of the input
    /// with the tokens, if the user gives one.
    ///
    /// # Errors
    /// If the model reads anything other than tokens, positions and targets, its inputs are ambiguous, there
    /// is not one target per token, or it has fewer tokens than there are byte values.
    pub fn new(graph: &Graph, named: Option<&str>) -> Result<Text, Error> {
        let targets = targets(graph)?;
        let tokens = tokens(graph, targets, named)?;
        let (rows, length) = (graph.tensors[tokens].shape[0], graph.tensors[tokens].shape[1]);
        let [read, compared] = [tokens, targets].map(|id| &graph.tensors[id]);
        if read.elements() != compared.elements() {
            let (found, expected) = (&compared.shape, &read.shape);
            let message = format!("targets of shape {found:?} for tokens of shape {expected:?}");
            return Err(invalid(format!("{message}, expected one for each")));
        }
        let what = |(id, tensor): (TensorId, &Tensor)| {
            let place = tensor.element == Element::Index
                && tensor.elements() == length
                && tensor.shape.last() == Some(&length);
            match id {
                _ if id == tokens => Ok(What::Tokens),
                _ if id == targets => Ok(What::Targets),
                // Before what may be taken for positions, where there is but one sequence.
                _ if SEGMENTS.contains(&&tensor.name[..]) => Ok(What::Segments),
                _ if place => Ok(What::Positions),
                _ => {
                    let Tensor { name, shape, .. } = tensor;
                    let expected = "expected tokens, positions and targets alone";
                    Err(invalid(format!("the model reads '{name}' of shape {shape:?}, {expected}")))
                }
            }
        };
        let input = |(tensor, described): (TensorId, &Tensor)| {
            let what = what((tensor, described))?;
            Ok(Input { tensor, what, shape: described.shape.clone() })
        };
        let inputs = inputs(graph).map(input).collect::<Result<Vec<_>, Error>>()?;
        let known = vocabulary(graph, tokens);
        if known < VOCABULARY {
            let message =
                format!("the model knows {known} tokens, expected {VOCABULARY}: text is bytes");
            return Err(invalid(message));
        }
        Ok(Text { inputs, rows, length })
    }

    /// Returns the number of sequences of a micro-batch, and of tokens per sequence.
    pub fn sizes(&self) -> [usize; 2] {
        [self.rows, self.length]
    }

    /// Returns the inputs for a batch, micro-batch by micro-batch.
    pub fn inputs(&self, batch: &Windows) -> Vec<Inputs> {
        let rows: Vec<&[u8]> = batch.rows().collect();
        rows.chunks(self.rows).map(|rows| self.micro_batch(rows, batch.context())).collect()
    }

    fn micro_batch(&self, rows: &[&[u8]], context: usize) -> Inputs {
        let bytes = |shift: usize| {
            let bytes = rows.iter().flat_map(|row| &row[shift..shift + context]);
            Array::new([rows.len(), context], bytes.map(|byte| f64::from(*byte)).collect())
        };
        let value = |what: What| match what {
            What::Tokens => bytes(0),
            What::Targets => bytes(1),
            What::Positions => Array::from_fn([context], |at| at[0] as f64),
            What::Segments => Array::from_fn([rows.len(), context], |_| 0.0),
        };
        let input = |Input { tensor, what, shape }: &Input| {
            let whole = value(*what);
            let shape = if *what == What::Positions { &shape[..] } else { whole.shape() };
            (*tensor, Array::new(shape, whole.values().to_vec()))
        };
        self.inputs.iter().map(input).collect()
    }
}

pub(super) fn inputs(graph: &Graph) -> impl Iterator<Item = (TensorId, &Tensor)> {
    graph.tensors.iter().enumerate().filter(|(_, tensor)| tensor.role == Role::Input)
}

/// Returns the tensor with which the loss compares.
pub(super) fn targets(graph: &Graph) -> Result<TensorId, Error> {
    let compared = graph.nodes.iter().rev().find_map(|node| match node.operator {
        Operator::CrossEntropy(_) => Some(node.inputs[1]),
        _ => None,
    });
    let found = compared.filter(|id| graph.tensors[*id].role == Role::Input);
    let message = "the model has no cross-entropy with an input as targets, expected one";
    found.ok_or_else(|| invalid(message.to_owned()))
}

/// Returns the index for every position of every sequence with which the loss does not compare.
fn tokens(graph: &Graph, targets: TensorId, named: Option<&str>) -> Result<TensorId, Error> {
    let fits = |(id, tensor): &(TensorId, &Tensor)| {
        let other = *id == targets || SEGMENTS.contains(&&tensor.name[..]);
        !other && tensor.element == Element::Index && tensor.shape.len() == 2
    };
    let found: Vec<(TensorId, &Tensor)> = inputs(graph).filter(fits).collect();
    let names = || {
        let names: Vec<String> =
            found.iter().map(|(_, tensor)| format!("'{}'", tensor.name)).collect();
        names.join(", ")
    };
    let called = |name: &str| found.iter().find(|(_, tensor)| tensor.name == name);
    match (named.map(|name| (name, called(name))), &found[..]) {
        (Some((_, Some((id, _)))), _) | (None, [(id, _)]) => Ok(*id),
        (_, []) => Err(invalid(
            "the model has no input of indices [batch, sequence] for tokens".to_owned(),
        )),
        (Some((name, None)), _) => Err(invalid(format!(
            "the model has no input '{name}' for tokens, expected {}",
            names()
        ))),
        (None, _) => match called("tokens") {
            Some((id, _)) => Ok(*id),
            None => Err(invalid(format!(
                "several inputs may be the tokens, expected --input tokens=NAME with one of {}",
                names()
            ))),
        },
    }
}

/// Returns the number of rows of the table that tokens look up.
fn vocabulary(graph: &Graph, tokens: TensorId) -> usize {
    let table = graph.nodes.iter().find_map(|node| match node.operator {
        Operator::Embedding(_) if node.inputs.contains(&tokens) => Some(node.inputs[0]),
        _ => None,
    });
    table.map_or(0, |table| graph.tensors[table].shape[0])
}
