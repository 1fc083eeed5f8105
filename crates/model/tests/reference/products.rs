//! Products, tables of rows, classes and experts.

use thinwire_model::{
    Array, Combine, CombineGates, CrossEntropy, CrossEntropyBackward, Dispatch, Embedding,
    EmbeddingBackward, Linear, MatMul, Operand, Part, Reduction, Region,
};

use super::Reference;

impl Reference for Linear {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let (x, weight) = (inputs[0], inputs[1]);
        let y = Array::from_fn(region.output_shape(0), |at| {
            let (n, row) = at.split_last().expect("y has a dimension n");
            let start = inputs.get(2).map_or(0.0, |bias| bias.at(&[*n]));
            let place = |k| if self.turned { [*n, k] } else { [k, *n] };
            let term = |k| x.at(&[row, &[k]].concat()) * weight.at(&place(k));
            start + (0..x.shape()[row.len()]).map(term).sum::<f64>()
        });
        vec![y]
    }
}

impl Reference for MatMul {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let [x, y] = [inputs[0], inputs[1]];
        let axes = region.lengths();
        let place = |operand: &Operand, at: &[usize]| -> Vec<usize> {
            operand.dims.iter().map(|dim| at[dim.axis]).collect()
        };
        let declaration = region.declaration();
        let mut z = Array::full(region.output_shape(0), 0.0);
        Array::each_index(&axes, |at| {
            let product =
                x.at(&place(&declaration.inputs[0], at)) * y.at(&place(&declaration.inputs[1], at));
            z.add(&place(&declaration.outputs[0], at), product);
        });
        vec![z]
    }
}

/// Returns the index of an id's row within a part of the table, if it has the row.
fn local(id: f64, rows: Part) -> Option<usize> {
    (id as usize).checked_sub(rows.start).filter(|row| *row < rows.length)
}

impl Reference for Embedding {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let [table, ids] = [inputs[0], inputs[1]];
        let rows = region.part('v');
        let y = Array::from_fn(region.output_shape(0), |at| {
            let (n, place) = at.split_last().expect("y has a dimension n");
            local(ids.at(place), rows).map_or(0.0, |row| table.at(&[row, *n]))
        });
        vec![y]
    }
}

impl Reference for EmbeddingBackward {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let [ids, dy] = [inputs[0], inputs[1]];
        let rows = region.part('v');
        let mut dtable = Array::full(region.output_shape(0), 0.0);
        Array::each_index(dy.shape(), |at| {
            let (n, place) = at.split_last().expect("dy has a dimension n");
            let id = ids.at(place);
            if let Some(row) = local(id, rows).filter(|_| self.padding != Some(id as usize)) {
                dtable.add(&[row, *n], dy.at(at));
            }
        });
        vec![dtable]
    }
}

/// The place of a token's target, if it is among the classes of a region.
fn target(targets: &Array, token: &[usize], region: &Region<'_>) -> Option<usize> {
    let classes = region.part('v');
    let target = (targets.at(token) as usize).checked_sub(classes.start)?;
    (target < classes.length).then_some(target)
}

impl Reference for CrossEntropy {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let [logits, targets] = [inputs[0], inputs[1]];
        let classes = region.part('v').length;
        let total = Array::from_fn(targets.shape(), |token| {
            let logit = |v| logits.at(&[token, &[v]].concat());
            (0..classes)
                .map(logit)
                .fold(f64::NEG_INFINITY, |a, b| Reduction::LogSumExp.combine(a, b))
        });
        let chosen = Array::from_fn(targets.shape(), |token| {
            target(targets, token, region).map_or(0.0, |v| logits.at(&[token, &[v]].concat()))
        });
        vec![total, chosen]
    }
}

impl Reference for CrossEntropyBackward {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let (logits, targets, total) = (inputs[0], inputs[1], inputs[2]);
        let (dtotal, dchosen) = (inputs[3], inputs[4]);
        let dlogits = Array::from_fn(logits.shape(), |at| {
            let (v, token) = at.split_last().expect("logits have classes");
            let share = (logits.at(at) - total.at(token)).exp();
            let chosen = target(targets, token, region) == Some(*v);
            share * dtotal.at(token) + if chosen { dchosen.at(token) } else { 0.0 }
        });
        vec![dlogits]
    }
}

/// Calls a function with batch, token, expert, place and gate of every token that has a place.
fn each_place(gates: &Array, capacity: usize, mut visit: impl FnMut([usize; 4], f64)) {
    let [batch, tokens, experts] = *gates.shape() else { return };
    Array::each_index(&[batch, experts], |at| {
        let (b, e) = (at[0], at[1]);
        let gated = (0..tokens).filter(|s| gates.at(&[b, *s, e]) != 0.0);
        for (c, s) in gated.take(capacity).enumerate() {
            visit([b, s, e, c], gates.at(&[b, s, e]));
        }
    });
}

impl Reference for Dispatch {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let [x, gates] = [inputs[0], inputs[1]];
        let mut y = Array::full(region.output_shape(0), 0.0);
        each_place(gates, self.capacity, |[b, s, e, c], gate| {
            for n in 0..x.shape()[2] {
                let factor = if self.weighted { gate } else { 1.0 };
                y.set(&[b, e, c, n], factor * x.at(&[b, s, n]));
            }
        });
        vec![y]
    }
}

impl Reference for Combine {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let [y, gates] = [inputs[0], inputs[1]];
        let mut x = Array::full(region.output_shape(0), 0.0);
        each_place(gates, y.shape()[2], |[b, s, e, c], gate| {
            for n in 0..y.shape()[3] {
                let factor = if self.weighted { gate } else { 1.0 };
                x.add(&[b, s, n], factor * y.at(&[b, e, c, n]));
            }
        });
        vec![x]
    }
}

impl Reference for CombineGates {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let [y, gates, dx] = [inputs[0], inputs[1], inputs[2]];
        let mut dgates = Array::full(region.output_shape(0), 0.0);
        each_place(gates, y.shape()[2], |[b, s, e, c], _| {
            let features = 0..y.shape()[3];
            let along = features.map(|n| y.at(&[b, e, c, n]) * dx.at(&[b, s, n])).sum();
            dgates.set(&[b, s, e], along);
        });
        vec![dgates]
    }
}
