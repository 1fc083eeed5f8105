//! Text for a language model: a batch of bytes as the inputs of micro-batches.

use thinwire_model::{Array, Graph, Operator, Role, TensorId};

use super::machine::Inputs;
use super::plan::invalid;
use crate::error::Error;
use crate::{Batch, VOCABULARY};

/// What a model of text reads, by its tensors.
#[derive(Clone, Debug)]
pub struct Text {
    inputs: Vec<(TensorId, What)>,
    rows: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Tokens,
    Positions,
    Targets,
}

impl Text {
    /// The inputs of a model, for micro-batches of its own size.
    ///
    /// # Errors
    /// If it reads anything else than tokens, positions and targets, or knows fewer tokens than
    /// there are bytes.
    pub fn new(graph: &Graph) -> Result<Text, Error> {
        let inputs = graph.tensors.iter().enumerate();
        let inputs = inputs.filter(|(_, tensor)| tensor.role == Role::Input);
        let what = |(id, tensor): (TensorId, &thinwire_model::Tensor)| match &tensor.name[..] {
            "tokens" => Ok((id, What::Tokens)),
            "positions" => Ok((id, What::Positions)),
            "targets" => Ok((id, What::Targets)),
            name => Err(invalid(format!(
                "the model reads '{name}', expected tokens, positions and targets alone"
            ))),
        };
        let inputs = inputs.map(what).collect::<Result<Vec<_>, Error>>()?;
        let tokens = inputs.iter().find(|(_, what)| *what == What::Tokens).map(|(id, _)| *id);
        let tokens = tokens.ok_or_else(|| invalid("the model reads no tokens".to_owned()))?;
        let known = vocabulary(graph, tokens);
        if known < VOCABULARY {
            let message =
                format!("the model knows {known} tokens, expected {VOCABULARY}: text is bytes");
            return Err(invalid(message));
        }
        Ok(Text { inputs, rows: graph.tensors[tokens].shape[0] })
    }

    /// A batch, micro-batch by micro-batch.
    pub fn inputs(&self, batch: &Batch) -> Vec<Inputs> {
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
        };
        self.inputs.iter().map(|(id, what)| (*id, value(*what))).collect()
    }
}

/// How many tokens the table has that is looked into.
fn vocabulary(graph: &Graph, tokens: TensorId) -> usize {
    let table = graph.nodes.iter().find_map(|node| match node.operator {
        Operator::Embedding(_) if node.inputs.contains(&tokens) => Some(node.inputs[0]),
        _ => None,
    });
    table.map_or(0, |table| graph.tensors[table].shape[0])
}
