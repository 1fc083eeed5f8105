//! Strategies of a block's nodes, and their prices.

use std::collections::HashMap;
use std::convert::Infallible;

use thinwire_model::{Declaration, Layout, NodeId, Placement, Reduction, Sides, Strategy};

use super::cache::MeshCache;
use super::{Prepared, Rule};
use crate::Error;
use crate::cost::{Cost, Costs, GradientTransport, Passages, Work};
use crate::stage::Pricing;

/// Returns, for every shape of a tensor between blocks, all layouts in which a block writes or reads it.
pub(super) fn layouts_of(
    prepared: &Prepared,
    costs: &Costs<'_>,
    allowed: &Allowed<'_>,
) -> HashMap<Vec<usize>, Vec<Sides>> {
    let mut layouts: HashMap<Vec<usize>, Vec<Sides>> = HashMap::new();
    for class in &prepared.classes {
        for id in class.nodes.clone() {
            let node = &prepared.graph.nodes[id];
            let declaration = &class.work[&id].declaration;
            let read = node.inputs.iter().enumerate();
            let read = read.filter(|(_, tensor)| class.entry == Some(**tensor));
            let written = node.outputs.iter().enumerate();
            let written = written.filter(|(_, tensor)| class.exit == Some(**tensor));
            let ends = read.map(|(at, tensor)| (at, tensor, true));
            for (at, tensor, input) in ends.chain(written.map(|(at, tensor)| (at, tensor, false))) {
                // By shape, since the block that writes the tensor and the one that reads it name it differently.
                let known =
                    layouts.entry(prepared.graph.tensors[*tensor].shape.clone()).or_default();
                for strategy in allowed.strategies(id, &class.work[&id], &costs.mesh) {
                    let sides = match input {
                        true => declaration.input_sides(at, &strategy),
                        false => declaration.output_sides(at, &strategy),
                    };
                    if !known.contains(&sides) {
                        known.push(sides);
                    }
                }
            }
        }
    }
    layouts
}

/// Given strategies, by node of the first block of the class.
pub type Given = HashMap<NodeId, Strategy>;

/// Allowed strategies.
pub(super) struct Allowed<'a> {
    pub rule: Rule,
    pub given: &'a Given,
}

impl Allowed<'_> {
    pub fn strategies(&self, id: NodeId, work: &Work, mesh: &[usize]) -> Vec<Strategy> {
        match self.given.get(&id) {
            Some(strategy) => vec![strategy.clone()],
            None if work.pinned.is_empty() => {
                self.rule.strategies(&work.declaration, work.kind, mesh)
            }
            None => self.rule.pinned(&work.declaration, work.kind, mesh, &work.pinned),
        }
    }

    /// Refuses pins that leave a node no strategy on the mesh.
    pub fn check(&self, prepared: &Prepared, mesh: &[usize]) -> Result<(), Error> {
        let works = prepared.classes.iter().flat_map(|class| &class.work);
        for (id, work) in works.filter(|(_, work)| !work.pinned.is_empty()) {
            if self.strategies(*id, work, mesh).is_empty() {
                let name = &prepared.graph.nodes[*id].name;
                let found = format!("'{name}' cannot be cut on mesh {mesh:?} as it is pinned");
                return Err(Error::impossible(found));
            }
        }
        Ok(())
    }
}

/// Prices of one block's nodes.
pub(super) struct BlockPricing<'a> {
    pub costs: &'a Costs<'a>,
    /// Costs computed as if links took no time; `None` if every collective begins only when the device
    /// waits for it.
    pub unlinked: Option<&'a Costs<'a>>,
    pub work: &'a HashMap<NodeId, Work>,
    pub allowed: &'a Allowed<'a>,
    pub cache: &'a MeshCache,
}

/// Returns a number that identifies a layout among those with the same number of mesh dimensions; `None` if
/// the layout is too large for a number.
fn code(layout: &Layout) -> Option<u64> {
    // A placement takes four bits. Eight of them are never the number that separates lists in `key`.
    let digit = |placement: &Placement| match placement {
        Placement::Replicated => Some(0),
        Placement::Partial(Reduction::Sum) => Some(1),
        Placement::Partial(Reduction::Max) => Some(2),
        Placement::Partial(Reduction::LogSumExp) => Some(3),
        Placement::Sharded(dim) => (*dim < 12).then_some(4 + *dim as u64),
    };
    let short = layout.0.len() <= 8;
    let digits = short.then_some(&layout.0)?.iter();
    digits.map(digit).try_fold(0, |code, digit| Some(code << 4 | digit?))
}

/// Returns numbers that identify two lists of layouts; `None` if one of them is too large for a [`code`].
fn key(from: &[Layout], to: &[Layout]) -> Option<Vec<u64>> {
    let dims = from.first().map(|layout| layout.0.len() as u64);
    let codes = [dims].into_iter().chain(from.iter().map(code));
    let codes = codes.chain([Some(u64::MAX)]).chain(to.iter().map(code));
    codes.collect()
}

impl BlockPricing<'_> {
    /// Returns the seconds of all conversions between two lists of layouts.
    fn conversions_on(
        &self,
        costs: &Costs<'_>,
        shape: &[usize],
        from: &[Layout],
        to: &[Layout],
    ) -> Vec<f64> {
        let key = key(from, to);
        let work_out = || Ok::<_, Infallible>(Passages::new(from, to));
        // Layouts without a key are too large for the cache.
        if let Some(Ok(passages)) = key.map(|key| self.cache.passages.of(key, work_out)) {
            return costs.passages_s(shape, &passages, from, to);
        }
        let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (from, to)));
        pairs.map(|(from, to)| costs.conversion_s(shape, from, to)).collect()
    }
}

impl Pricing for BlockPricing<'_> {
    fn node(&self, id: NodeId, _: &Declaration, strategy: &Strategy) -> Cost {
        self.costs.node(&self.work[&id], strategy)
    }

    fn strategies(&self, id: NodeId, _: &Declaration, mesh: &[usize]) -> Vec<Strategy> {
        self.allowed.strategies(id, &self.work[&id], mesh)
    }

    fn parameter(&self, shape: &[usize], sides: &Sides) -> Cost {
        self.costs.parameter(shape, sides)
    }

    fn transports(&self, shape: &[usize], sides: &Sides) -> Vec<GradientTransport> {
        self.costs.transports(shape, sides)
    }

    fn conversions_s(&self, shape: &[usize], from: &[Layout], to: &[Layout]) -> Vec<f64> {
        self.conversions_on(self.costs, shape, from, to)
    }

    fn own_s(&self, shape: &[usize], from: &[Layout], to: &[Layout]) -> Option<Vec<f64>> {
        Some(self.conversions_on(self.unlinked?, shape, from, to))
    }

    fn behind_s(&self, id: NodeId, input: usize, strategy: &Strategy) -> f64 {
        self.costs.behind_s(&self.work[&id], input, strategy)
    }

    fn entry(&self, shape: &[usize], sides: &Sides) -> Cost {
        Cost { checkpoint_bytes: self.costs.bytes(shape, &sides.value), ..Cost::ZERO }
    }
}
