//! Rows of a table, of which this rank may have only a part.

use thinwire_model::{EmbeddingBackward, Part, Region};

use crate::spmd::value::Value;

/// Returns the rows with these ids; zeros for rows that this rank does not have.
pub fn embedding(inputs: &[&Value], rows: Part) -> Value {
    let (table, ids) = (inputs[0], inputs[1]);
    let n = table.shape()[1];
    let mut y = vec![0.0; ids.elements() * n];
    for (y, row) in y.chunks_mut(n.max(1)).zip(local(ids, rows)) {
        if let Some(row) = row {
            y.copy_from_slice(&table.floats()[row * n..][..n]);
        }
    }
    Value::new(&[ids.shape(), &[n]].concat(), y)
}

/// Returns, for every row except the padding row, the sum of dy over its ids.
pub fn backward(rule: &EmbeddingBackward, inputs: &[&Value], region: &Region<'_>) -> Value {
    let (ids, dy) = (inputs[0], inputs[1]);
    let n = dy.rows()[1];
    let rows = region.part('v');
    let mut table = vec![0.0; rows.length * n];
    let padding = rule.padding.and_then(|row| row.checked_sub(rows.start));
    for (row, dy) in local(ids, rows).zip(dy.floats().chunks(n.max(1))) {
        if let Some(row) = row.filter(|row| Some(*row) != padding) {
            table[row * n..][..n].iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
        }
    }
    Value::new(&[rows.length, n], table)
}

/// Returns the index of each id's row in a part of the table.
fn local(ids: &Value, rows: Part) -> impl Iterator<Item = Option<usize>> + '_ {
    let place =
        move |id: f32| (id as usize).checked_sub(rows.start).filter(|row| *row < rows.length);
    ids.floats().iter().map(move |id| place(*id))
}
