//! Adds nodes to the graph, and operations that need several nodes.

use thinwire_model::{Broadcast, Error, Kind, Operator, Scale, Sum, Summed, TensorId};

use super::Importer;
use crate::value::Value;

impl Importer<'_> {
    /// Adds a node with one output.
    pub fn apply(
        &mut self,
        name: &str,
        operator: impl Into<Operator>,
        inputs: &[TensorId],
    ) -> Result<TensorId, Error> {
        Ok(self.graph.apply(name, operator.into(), inputs)?[0])
    }

    /// Adds a node with one output that replaces the file's node.
    pub fn node(
        &mut self,
        operator: impl Into<Operator>,
        inputs: &[TensorId],
    ) -> Result<TensorId, Error> {
        self.apply(&self.call.name, operator, inputs)
    }

    /// Adds a node with one output that replaces the file's node, and returns the output as a value.
    pub fn give(
        &mut self,
        operator: impl Into<Operator>,
        inputs: &[TensorId],
    ) -> Result<Value, Error> {
        self.node(operator, inputs).map(Value::Tensor)
    }

    /// Adds a further node for the file's node, with one output. Its name has the suffix `part`.
    pub fn part(
        &mut self,
        part: &str,
        operator: impl Into<Operator>,
        inputs: &[TensorId],
    ) -> Result<TensorId, Error> {
        self.apply(&format!("{}.{part}", self.call.name), operator, inputs)
    }

    /// Adds a sum over some dimensions.
    pub fn sum(
        &mut self,
        name: &str,
        x: TensorId,
        over: &[usize],
        becomes: Summed,
    ) -> Result<TensorId, Error> {
        let of = |dim: usize| if over.contains(&dim) { becomes } else { Summed::No };
        let dims = (0..self.graph.tensors[x].shape.len()).map(of).collect();
        self.apply(name, Sum { dims }, &[x])
    }

    /// Adds a mean over some dimensions.
    pub fn mean(
        &mut self,
        name: &str,
        x: TensorId,
        over: &[usize],
        becomes: Summed,
    ) -> Result<TensorId, Error> {
        let shape = &self.graph.tensors[x].shape;
        let count: usize = over.iter().filter_map(|dim| shape.get(*dim)).product();
        let sum = self.sum(&format!("{name}.sum"), x, over, becomes)?;
        self.apply(name, Scale(1.0 / count as f64), &[sum])
    }

    /// Repeats values along dimensions of length 1 or along missing dimensions.
    pub fn expand(
        &mut self,
        name: &str,
        x: TensorId,
        shape: Vec<usize>,
    ) -> Result<TensorId, Error> {
        let from = self.graph.tensors[x].shape.clone();
        let missing = shape.len().checked_sub(from.len());
        let fits = missing.is_some_and(|missing| {
            let mut pairs = from.iter().zip(&shape[missing..]);
            pairs.all(|(from, to)| from == to || *from == 1)
        });
        if !fits {
            let message = format!("shape {from:?} cannot become {shape:?}");
            return Err(Error::new(Kind::Operands, message));
        }
        if from == shape {
            return Ok(x);
        }
        let sum = Sum::back_to(&shape, &from);
        self.apply(name, Broadcast { shape, sum }, &[x])
    }
}
