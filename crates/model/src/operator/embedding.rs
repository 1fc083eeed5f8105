//! Rows of a table: `table[v,n] ids[..] -> y[..,n]`.
//!
//! With the vocabulary cut, every rank gives the rows that it has and zeros for the others, so the
//! output is partial.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{dims, inputs, split_last};
use crate::{Axes, Declaration, Dim, Error, Operand};

/// Rows of a table; inputs table and ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Embedding;

/// The gradient of a table; inputs ids and dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingBackward {
    /// The rows of the table.
    pub rows: usize,
}

/// The axes of both: those of the ids, of the rows, and of a row.
fn axes(ids: &[usize], rows: usize, features: usize) -> Result<(Axes, Vec<Dim>, Dim, Dim), Error> {
    let mut axes = Axes::default();
    let leading = axes.leading_without_v(ids)?;
    let (rows, features) = (axes.even('v', rows), axes.even('n', features));
    Ok((axes, leading, rows, features))
}

impl Rule for Embedding {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [table, ids] = inputs(shapes)?;
        let [v, n] = dims("table", table)?;
        let (axes, leading, v, n) = axes(ids, v, n)?;
        let y = Operand::new("y", [&leading[..], &[n]].concat());
        Ok(axes.declare([Operand::new("table", [v, n]), Operand::new("ids", leading)], [y], 0.0))
    }
}

impl Rule for EmbeddingBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [ids, dy] = inputs(shapes)?;
        let (n, _) = split_last("dy", dy)?;
        let (axes, leading, v, n) = axes(ids, self.rows, n)?;
        let dy = Operand::new("dy", [&leading[..], &[n]].concat());
        let flops = dy.dims.iter().map(|dim| axes.length(*dim) as f64).product();
        let operands = [Operand::new("ids", leading), dy];
        Ok(axes.declare(operands, [Operand::new("dtable", [v, n])], flops))
    }
}
