//! Lower bound on the time of some work, which holds for all strategies.
//!
//! A mesh dimension cuts one axis of an operator, or none, and an axis is only cut into equal parts. So
//! an operator has at most as many parts as there are devices along the dimensions that can cut its
//! axes. Each device computes at least one of these parts.

use thinwire_model::{Axis, Declaration, Operand, Split};

use super::{Costs, Work, WorkKind};

/// Whether devices may do the same work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// All work is cut into as many parts as possible.
    Never,
    /// Fewer and larger parts, which may be faster, are allowed.
    Allowed,
}

impl Costs<'_> {
    /// Returns the least seconds of one device for some nodes, forward and backward.
    pub fn least_s<'b>(
        &self,
        work: impl Iterator<Item = &'b Work>,
        replication: Replication,
    ) -> [f64; 2] {
        let is_allowed = replication == Replication::Allowed;
        work.fold([0.0; 2], |[forward_s, backward_s], work| {
            let most = self.parts(work);
            let least = |declaration: &Declaration, kind: WorkKind, operator: &str| {
                let all = elements(declaration) * self.precision.element;
                let seconds = |parts: usize| {
                    let parts = parts as f64;
                    self.seconds(kind, operator, declaration.flops / parts, all / parts)
                };
                let fewer = (1..most).filter(|parts| is_allowed && most.is_multiple_of(*parts));
                fewer.map(seconds).fold(seconds(most), f64::min)
            };
            let gradients = work.gradients.iter();
            let gradients: f64 =
                gradients.map(|one| least(&one.declaration, one.kind, one.operator)).sum();
            let own = least(&work.declaration, work.kind, work.operator);
            [forward_s + own, backward_s + gradients]
        })
    }

    /// Returns the largest number of parts of a node. Pinned nodes may be cut unequally.
    fn parts(&self, work: &Work) -> usize {
        match work.pinned.is_empty() {
            true => parts(&work.declaration.axes, &mut [1; AXES], &self.mesh),
            false => self.mesh.iter().product(),
        }
    }
}

/// Number of axes that exceeds that of any operator.
const AXES: usize = 16;

/// Returns the largest number of parts on some mesh dimensions, if axes are cut into `taken` parts already.
fn parts(axes: &[Axis], taken: &mut [usize; AXES], mesh: &[usize]) -> usize {
    let Some((size, rest)) = mesh.split_first() else { return 1 };
    let all: usize = mesh.iter().product();
    let mut most = 0;
    for (at, axis) in axes.iter().enumerate().take(AXES) {
        let Split::Even { multiple_of } = axis.split else { continue };
        if axis.length.is_multiple_of(taken[at] * size * multiple_of) {
            taken[at] *= size;
            most = most.max(size * parts(axes, taken, rest));
            taken[at] /= size;
        }
        if most == all {
            return most;
        }
    }
    most.max(parts(axes, taken, rest))
}

fn elements(declaration: &Declaration) -> f64 {
    let operands = declaration.inputs.iter().chain(&declaration.outputs);
    let elements = |operand: &Operand| declaration.shape(operand).iter().product::<usize>();
    operands.map(elements).sum::<usize>() as f64
}
