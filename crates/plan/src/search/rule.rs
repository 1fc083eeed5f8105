//! Rules: what strategies a search may use. The expert plans are searches under narrow rules.

use serde::{Deserialize, Serialize};
use thinwire_model::{Cut, Declaration, Operand, Strategy};

use crate::cost::{Pinned, WorkKind};

/// What is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Every strategy, but no sums are put off beyond the next operator, and no product is
    /// computed twice that can be cut. On the first of three mesh dimensions batches alone are cut.
    Free,
    /// Batches alone are cut, wherever they can be.
    Data,
    /// On the first of two mesh dimensions batches are cut, on the second anything else: the grid
    /// of Megatron, and of its tensors also along the sequence.
    Grid,
    /// The same, but no sequences of features are cut: the grid without sequence parallelism.
    PlainGrid,
}

impl Rule {
    /// The strategies that a node may have on a mesh.
    pub fn strategies(
        self,
        declaration: &Declaration,
        kind: WorkKind,
        mesh: &[usize],
    ) -> Vec<Strategy> {
        let mut all = declaration.strategies(mesh);
        let deep = mesh.len() > 2;
        all.retain(|strategy| self.allows(declaration, strategy, deep));
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

    /// The same of a node that is pinned: the pins hold even where the rule says otherwise.
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
            allowed = declaration.strategies(mesh);
            let sums =
                |strategy: &Strategy| strategy.0.iter().filter(|cut| **cut == Cut::Sum).count();
            let asked =
                pinned.iter().filter(|pin| pin.cut == Cut::Sum && pin.dim < mesh.len()).count();
            allowed.retain(|strategy| holds(strategy) && sums(strategy) == asked);
        }
        allowed
    }

    /// Whether a node may be cut so.
    fn allows(self, declaration: &Declaration, strategy: &Strategy, deep: bool) -> bool {
        if strategy.0.contains(&Cut::Sum) {
            return false;
        }
        let mut cuts = strategy.0.iter().enumerate();
        cuts.all(|(dim, cut)| {
            let Cut::Axis(axis) = *cut else { return true };
            let batch = declaration.axes[axis].name == 'b';
            match self {
                Rule::Free => batch || dim > 0 || !deep,
                Rule::Data => batch,
                Rule::Grid | Rule::PlainGrid if dim == 0 => batch,
                Rule::Grid => !batch,
                Rule::PlainGrid => !batch && !cuts_sequence(declaration, axis),
            }
        })
    }
}

/// Whether an operand of features per token is cut along its sequence.
fn cuts_sequence(declaration: &Declaration, axis: usize) -> bool {
    let operands = declaration.inputs.iter().chain(&declaration.outputs);
    let cut = |operand: &Operand| operand.dims.len() == 3 && operand.dim_of(axis) == Some(1);
    operands.into_iter().any(cut)
}
