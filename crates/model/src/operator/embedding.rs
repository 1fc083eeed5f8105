//! Rows of a table: `table[v,n] ids[..] -> y[..,n]`.
//!
//! With the vocabulary cut, every rank gives the rows that it has and zeros for the others, so the
//! output is partial. One row may be padding: it is read as all others, and gets no gradient.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{dims, inputs, split_last};
use crate::{Axes, Declaration, Dim, Error, Kind, Operand};

/// Rows of a table; inputs table and ids. Written as null without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Option<Padding>", into = "Option<Padding>")]
pub struct Embedding {
    /// The row that gets no gradient, PyTorch's `padding_idx`.
    pub padding: Option<usize>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Padding {
    padding: usize,
}

/// The gradient of a table; inputs ids and dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingBackward {
    /// The rows of the table.
    pub rows: usize,
    /// The row that gets no gradient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding: Option<usize>,
}

impl Embedding {
    /// Creates an embedding without padding.
    pub const fn plain() -> Embedding {
        Embedding { padding: None }
    }
}

impl From<Option<Padding>> for Embedding {
    fn from(file: Option<Padding>) -> Embedding {
        Embedding { padding: file.map(|file| file.padding) }
    }
}

impl From<Embedding> for Option<Padding> {
    fn from(embedding: Embedding) -> Option<Padding> {
        embedding.padding.map(|padding| Padding { padding })
    }
}

/// The axes of both: those of the ids, of the rows, and of a row.
fn axes(
    ids: &[usize],
    [rows, features]: [usize; 2],
    padding: Option<usize>,
) -> Result<(Axes, Vec<Dim>, Dim, Dim), Error> {
    if let Some(row) = padding.filter(|row| *row >= rows) {
        let text = format!("padding row {row}, expected one of {rows} rows");
        return Err(Error::new(Kind::Operands, text));
    }
    let mut axes = Axes::default();
    let leading = axes.leading_without_v(ids)?;
    let (rows, features) = (axes.even('v', rows), axes.even('n', features));
    Ok((axes, leading, rows, features))
}

impl Rule for Embedding {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [table, ids] = inputs(shapes)?;
        let [v, n] = dims("table", table)?;
        let (axes, leading, v, n) = axes(ids, [v, n], self.padding)?;
        let y = Operand::new("y", [&leading[..], &[n]].concat());
        Ok(axes.declare([Operand::new("table", [v, n]), Operand::new("ids", leading)], [y], 0.0))
    }
}

impl Rule for EmbeddingBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [ids, dy] = inputs(shapes)?;
        let (n, _) = split_last("dy", dy)?;
        let (axes, leading, v, n) = axes(ids, [self.rows, n], self.padding)?;
        let dy = Operand::new("dy", [&leading[..], &[n]].concat());
        let flops = dy.dims.iter().map(|dim| axes.length(*dim) as f64).product();
        let operands = [Operand::new("ids", leading), dy];
        Ok(axes.declare(operands, [Operand::new("dtable", [v, n])], flops))
    }
}
