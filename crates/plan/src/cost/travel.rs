//! What tensors take on their way from one layout to another, in seconds and in bytes.

use thinwire_model::{Collective, Layout, Sides, Step, conversion};

use super::{Carriage, Cost, Costs, Group, Hop, Sharding};

/// What a tensor goes through from one layout to another on a mesh, whatever its links: collectives
/// along dimensions of the mesh. None where it cannot be.
#[derive(Clone, Debug)]
pub struct Passage(Option<Box<[Leg]>>);

/// One collective of so many elements.
#[derive(Clone, Copy, Debug)]
struct Leg {
    mesh_dim: usize,
    pattern: Pattern,
    elements: f64,
}

#[derive(Clone, Copy, Debug)]
enum Pattern {
    /// A reduce-scatter or an all-gather.
    Scatter,
    AllToAll,
    AllReduce,
}

impl Passage {
    /// From one layout to another on a mesh of these sizes.
    pub fn new(shape: &[usize], mesh: &[usize], from: &Layout, to: &Layout) -> Passage {
        let Ok(steps) = conversion(shape, mesh, from, to) else { return Passage(None) };
        let leg = |step: &Step| {
            let pattern = match step.collective {
                Collective::Slice { .. } | Collective::Pad { .. } => return None,
                Collective::ReduceScatter { .. } | Collective::AllGather { .. } => Pattern::Scatter,
                Collective::AllToAll { .. } => Pattern::AllToAll,
                Collective::AllReduce { .. } => Pattern::AllReduce,
            };
            Some(Leg { mesh_dim: step.mesh_dim, pattern, elements: step.elements as f64 })
        };
        Passage(Some(steps.iter().filter_map(leg).collect()))
    }
}

impl Costs<'_> {
    /// Seconds in which a tensor goes from one layout to another.
    pub fn conversion_s(&self, shape: &[usize], from: &Layout, to: &Layout) -> f64 {
        self.passage_s(&Passage::new(shape, &self.mesh, from, to))
    }

    /// Seconds of what a tensor goes through on this mesh; infinitely many if it cannot.
    pub fn passage_s(&self, passage: &Passage) -> f64 {
        let Some(legs) = &passage.0 else { return f64::INFINITY };
        let leg = |leg: &Leg| {
            let bytes = leg.elements * self.precision.element;
            let group = &self.groups[leg.mesh_dim];
            match leg.pattern {
                Pattern::Scatter => self.exchange.scatter_s(group, bytes),
                Pattern::AllToAll => self.exchange.all_to_all_s(group, bytes / group.size as f64),
                Pattern::AllReduce => self.exchange.all_reduce_s(group, bytes),
            }
        };
        legs.iter().map(leg).sum()
    }

    /// Bytes that a device sends in it, over one level of the cluster or over all; infinitely many
    /// if it cannot be.
    pub fn conversion_sent(
        &self,
        shape: &[usize],
        from: &Layout,
        to: &Layout,
        level: Option<usize>,
    ) -> f64 {
        let Ok(steps) = conversion(shape, &self.mesh, from, to) else { return f64::INFINITY };
        let sent = |step: &Step| {
            let group = &self.groups[step.mesh_dim];
            let bytes = step.elements as f64 * self.precision.element;
            match step.collective {
                Collective::Slice { .. } | Collective::Pad { .. } => 0.0,
                Collective::ReduceScatter { .. } | Collective::AllGather { .. } => {
                    bytes * scattered(group, level)
                }
                Collective::AllToAll { .. } => bytes / group.size as f64 * exchanged(group, level),
                Collective::AllReduce { .. } => 2.0 * bytes * scattered(group, level),
            }
        };
        steps.iter().map(sent).sum()
    }

    /// Bytes that a device sends for a parameter, in place of seconds: once a step, or with ZeRO 2
    /// and 3 with every micro-batch.
    pub fn parameter_sent(&self, shape: &[usize], sides: &Sides, level: Option<usize>) -> Cost {
        self.divided_sent(self.division.usual(), shape, sides, level)
    }

    /// What changes of it where a parameter is divided otherwise.
    pub fn carriages_sent(
        &self,
        shape: &[usize],
        sides: &Sides,
        level: Option<usize>,
    ) -> Vec<Carriage> {
        let usual = self.parameter_sent(shape, sides, level);
        let change = |sharding| self.divided_sent(sharding, shape, sides, level) - usual;
        let others = self.others().iter().copied();
        let raw = |sharding| Carriage { sharding, coding: None, change: change(sharding) };
        others.map(raw).collect()
    }

    fn divided_sent(
        &self,
        sharding: Sharding,
        shape: &[usize],
        sides: &Sides,
        level: Option<usize>,
    ) -> Cost {
        let part = scattered(&self.sharing(sides), level);
        let bytes = self.bytes(shape, &sides.value) * part;
        match sharding {
            Sharding::None | Sharding::Optimizer => Cost { sync_s: 2.0 * bytes, ..Cost::ZERO },
            Sharding::Gradients => Cost { backward_wire_s: bytes, sync_s: bytes, ..Cost::ZERO },
            Sharding::Parameters => {
                Cost { gather_s: bytes, backward_wire_s: 2.0 * bytes, ..Cost::ZERO }
            }
        }
    }
}

/// The part of its bytes that a device sends in a reduce-scatter: (f−1)/f of what is left for each
/// level, together (p−1)/p.
fn scattered(group: &Group, level: Option<usize>) -> f64 {
    let part = |hop: &Hop| (hop.members - 1.0) / hop.members / hop.inside;
    group.hops.iter().filter(|hop| level.is_none_or(|level| level == hop.level)).map(part).sum()
}

/// The same of an all-to-all: what goes to those beyond each level.
fn exchanged(group: &Group, level: Option<usize>) -> f64 {
    let part = |hop: &Hop| hop.inside * (hop.members - 1.0) / group.size as f64;
    group.hops.iter().filter(|hop| level.is_none_or(|level| level == hop.level)).map(part).sum()
}
