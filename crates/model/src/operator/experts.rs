//! Moving tokens to their experts and back: `x[b,s,n] gates[b,s,e] <-> y[b,e,c,n]`.
//!
//! Lepikhin et al., "GShard", section 2.2: within a sequence, the first c tokens that have a gate to an
//! expert get the expert's c places, in order; later tokens are dropped. When a cut of the batch is
//! exchanged for a cut of the experts, this is the all-to-all of expert parallelism.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{dims, inputs};
use crate::{Axes, Declaration, Error, Operand};

/// Tokens at their places, `y[b,e,c,n]`; inputs x and gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dispatch {
    /// The number of places of an expert for each sequence.
    pub capacity: usize,
    /// Whether a token is multiplied by its gate.
    pub weighted: bool,
}

/// The sum of every token's places, `x[b,s,n]`; inputs y and gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Combine {
    /// Whether a place is multiplied by its token's gate.
    pub weighted: bool,
}

/// The gradient of the gates, `dgates[b,s,e]`; inputs y, gates and dx.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CombineGates;

/// Returns the axes, and the operands: tokens, gates and places.
fn operands(
    gates: &[usize],
    capacity: usize,
    features: usize,
) -> Result<(Axes, [Operand; 3]), Error> {
    let [b, s, e] = dims("gates", gates)?;
    let mut axes = Axes::default();
    let (b, s) = (axes.even('b', b), axes.never('s', s));
    let (e, c, n) = (axes.even('e', e), axes.never('c', capacity), axes.even('n', features));
    let operands = [
        Operand::new("x", [b, s, n]),
        Operand::new("gates", [b, s, e]),
        Operand::new("y", [b, e, c, n]),
    ];
    Ok((axes, operands))
}

/// Returns the flops of one multiplication and addition for every feature of every place.
fn flops(axes: &Axes, places: &Operand) -> f64 {
    2.0 * places.dims.iter().map(|dim| axes.length(*dim) as f64).product::<f64>()
}

impl Rule for Dispatch {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, gates] = inputs(shapes)?;
        let [_, _, n] = dims("x", x)?;
        let (axes, [x, gates, y]) = operands(gates, self.capacity, n)?;
        let flops = if self.weighted { flops(&axes, &y) } else { 0.0 };
        Ok(axes.declare([x, gates], [y], flops))
    }
}

impl Rule for Combine {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [y, gates] = inputs(shapes)?;
        let [_, _, capacity, n] = dims("y", y)?;
        let (axes, [x, gates, y]) = operands(gates, capacity, n)?;
        let flops = flops(&axes, &y);
        Ok(axes.declare([y, gates], [x], flops))
    }
}

impl Rule for CombineGates {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [y, gates, _] = inputs(shapes)?;
        let [_, _, capacity, n] = dims("y", y)?;
        let (axes, [x, gates, y]) = operands(gates, capacity, n)?;
        let flops = flops(&axes, &y);
        let dgates = Operand { name: "dgates", ..gates.clone() };
        Ok(axes.declare([y, gates, Operand { name: "dx", ..x }], [dgates], flops))
    }
}
