//! Rules: the strategies that a search may use. Expert plans are searches under narrow rules.

use serde::{Deserialize, Serialize};
use thinwire_model::{Cut, Declaration, Operand, Strategy};

use crate::cost::{Pinned, WorkKind};

/// Set of allowed strategies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Every strategy, with two exceptions: partial sums are reduced before the next operator, and products
    /// that can be cut are not replicated. Of three mesh dimensions, the first cuts only batches.
    Free,
    /// Only batches are cut, in every node where they can be.
    Data,
    /// Batches are cut on the first of two mesh dimensions, any other axis on the second: the grid
    /// of Megatron, with sequence parallelism.
    Grid,
    /// The grid of Megatron without sequence parallelism: sequences of features are not cut.
    PlainGrid,
}

impl Rule {
    /// Returns the strategies that a node may have on a mesh.
    pub fn strategies(
        self,
        declaration: &Declaration,
        kind: WorkKind,
        mesh: &[usize],
    ) -> Vec<Strategy> {
        let mut all = declaration.strategies(mesh);
        all.retain(|strategy| self.allows(declaration, strategy, mesh));
        let whole = |strategy: &Strategy| strategy.0.contains(&Cut::Whole);
        let divides = match self {
            Rule::Free => kind == WorkKind::Product,
            Rule::Data => true,
            Rule::Grid | Rule::PlainGrid => false,
        };
        if divides && !all.iter().all(whole) {
            all.retain(|strategy| !whole(strategy));
        }
        all
    }

    /// Returns the strategies of a pinned node; pins take precedence over the rule.
    pub(super) fn pinned(
        self,
        declaration: &Declaration,
        kind: WorkKind,
        mesh: &[usize],
        pinned: &[Pinned],
    ) -> Vec<Strategy> {
        let holds = |strategy: &Strategy| pinned.iter().all(|pin| pin.holds(strategy));
        let mut allowed = self.strategies(declaration, kind, mesh);
        allowed.retain(holds);
        if allowed.is_empty() {
            // All strategies, but no partial sums beside those that pins ask for.
            allowed = declaration.strategies(mesh);
            let sums =
                |strategy: &Strategy| strategy.0.iter().filter(|cut| **cut == Cut::Sum).count();
            let asked =
                pinned.iter().filter(|pin| pin.cut == Cut::Sum && pin.dim < mesh.len()).count();
            allowed.retain(|strategy| holds(strategy) && sums(strategy) == asked);
        }
        allowed
    }

    /// Returns whether a node may have a strategy.
    fn allows(self, declaration: &Declaration, strategy: &Strategy, mesh: &[usize]) -> bool {
        if strategy.0.contains(&Cut::Sum) {
            return false;
        }
        let mut cuts = strategy.0.iter().enumerate();
        cuts.all(|(dim, cut)| {
            let Cut::Axis(axis) = *cut else { return true };
            let batch = declaration.axes[axis].name == 'b';
            match self {
                Rule::Free => batch || dim > 0 || mesh.len() <= 2,
                Rule::Data => batch,
                Rule::Grid | Rule::PlainGrid if dim == 0 => batch,
                Rule::Grid => !batch,
                Rule::PlainGrid => !batch && !cuts_sequence(declaration, axis),
            }
        })
    }
}

/// Returns whether an axis is the sequence of an operand of features per token.
fn cuts_sequence(declaration: &Declaration, axis: usize) -> bool {
    let operands = declaration.inputs.iter().chain(&declaration.outputs);
    let cut = |operand: &Operand| operand.dims.len() == 3 && operand.dim_of(axis) == Some(1);
    operands.into_iter().any(cut)
}
