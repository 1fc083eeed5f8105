//! What strategies and layouts cost on a mesh of real devices.
//!
//! A product takes its flops over the device's rate at that size, or its bytes over the memory's
//! rate, whichever is longer; anything else its bytes; and all take the device's overhead. Backward
//! is the sum of the nodes that compute gradients. Conversions take what their collectives take.

pub mod activation;
mod carriage;
mod coding;
mod collective;
mod group;
mod keeping;
mod travel;
mod work;

pub use carriage::Carriage;
pub use coding::Coding;
pub use collective::{Exchange, message_s};
pub use group::{Group, Hop};
pub use keeping::Keeping;
pub use work::{Gradient, Pinned, Work, WorkKind, Written, work};

use std::collections::HashMap;

use thinwire_model::{Declaration, Layout, NodeId, Operand, Placement, Sides, Strategy};
use thinwire_wire::HEADER_BYTES;

use crate::cluster::{Cluster, Device};

/// Seconds and bytes of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Computing forward, for one micro-batch.
    pub forward_s: f64,
    /// Computing backward, for one micro-batch.
    pub backward_s: f64,
    /// Collectives of forward, for one micro-batch.
    pub forward_wire_s: f64,
    /// Collectives of backward, for one micro-batch.
    pub backward_wire_s: f64,
    /// Gathering parameters for forward, for one micro-batch.
    pub gather_s: f64,
    /// Computing forward again in backward, with its collectives, for one micro-batch.
    pub again_s: f64,
    /// Bringing gradients of parameters together, once a step.
    pub sync_s: f64,
    /// What of that takes the device's own time, so that nothing hides it.
    pub handling_s: f64,
    /// The optimiser, once a step.
    pub optimizer_s: f64,
    /// Parameters, gradients, optimiser state.
    pub state_bytes: f64,
    /// What waits for backward, of one micro-batch.
    pub kept_bytes: f64,
    /// What enters the block, of one micro-batch: all that waits where forward is computed again.
    pub entry_bytes: f64,
    /// What encoding gradients loses: relative squared errors, times the elements of parameters.
    pub loss: f64,
}

impl Cost {
    /// What cannot be.
    pub const NEVER: Cost = Cost { forward_s: f64::INFINITY, ..Cost::ZERO };
    /// Nothing.
    pub const ZERO: Cost = Cost {
        forward_s: 0.0,
        backward_s: 0.0,
        forward_wire_s: 0.0,
        backward_wire_s: 0.0,
        gather_s: 0.0,
        again_s: 0.0,
        sync_s: 0.0,
        handling_s: 0.0,
        optimizer_s: 0.0,
        state_bytes: 0.0,
        kept_bytes: 0.0,
        entry_bytes: 0.0,
        loss: 0.0,
    };

    /// Seconds of one micro-batch.
    pub fn micro_s(&self) -> f64 {
        self.ahead_s() + self.again_s + self.backward_s + self.backward_wire_s
    }

    /// Seconds of one micro-batch forward.
    pub fn ahead_s(&self) -> f64 {
        self.forward_s + self.forward_wire_s + self.gather_s
    }

    /// The same where forward is computed again in backward, so that only what enters waits.
    /// Parameters that are gathered are so once for both.
    pub fn recomputed(self) -> Cost {
        let again_s = self.forward_s + self.forward_wire_s;
        Cost { again_s, kept_bytes: self.entry_bytes, ..self }
    }
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.forward_s += other.forward_s;
        self.backward_s += other.backward_s;
        self.forward_wire_s += other.forward_wire_s;
        self.backward_wire_s += other.backward_wire_s;
        self.gather_s += other.gather_s;
        self.again_s += other.again_s;
        self.sync_s += other.sync_s;
        self.handling_s += other.handling_s;
        self.optimizer_s += other.optimizer_s;
        self.state_bytes += other.state_bytes;
        self.kept_bytes += other.kept_bytes;
        self.entry_bytes += other.entry_bytes;
        self.loss += other.loss;
    }
}

impl std::ops::Sub for Cost {
    type Output = Cost;

    fn sub(self, other: Cost) -> Cost {
        Cost {
            forward_s: self.forward_s - other.forward_s,
            backward_s: self.backward_s - other.backward_s,
            forward_wire_s: self.forward_wire_s - other.forward_wire_s,
            backward_wire_s: self.backward_wire_s - other.backward_wire_s,
            gather_s: self.gather_s - other.gather_s,
            again_s: self.again_s - other.again_s,
            sync_s: self.sync_s - other.sync_s,
            handling_s: self.handling_s - other.handling_s,
            optimizer_s: self.optimizer_s - other.optimizer_s,
            state_bytes: self.state_bytes - other.state_bytes,
            kept_bytes: self.kept_bytes - other.kept_bytes,
            entry_bytes: self.entry_bytes - other.entry_bytes,
            loss: self.loss - other.loss,
        }
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::ZERO, |mut sum, cost| {
            sum += cost;
            sum
        })
    }
}

/// How many bytes numbers have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Precision {
    /// Of an activation, a parameter in use, and a gradient.
    pub element: f64,
    /// Of a parameter's optimiser state, with its exact value if `element` is not exact.
    pub optimizer: f64,
}

impl Precision {
    /// Half precision with an exact copy, and Adam: 2 + 2 + 12 bytes a parameter.
    pub const MIXED: Precision = Precision { element: 2.0, optimizer: 12.0 };
    /// Single precision and Adam, which has values of its own: 4 + 4 + 12 bytes a parameter.
    pub const SINGLE: Precision = Precision { element: 4.0, optimizer: 12.0 };
}

/// The name under which a device says how fast the optimiser is.
const UPDATE: &str = "update";
/// The same of what a micro-batch adds to the sum of gradients.
const ADD: &str = "add";

/// What the ranks that share a parameter's work divide among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sharding {
    /// Nothing.
    None,
    /// The optimiser's state: ZeRO 1.
    Optimizer,
    /// Gradients too: ZeRO 2. They are scattered with every micro-batch.
    Gradients,
    /// Parameters too: ZeRO 3. They are gathered for forward and for backward with every
    /// micro-batch.
    Parameters,
}

/// How much may differ in what is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Division {
    /// All parameters are divided alike.
    Alike(Sharding),
    /// Each parameter as is best for it.
    Each,
}

impl Division {
    /// The sharding whose costs are worked out first; others are changes of it.
    pub fn usual(self) -> Sharding {
        match self {
            Division::Alike(sharding) => sharding,
            Division::Each => Sharding::Optimizer,
        }
    }
}

/// A mesh of devices, and what it is asked.
#[derive(Clone, Debug)]
pub struct Costs<'a> {
    /// The machines.
    pub cluster: &'a Cluster,
    /// The device that sets the pace.
    pub device: Device,
    /// The sizes of the mesh.
    pub mesh: Vec<usize>,
    /// How numbers are kept.
    pub precision: Precision,
    /// What waits for backward, and how.
    pub keeping: Keeping,
    /// What is divided.
    pub division: Division,
    /// How members of a level exchange.
    pub exchange: Exchange,
    /// Whether exchanges of gradients are under way side by side.
    pub side_by_side: bool,
    /// What gradients may be encoded with.
    pub codings: Vec<Coding>,
    /// The group along each dimension of the mesh.
    groups: Vec<Group>,
}

impl<'a> Costs<'a> {
    /// A mesh over neighbouring devices of a cluster.
    pub fn new(cluster: &'a Cluster, mesh: &[usize], precision: Precision) -> Costs<'a> {
        let groups = (0..mesh.len()).map(|dim| Group::along(cluster, mesh, &[dim])).collect();
        Costs {
            cluster,
            device: cluster.pace(),
            mesh: mesh.to_vec(),
            precision,
            keeping: Keeping::OURS,
            division: Division::Alike(Sharding::None),
            exchange: Exchange::Direct,
            side_by_side: false,
            codings: Vec::new(),
            groups,
        }
    }

    /// The work of a node under a strategy.
    pub fn node(&self, work: &Work, strategy: &Strategy) -> Cost {
        let forward_s = self.compute_s(&work.declaration, (work.kind, work.operator), strategy);
        let gradient = |Gradient { declaration, kind, operator }: &Gradient| {
            let carried = work.declaration.carried(strategy, declaration);
            self.compute_s(declaration, (*kind, operator), &carried)
        };
        let backward_s = work.gradients.iter().map(gradient).sum();
        let kept_bytes = self.kept_bytes(work, strategy);
        Cost { forward_s, backward_s, kept_bytes, ..Cost::ZERO }
    }

    /// Seconds of one device for its part of an operator.
    fn compute_s(
        &self,
        declaration: &Declaration,
        (kind, operator): (WorkKind, &str),
        strategy: &Strategy,
    ) -> f64 {
        if kind == WorkKind::View && self.device.pace(operator).is_none() {
            return 0.0;
        }
        let flops = declaration.local_flops(strategy, &self.mesh);
        let inputs = (0..declaration.inputs.len())
            .map(|at| (&declaration.inputs[at], declaration.input_sides(at, strategy).value));
        let outputs = (0..declaration.outputs.len())
            .map(|at| (&declaration.outputs[at], declaration.output_sides(at, strategy).value));
        let elements: f64 = inputs
            .chain(outputs)
            .map(|(operand, layout)| self.local(&declaration.shape(operand), &layout))
            .sum();
        self.seconds((kind, operator), flops, elements * self.precision.element)
    }

    /// Seconds of one device for work of so many flops that touches so many bytes, by an operator
    /// of this name.
    pub fn seconds(&self, (kind, operator): (WorkKind, &str), flops: f64, bytes: f64) -> f64 {
        let product = flops / (self.device.flops_per_s * self.device.efficiency.at(flops));
        let pace = self.device.pace(operator);
        let seconds = match kind {
            WorkKind::View if pace.is_none() => return 0.0,
            WorkKind::View | WorkKind::Memory => self.memory_s(bytes),
            WorkKind::Product => self.memory_s(bytes).max(product),
        };
        seconds / pace.unwrap_or(1.0) + self.device.overhead_s
    }

    /// Seconds in which operators read or write so many bytes.
    fn memory_s(&self, bytes: f64) -> f64 {
        bytes / (self.device.memory_bytes_per_s * self.device.memory_efficiency)
    }

    /// Keeping a parameter, and bringing its gradient together.
    pub fn parameter(&self, shape: &[usize], sides: &Sides) -> Cost {
        self.divided(self.division.usual(), self.local(shape, &sides.value), &self.sharing(sides))
    }

    /// The same of so many elements on each of the ranks that share the work.
    fn divided(&self, sharding: Sharding, elements: f64, group: &Group) -> Cost {
        let Precision { element, optimizer } = self.precision;
        let share = 1.0 / group.size as f64;
        let bytes = elements * element;
        let group = self.under_way(sharding, group);
        let scatter_s = self.exchange.scatter_s(&group, bytes);
        let handling_s = self.exchange.scatter_handling_s(&group, bytes, &self.device.handling);
        let update = |elements: f64| {
            let touched = elements * 2.0 * (optimizer + element);
            self.memory_s(touched) / self.device.pace(UPDATE).unwrap_or(1.0)
        };
        // What a micro-batch adds to the sum of gradients: read, read and written.
        let added = self.device.pace(ADD).map(|pace| self.memory_s(3.0 * bytes) / pace);
        let backward_s = added.unwrap_or(0.0);
        match sharding {
            Sharding::None => Cost {
                backward_s,
                sync_s: 2.0 * scatter_s,
                handling_s: 2.0 * handling_s,
                optimizer_s: update(elements),
                state_bytes: elements * (2.0 * element + optimizer),
                ..Cost::ZERO
            },
            Sharding::Optimizer => Cost {
                backward_s,
                sync_s: 2.0 * scatter_s,
                handling_s: 2.0 * handling_s,
                optimizer_s: update(elements * share),
                state_bytes: elements * (2.0 * element + optimizer * share),
                ..Cost::ZERO
            },
            Sharding::Gradients => Cost {
                backward_s: backward_s * share,
                backward_wire_s: scatter_s,
                sync_s: scatter_s,
                handling_s,
                optimizer_s: update(elements * share),
                state_bytes: elements * (element + (element + optimizer) * share),
                ..Cost::ZERO
            },
            Sharding::Parameters => Cost {
                backward_s: backward_s * share,
                gather_s: scatter_s,
                backward_wire_s: 2.0 * scatter_s,
                optimizer_s: update(elements * share),
                state_bytes: elements * (2.0 * element + optimizer) * share,
                ..Cost::ZERO
            },
        }
    }

    /// Seconds of a device's own time for one end of a message.
    pub fn message_handling_s(&self, bytes: f64) -> f64 {
        0.5 * self.device.handling.seconds(1.0, bytes + HEADER_BYTES as f64)
    }

    /// The ranks that share a parameter's work.
    fn sharing(&self, sides: &Sides) -> Group {
        let partial = |dim: &usize| matches!(sides.gradient.0[*dim], Placement::Partial(_));
        let dims: Vec<usize> = (0..self.mesh.len()).filter(partial).collect();
        Group::along(self.cluster, &self.mesh, &dims)
    }

    /// The ranks that share a parameter's work as its exchanges see them: side by side their
    /// latencies do not add up. With ZeRO 3 every exchange is waited for.
    fn under_way(&self, sharding: Sharding, group: &Group) -> Group {
        match self.side_by_side && sharding != Sharding::Parameters {
            true => group.clone().without_latency(),
            false => group.clone(),
        }
    }

    /// Bytes of one device's part of a tensor.
    pub fn bytes(&self, shape: &[usize], layout: &Layout) -> f64 {
        self.local(shape, layout) * self.precision.element
    }

    fn local(&self, shape: &[usize], layout: &Layout) -> f64 {
        layout.local_elements(shape, &self.mesh) as f64
    }

    /// The least seconds in which all devices of the mesh together can do some work, forward and
    /// backward: no strategy makes a part smaller than an equal share.
    pub fn bound_s(&self, work: &HashMap<NodeId, Work>, forwards: f64) -> f64 {
        let devices = self.mesh.iter().product::<usize>() as f64;
        let least = |declaration: &Declaration, kind: WorkKind, operator: &str| {
            let operands = declaration.inputs.iter().chain(&declaration.outputs);
            let elements = |operand: &Operand| declaration.shape(operand).iter().product::<usize>();
            let elements: usize = operands.map(elements).sum();
            let bytes = elements as f64 * self.precision.element / devices;
            self.seconds((kind, operator), declaration.flops / devices, bytes)
        };
        let gradient =
            |gradient: &Gradient| least(&gradient.declaration, gradient.kind, gradient.operator);
        let node = |work: &Work| {
            let backward: f64 = work.gradients.iter().map(gradient).sum();
            forwards * least(&work.declaration, work.kind, work.operator) + backward
        };
        work.values().map(node).sum()
    }
}
