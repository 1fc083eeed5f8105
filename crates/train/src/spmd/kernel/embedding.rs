//! Rows of a table, of which this rank may have a part.

use burn_tensor::{Int, Tensor, TensorData};
use thinwire_model::{Part, Region};

use crate::spmd::value::Value;

/// The rows of these ids; zeros for those that are not here.
pub fn embedding(inputs: &[&Value], rows: Part) -> Value {
    let (table, ids) = (inputs[0], inputs[1]);
    let n = table.shape()[1];
    let ids_here: Vec<Option<usize>> = local(ids, rows).collect();
    let count = ids_here.len();
    let nearest: Vec<i32> = ids_here.iter().map(|row| row.unwrap_or(0) as i32).collect();
    let here = ids_here.iter().map(|row| f32::from(u8::from(row.is_some()))).collect::<Vec<_>>();
    let device = table.device();
    let nearest = Tensor::<1, Int>::from_data(TensorData::new(nearest, [count]), &device);
    let mut y = table.view([rows.length, n]).select(0, nearest);
    if here.contains(&0.0) {
        y = y * Tensor::<2>::from_data(TensorData::new(here, [count, 1]), &device);
    }
    Value::of(&[ids.shape(), &[n]].concat(), y)
}

/// The sum of dy over the ids of every row.
pub fn backward(inputs: &[&Value], region: &Region<'_>) -> Value {
    let (ids, dy) = (inputs[0], inputs[1]);
    let n = dy.rows()[1];
    let rows = region.part('v');
    let mut table = vec![0.0; rows.length * n];
    for (row, dy) in local(ids, rows).zip(dy.floats().chunks(n.max(1))) {
        if let Some(row) = row {
            table[row * n..][..n].iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
        }
    }
    Value::new(&[rows.length, n], table, &dy.device())
}

/// Where each id's row is in a part of the table.
fn local(ids: &Value, rows: Part) -> impl Iterator<Item = Option<usize>> {
    let place =
        move |id: f32| (id as usize).checked_sub(rows.start).filter(|row| *row < rows.length);
    ids.floats().into_iter().map(place)
}
