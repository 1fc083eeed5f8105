//! The two terms of a token's cross-entropy: `logits[..,v] targets[..] -> total[..] chosen[..]`.
//!
//! The loss of a token is `total − chosen`: the logarithm of the sum of all classes' exponentials,
//! less the target's logit. Classes may be cut: then `total` is partial by log-sum-exp and `chosen`
//! by sum, and no rank ever has all logits of a token (Narayanan et al., "Efficient Large-Scale
//! Language Model Training on GPU Clusters Using Megatron-LM", and its vocabulary-parallel loss).

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{inputs, split_last};
use crate::{Array, Axes, Declaration, Error, Operand, Reduction, Region};

/// The two terms; inputs logits and targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CrossEntropy;

/// The gradient of the logits; inputs logits, targets, total, dtotal, dchosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CrossEntropyBackward;

/// The axes; operands of all classes, and of one number per token.
fn operands(logits: &[usize]) -> Result<(Axes, Operand, Operand), Error> {
    let (v, leading) = split_last("logits", logits)?;
    let mut axes = Axes::default();
    let token = axes.leading_without_v(leading)?;
    let v = axes.even('v', v);
    let classes = Operand::new("logits", [&token[..], &[v]].concat());
    Ok((axes, classes, Operand::new("targets", token)))
}

/// The place of a token's target, if it is among the classes of a region.
fn target(targets: &Array, token: &[usize], region: &Region<'_>) -> Option<usize> {
    let classes = region.part('v');
    let target = (targets.at(token) as usize).checked_sub(classes.start)?;
    (target < classes.length).then_some(target)
}

impl Rule for CrossEntropy {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [logits, _] = inputs(shapes)?;
        let (axes, logits, targets) = operands(logits)?;
        let total = Operand { name: "total", ..targets.clone() }.reduced(Reduction::LogSumExp);
        let chosen = Operand { name: "chosen", ..targets.clone() };
        let flops = 7.0 * axes.points();
        Ok(axes.declare([logits, targets], [total, chosen], flops))
    }

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

impl Rule for CrossEntropyBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [logits, _, _, _, _] = inputs(shapes)?;
        let (axes, logits, targets) = operands(logits)?;
        let token = |name| Operand { name, ..targets.clone() };
        let dlogits = Operand { name: "dlogits", ..logits.clone() };
        let operands =
            [logits, token("targets"), token("total"), token("dtotal"), token("dchosen")];
        let flops = 7.0 * axes.points();
        Ok(axes.declare(operands, [dlogits], flops))
    }

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
