//! The two terms of a token's cross-entropy, over the classes that this rank has.

use thinwire_model::Region;

use super::operands::operands;
use super::rows;
use crate::spmd::value::Value;

/// Returns the logarithm of the sum of exponentials, and the target's logit, or zero if this rank does not
/// have it.
pub fn cross_entropy(inputs: &[&Value], region: &Region<'_>) -> Vec<Value> {
    let (logits, targets) = (inputs[0], inputs[1]);
    let here = place(targets, region);
    let n = logits.rows()[1].max(1);
    let values = logits.floats();
    let total = rows::log_sum_exp(values, n);
    let chosen = |(row, target): (&[f32], &Option<usize>)| target.map_or(0.0, |at| row[at]);
    let chosen: Vec<f32> = values.chunks(n).zip(&here).map(chosen).collect();
    [total, chosen].map(|term| Value::new(targets.shape(), term)).into()
}

/// Returns the gradient of the logits; inputs are logits, targets, total, dtotal and dchosen.
pub fn backward(inputs: Vec<Value>, region: &Region<'_>) -> Value {
    let [logits, targets, total, dtotal, dchosen] = operands(inputs);
    let here = place(&targets, region);
    let [total, dtotal, dchosen] = [total, dtotal, dchosen].map(Value::into_floats);
    let n = logits.rows()[1].max(1);
    logits.edited(|values| {
        rows::exponentials(values, n, &total, &dtotal);
        for ((row, target), dchosen) in values.chunks_mut(n).zip(&here).zip(&dchosen) {
            target.iter().for_each(|target| row[*target] += dchosen);
        }
    })
}

/// Returns the indices of the targets among the classes of a region.
fn place(targets: &Value, region: &Region<'_>) -> Vec<Option<usize>> {
    let classes = region.part('v');
    let local = |target: f32| (target as usize).checked_sub(classes.start);
    let targets = targets.floats().iter();
    targets.map(|target| local(*target).filter(|at| *at < classes.length)).collect()
}
