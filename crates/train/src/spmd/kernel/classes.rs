//! The two terms of a token's cross-entropy, over the classes that this rank has.

use rayon::prelude::*;
use thinwire_model::Region;

use crate::spmd::value::Value;

/// The logarithm of the sum of exponentials, and the target's logit, or zero if it is not here.
pub fn cross_entropy(inputs: &[&Value], region: &Region<'_>) -> Vec<Value> {
    let (logits, targets) = (inputs[0], inputs[1]);
    let here = place(targets, region);
    let n = logits.rows()[1].max(1);
    let rows = logits.floats();
    let terms = rows.par_chunks(n).zip(&here).map(|(row, target)| {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = row.iter().map(|logit| (logit - most).exp()).sum();
        (most + sum.ln(), target.map_or(0.0, |target| row[target]))
    });
    let (total, chosen): (Vec<f32>, Vec<f32>) = terms.unzip();
    [total, chosen].map(|term| Value::new(targets.shape(), term, &logits.device())).into()
}

/// The gradient of the logits, from logits, targets, total, dtotal, dchosen.
pub fn backward(inputs: &[&Value], region: &Region<'_>) -> Value {
    let logits = inputs[0];
    let here = place(inputs[1], region);
    let [total, dtotal, dchosen] = [2, 3, 4].map(|at| inputs[at].floats());
    let n = logits.rows()[1].max(1);
    let mut rows = logits.floats();
    rows.par_chunks_mut(n).enumerate().for_each(|(token, row)| {
        row.iter_mut().for_each(|logit| *logit = (*logit - total[token]).exp() * dtotal[token]);
        if let Some(target) = here[token] {
            row[target] += dchosen[token];
        }
    });
    Value::new(logits.shape(), rows, &logits.device())
}

/// The places of the targets among the classes of a region.
fn place(targets: &Value, region: &Region<'_>) -> Vec<Option<usize>> {
    let classes = region.part('v');
    let local = |target: f32| (target as usize).checked_sub(classes.start);
    let targets = targets.floats().into_iter();
    targets.map(|target| local(target).filter(|at| *at < classes.length)).collect()
}
