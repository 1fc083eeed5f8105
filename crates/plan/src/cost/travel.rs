//! Conversions of tensors between layouts, in seconds.

use thinwire_model::{Collective, Layout, Phase, Step, conversion, phases};

use super::Costs;
use crate::cluster::LAYOUT;

/// Collectives of all conversions between some layouts. They do not depend on the tensor's shape, the mesh's
/// sizes, or the links.
#[derive(Clone, Debug)]
pub struct Passages {
    /// Collectives that send something; each occurs once.
    phases: Vec<Phase>,
    /// Indices of the collectives, pair of layouts by pair.
    taken: Vec<u16>,
    /// End of each pair in `taken`.
    ends: Vec<usize>,
}

impl Passages {
    /// Returns the collectives between all pairs of layouts, ordered by the first layout, then by the
    /// second.
    pub fn new(from: &[Layout], to: &[Layout]) -> Passages {
        let (mut all, mut taken, mut ends): (Vec<Phase>, _, _) =
            (Vec::new(), Vec::new(), Vec::new());
        for (from, to) in from.iter().flat_map(|from| to.iter().map(move |to| (from, to))) {
            for phase in phases(from, to).into_iter().filter(sends) {
                let known = all.iter().position(|known| *known == phase);
                taken.push(known.unwrap_or(all.len()) as u16);
                if known.is_none() {
                    all.push(phase);
                }
            }
            ends.push(taken.len());
        }
        Passages { phases: all, taken, ends }
    }
}

/// Returns whether a collective sends anything.
fn sends(phase: &Phase) -> bool {
    !matches!(phase.collective, Collective::Slice { .. } | Collective::Pad { .. })
}

impl Costs<'_> {
    /// Returns the seconds of a conversion; infinite if it is impossible.
    pub fn conversion_s(&self, shape: &[usize], from: &Layout, to: &Layout) -> f64 {
        if from == to {
            return 0.0;
        }
        let steps = conversion(shape, &self.mesh, from, to);
        let seconds = |step: &Step| self.step_s(step, shape);
        steps.map_or(f64::INFINITY, |steps| steps.iter().map(seconds).sum())
    }

    /// Returns the seconds of all conversions between two lists of layouts.
    ///
    /// Law: equal to [`Costs::conversion_s`] of every pair.
    pub fn passages_s(
        &self,
        shape: &[usize],
        passages: &Passages,
        from: &[Layout],
        to: &[Layout],
    ) -> Vec<f64> {
        let elements = shape.iter().product();
        let phase_s = |phase: &Phase| self.step_s(&phase.step(elements, &self.mesh), shape);
        let phases_s: Vec<f64> = passages.phases.iter().map(phase_s).collect();
        let fits = |layout: &Layout| layout.fits(shape, &self.mesh);
        let to: Vec<(&Layout, bool)> = to.iter().map(|layout| (layout, fits(layout))).collect();
        let from = from.iter().map(|layout| (layout, fits(layout)));
        let pairs = from.flat_map(|from| to.iter().map(move |to| (from, *to)));
        let mut begin = 0;
        let seconds = |(((from, leaves), (to, arrives)), end): (_, &usize)| {
            let taken = &passages.taken[begin..*end];
            begin = *end;
            match (leaves && arrives) || from == to {
                true => taken.iter().map(|phase| phases_s[usize::from(*phase)]).sum(),
                false => f64::INFINITY,
            }
        };
        pairs.zip(&passages.ends).map(seconds).collect()
    }

    /// Returns the seconds of a collective on a tensor of this shape.
    fn step_s(&self, step: &Step, shape: &[usize]) -> f64 {
        let exchanges = match step.collective {
            Collective::Slice { .. } | Collective::Pad { .. } => false,
            _ => self.groups[step.mesh_dim].size > 1,
        };
        let exchange_s = if exchanges { self.device.handling.exchange_s } else { 0.0 };
        let own_s = self.copying_s(step) + exchange_s;
        if let Some(coding) = self.coding_of(shape, step) {
            return own_s + self.encoded_s(step, coding);
        }
        let bytes = step.elements as f64 * self.precision.element;
        let group = &self.groups[step.mesh_dim];
        let wire_s = match step.collective {
            Collective::Slice { .. } | Collective::Pad { .. } => 0.0,
            Collective::ReduceScatter { .. } | Collective::AllGather { .. } => {
                self.exchange.scatter_s(group, bytes)
            }
            Collective::AllToAll { .. } => {
                self.exchange.all_to_all_s(group, bytes / group.size as f64)
            }
            Collective::AllReduce { .. } => 2.0 * self.exchange.scatter_s(group, bytes),
        };
        own_s + wire_s
    }

    /// Returns the seconds to make parts contiguous before a collective and to put them together after
    /// it, if the device's speed for this is known. It counts the reads and writes of both, and of the
    /// buffer in which parts are gathered. Parts of the first dimension are contiguous already.
    fn copying_s(&self, step: &Step) -> f64 {
        let Some(pace) = self.device.pace(LAYOUT) else { return 0.0 };
        let turned = |dim: usize| if dim == 0 { 0.0 } else { 2.0 };
        let size = self.groups[step.mesh_dim].size as f64;
        let times = match step.collective {
            Collective::Slice { .. } | Collective::Pad { .. } | Collective::AllReduce { .. } => 0.0,
            Collective::ReduceScatter { dim, .. } => turned(dim),
            Collective::AllGather { dim } => 1.0 + turned(dim),
            Collective::AllToAll { from, to } => (2.0 + turned(from) + turned(to)) / size,
        };
        self.memory_s(times * step.elements as f64 * self.precision.element) / pace
    }

    /// Returns the part of a collective's bytes that crosses each level of the cluster, along one
    /// dimension of the mesh.
    pub fn level_shares(&self, mesh_dim: usize) -> Vec<f64> {
        let group = &self.groups[mesh_dim];
        let mut shares = vec![0.0; self.cluster.levels.len()];
        for hop in &group.hops {
            shares[hop.level] += self.exchange.scattered(group, hop);
        }
        let all: f64 = shares.iter().sum();
        shares.iter().map(|share| share / all).collect()
    }
}
