//! What tensors take on their way from one layout to another, in seconds and in bytes.

use thinwire_model::{Collective, Layout, Sides, Step, conversion};

use super::encoded::encodes;
use super::{Carriage, Cost, Costs, Group, Hop, Sharding};

/// What a tensor goes through from some layouts to others on a mesh, whatever its links: for every
/// pair collectives along dimensions of the mesh.
#[derive(Clone, Debug)]
pub struct Passages {
    legs: Vec<Leg>,
    /// For every pair where its legs end; none where it cannot be.
    ends: Vec<(usize, bool)>,
}

/// One collective that sends something.
#[derive(Clone, Debug)]
struct Leg {
    step: Step,
    /// Whether its tensor may be encoded.
    encodes: bool,
}

impl Passages {
    /// Between these pairs of layouts on a mesh of these sizes.
    pub fn new<'a>(
        shape: &[usize],
        mesh: &[usize],
        pairs: impl Iterator<Item = (&'a Layout, &'a Layout)>,
    ) -> Passages {
        let (mut legs, mut ends) = (Vec::new(), Vec::new());
        for (from, to) in pairs {
            let steps = if from == to { Ok(Vec::new()) } else { conversion(shape, mesh, from, to) };
            let can_be = steps.is_ok();
            legs.extend(steps.into_iter().flatten().filter_map(|step| Leg::new(shape, step)));
            ends.push((legs.len(), can_be));
        }
        Passages { legs, ends }
    }
}

impl Leg {
    /// The collective of a step, if it sends anything.
    fn new(shape: &[usize], step: Step) -> Option<Leg> {
        let local = matches!(step.collective, Collective::Slice { .. } | Collective::Pad { .. });
        (!local).then(|| Leg { step, encodes: encodes(shape) })
    }
}

impl Costs<'_> {
    /// Seconds in which a tensor goes from one layout to another; infinitely many if it cannot.
    pub fn conversion_s(&self, shape: &[usize], from: &Layout, to: &Layout) -> f64 {
        let pair = std::iter::once((from, to));
        self.passages_s(&Passages::new(shape, &self.mesh, pair))[0]
    }

    /// The same for all pairs of layouts.
    pub fn passages_s(&self, passages: &Passages) -> Vec<f64> {
        let mut begin = 0;
        let seconds = |(end, can_be): &(usize, bool)| {
            let legs = &passages.legs[begin..*end];
            begin = *end;
            if *can_be { legs.iter().map(|leg| self.leg_s(leg)).sum() } else { f64::INFINITY }
        };
        passages.ends.iter().map(seconds).collect()
    }

    fn leg_s(&self, Leg { step, encodes }: &Leg) -> f64 {
        if let Some(coding) = self.coding_of(*encodes, step) {
            return self.encoded_s(step, coding);
        }
        let bytes = step.elements as f64 * self.precision.element;
        let group = &self.groups[step.mesh_dim];
        match step.collective {
            Collective::Slice { .. } | Collective::Pad { .. } => 0.0,
            Collective::ReduceScatter { .. } | Collective::AllGather { .. } => {
                self.exchange.scatter_s(group, bytes)
            }
            Collective::AllToAll { .. } => {
                self.exchange.all_to_all_s(group, bytes / group.size as f64)
            }
            Collective::AllReduce { .. } => self.exchange.all_reduce_s(group, bytes),
        }
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
            if let Some(coding) = self.coding_of(encodes(shape), step) {
                return self.encoded_sent(step, coding, level);
            }
            let group = &self.groups[step.mesh_dim];
            let bytes = step.elements as f64 * self.precision.element;
            match step.collective {
                Collective::Slice { .. } | Collective::Pad { .. } => 0.0,
                Collective::ReduceScatter { .. } | Collective::AllGather { .. } => {
                    bytes * self.scattered(group, level)
                }
                Collective::AllToAll { .. } => bytes / group.size as f64 * exchanged(group, level),
                Collective::AllReduce { .. } => 2.0 * bytes * self.scattered(group, level),
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

    /// The same of a parameter that is divided so.
    pub fn divided_sent(
        &self,
        sharding: Sharding,
        shape: &[usize],
        sides: &Sides,
        level: Option<usize>,
    ) -> Cost {
        let part = self.scattered(&self.sharing(sides), level);
        let bytes = self.bytes(shape, &sides.value) * part;
        match sharding {
            Sharding::None | Sharding::Optimizer => Cost { sync_s: 2.0 * bytes, ..Cost::ZERO },
            Sharding::Gradients => Cost { backward_wire_s: bytes, sync_s: bytes, ..Cost::ZERO },
            Sharding::Parameters => {
                Cost { gather_s: bytes, backward_wire_s: 2.0 * bytes, ..Cost::ZERO }
            }
        }
    }

    /// The part of its bytes that a device sends in a reduce-scatter, over one level or all.
    pub(super) fn scattered(&self, group: &Group, level: Option<usize>) -> f64 {
        let hops = group.hops.iter().filter(|hop| level.is_none_or(|level| level == hop.level));
        hops.map(|hop| self.exchange.scattered(group, hop)).sum()
    }
}

/// The part of its bytes that a device sends in an all-to-all: what goes to those beyond each level.
pub(super) fn exchanged(group: &Group, level: Option<usize>) -> f64 {
    let part = |hop: &Hop| hop.inside * (hop.members - 1.0) / group.size as f64;
    group.hops.iter().filter(|hop| level.is_none_or(|level| level == hop.level)).map(part).sum()
}
