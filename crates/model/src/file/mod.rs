//! A model as a file: JSON that other programs write and read.
//!
//! A file has tensors, the nodes in an order in which they can be computed, blocks and the loss, for any
//! batch. A writer may leave out the blocks, and name the `output` instead of the loss: then blocks are
//! found, and a cross-entropy is added. docs/planning.md has an example. Law: writing and reading gives an
//! equal model for every batch, with the same fingerprint.

mod check;
mod json;
mod sizes;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Error, Graph, Kind, TensorId, check_trainable, divide, learn};

pub use json::check_keys;

/// The version that is written and read.
const VERSION: u64 = 1;

/// Hint at the documentation of the fields.
const HINT: &str = "thinwire model show NAME --output model.json writes an example";

/// A model file that was read, or is to be written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    thinwire_model: u64,
    /// Name of the model.
    pub name: String,
    /// Tokens of a sequence; 1 without sequences.
    pub sequence: usize,
    tensors: Vec<Value>,
    nodes: Vec<Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    blocks: Vec<Stretch>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    loss: Option<TensorId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    output: Option<TensorId>,
}

/// A block, given by its number of nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stretch {
    name: String,
    nodes: usize,
}

impl ModelFile {
    /// Returns the file of a model that can be built for any batch.
    ///
    /// # Errors
    /// If it cannot be built, or if it has a number that changes with the batch, but not in proportion
    /// to it.
    pub fn new(
        name: impl Into<String>,
        sequence: usize,
        build: impl Fn(usize) -> Result<Graph, Error>,
    ) -> Result<ModelFile, Error> {
        let [once, twice] = [build(sizes::SEEN[0])?, build(sizes::SEEN[1])?];
        if once.nodes.len() != twice.nodes.len() || once.tensors.len() != twice.tensors.len() {
            let counts = [once.nodes.len(), twice.nodes.len()];
            let message =
                format!("{counts:?} nodes for batches of 1 and 2, expected equal numbers");
            return Err(Error::new(Kind::Sizes, message));
        }
        let stretch =
            |block: &crate::Block| Stretch { name: block.name.clone(), nodes: block.nodes.len() };
        Ok(ModelFile {
            thinwire_model: VERSION,
            name: name.into(),
            sequence,
            tensors: merged(&once.tensors, &twice.tensors)?,
            nodes: merged(&once.nodes, &twice.nodes)?,
            blocks: once.blocks.iter().map(stretch).collect(),
            loss: once.loss,
            output: None,
        })
    }

    /// Parses the text of a file. Operands are checked when a graph is built.
    ///
    /// # Errors
    /// If it is not a model file, or is of another version.
    pub fn parse(text: &str) -> Result<ModelFile, Error> {
        let json::Strict(value) = serde_json::from_str(text)
            .map_err(|error| Error::new(Kind::File, format!("it is no JSON: {error}")))?;
        json::check_names(&value)?;
        match &value["thinwire_model"] {
            Value::Number(number) if number.as_u64() == Some(VERSION) => {}
            found => {
                let message = format!("thinwire_model is {found}, expected {VERSION}");
                return Err(Error::new(Kind::File, message));
            }
        }
        from_value(value)
    }

    /// Returns the text of the file, with one line for every tensor and node.
    pub fn text(&self) -> String {
        let lines = |values: Vec<String>| format!("[\n    {}\n  ]", values.join(",\n    "));
        let texts = |values: &[Value]| lines(values.iter().map(Value::to_string).collect());
        let stretches = self.blocks.iter();
        let stretches = stretches
            .map(|Stretch { name, nodes }| json!({ "name": name, "nodes": nodes }).to_string());
        let mut fields = vec![
            format!("\"thinwire_model\": {}", self.thinwire_model),
            format!("\"name\": {}", json!(self.name)),
            format!("\"sequence\": {}", self.sequence),
            format!("\"tensors\": {}", texts(&self.tensors)),
            format!("\"nodes\": {}", texts(&self.nodes)),
        ];
        if !self.blocks.is_empty() {
            fields.push(format!("\"blocks\": {}", lines(stretches.collect())));
        }
        fields.extend(self.loss.map(|loss| format!("\"loss\": {loss}")));
        fields.extend(self.output.map(|output| format!("\"output\": {output}")));
        format!("{{\n  {}\n}}\n", fields.join(",\n  "))
    }

    /// Returns the model for a batch.
    ///
    /// # Errors
    /// If an operator cannot take its operands, the shape of a node's output is not the operator's, a
    /// tensor is read before it is computed, or a parameter could not be trained.
    pub fn graph(&self, batch: usize) -> Result<Graph, Error> {
        self.built(batch).map_err(|error| error.or_hint(HINT))
    }

    fn built(&self, batch: usize) -> Result<Graph, Error> {
        if batch == 0 {
            return Err(Error::new(Kind::Sizes, "a batch of 0, expected 1 or more"));
        }
        let mut graph = Graph {
            tensors: check::tensors(filled(&self.tensors, "tensor", batch)?)?,
            ..Graph::default()
        };
        check::nodes(&mut graph, filled(&self.nodes, "node", batch)?)?;
        match (self.loss, self.output) {
            (Some(loss), None) => graph.loss = Some(check::loss(&graph, loss)?),
            (None, Some(output)) => {
                let output = check::known(&graph, output, "output")?;
                learn(&mut graph, output)?;
            }
            _ => {
                let message = "it needs either a loss or an output, and has both or none";
                return Err(Error::new(Kind::File, message));
            }
        }
        match &self.blocks[..] {
            [] => divide(&mut graph),
            blocks => check::blocks(&mut graph, blocks)?,
        }
        check::sequence(&graph, batch, self.sequence)?;
        check_trainable(&graph)?;
        Ok(graph)
    }
}

/// Merges the values for two batches.
fn merged<T: Serialize>(once: &[T], twice: &[T]) -> Result<Vec<Value>, Error> {
    let value = |item: &T| {
        serde_json::to_value(item).map_err(|error| Error::new(Kind::File, error.to_string()))
    };
    let pair = |(once, twice)| sizes::merge(value(once)?, value(twice)?);
    once.iter().zip(twice).map(pair).collect()
}

/// Returns values for a batch, parsed as their types.
fn filled<T: serde::de::DeserializeOwned>(
    values: &[Value],
    kind: &str,
    batch: usize,
) -> Result<Vec<T>, Error> {
    let item = |(at, value): (usize, &Value)| {
        sizes::fill(value, batch).and_then(from_value).map_err(|error| {
            let name = value["name"].as_str().unwrap_or("?");
            error.at(&format!("{kind} {at} '{name}'"))
        })
    };
    values.iter().enumerate().map(item).collect()
}

fn from_value<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Error> {
    serde_json::from_value(value).map_err(|error| Error::new(Kind::File, error.to_string()))
}
