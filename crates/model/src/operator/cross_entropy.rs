//! The two terms of a token's cross-entropy: `logits[..,v] targets[..] -> total[..] chosen[..]`.
//!
//! The loss of a token is `total − chosen`: the logarithm of the sum of all classes' exponentials, minus
//! the target's logit. Classes may be cut. Then `total` is partial by log-sum-exp and `chosen` by sum, and no
//! rank ever has all logits of a token (Narayanan et al., "Efficient Large-Scale Language Model Training on
//! GPU Clusters Using Megatron-LM", and its vocabulary-parallel loss).

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{inputs, split_last};
use crate::{Axes, Declaration, Error, Operand, Reduction};

/// The two terms; inputs logits and targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CrossEntropy;

/// The gradient of the logits; inputs logits, targets, total, dtotal, dchosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CrossEntropyBackward;

/// Returns the axes, and operands with all classes and with one number per token.
fn operands(logits: &[usize]) -> Result<(Axes, Operand, Operand), Error> {
    let (v, leading) = split_last("logits", logits)?;
    let mut axes = Axes::default();
    let token = axes.leading_without_v(leading)?;
    let v = axes.even('v', v);
    let classes = Operand::new("logits", [&token[..], &[v]].concat());
    Ok((axes, classes, Operand::new("targets", token)))
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
}
