//! What strategies and layouts cost on a mesh of real devices.
//!
//! A product takes its flops over the device's rate at that size, or its bytes over the memory's
//! rate, whichever is longer; anything else its bytes; and all take the device's overhead. Backward
//! is the sum of the nodes that compute gradients. Conversions take what their collectives take.

mod bound;
mod collective;
mod division;
mod encoded;
mod group;
mod keeping;
mod parts;
mod transport;
mod travel;
mod work;

pub use collective::{Exchange, message_s};
pub use division::Division;
pub use encoded::{Message, cheapest};
pub use group::{Group, Hop};
pub use keeping::Keeping;
pub use parts::Cost;
pub use thinwire_program::{Coding, Sharding};
pub use transport::GradientTransport;
pub use travel::Passages;
pub use work::{Gradient, Pinned, Work, WorkKind, Written, work};

use std::borrow::Cow;

use thinwire_model::{Declaration, Layout, Placement, Sides, Strategy};
use thinwire_wire::HEADER_BYTES;

use crate::cluster::{Cluster, Device, Handling};

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
pub(crate) const UPDATE: &str = "update";
/// The same of what a micro-batch adds to the sum of gradients.
pub(crate) const ADD: &str = "add";
/// The same of values that lie otherwise than they travel.
pub(crate) const LAYOUT: &str = "layout";

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
    /// Whether the gradient of a product's input is on its way while that of its weight is computed.
    pub products: bool,
    /// What gradients may be encoded with.
    pub codings: Vec<Coding>,
    /// For every level, what activations that cross it and none beyond are encoded with; those of
    /// levels that are not there travel as they are.
    pub activations: Vec<Option<Coding>>,
    /// The group along each dimension of the mesh.
    groups: Vec<Group>,
}

impl<'a> Costs<'a> {
    /// A mesh over neighbouring devices of a cluster.
    pub fn new(cluster: &'a Cluster, mesh: &[usize], precision: Precision) -> Costs<'a> {
        let device = cluster.pace();
        let along = |dim| Group::along(cluster, mesh, &[dim]).handled(&device.handling);
        let groups = (0..mesh.len()).map(along).collect();
        Costs {
            cluster,
            device,
            mesh: mesh.to_vec(),
            precision,
            keeping: Keeping::OURS,
            division: Division::Alike(Sharding::None),
            exchange: Exchange::Direct,
            side_by_side: false,
            products: false,
            codings: Vec::new(),
            activations: Vec::new(),
            groups,
        }
    }

    /// The work of a node under a strategy.
    pub fn node(&self, work: &Work, strategy: &Strategy) -> Cost {
        let forward_s = self.compute_s(&work.declaration, (work.kind, work.operator), strategy);
        let backward_s = self.gradients_s(work, &work.gradients, strategy);
        let activation_bytes = self.activation_bytes(work, strategy);
        Cost { forward_s, backward_s, activation_bytes, ..Cost::ZERO }
    }

    /// Seconds of what a node computes in backward behind the gradient of one of its inputs.
    pub fn behind_s(&self, work: &Work, input: usize, strategy: &Strategy) -> f64 {
        self.gradients_s(work, &work.gradients[work.before[input]..], strategy)
    }

    /// Seconds of some nodes that compute gradients.
    fn gradients_s(&self, work: &Work, gradients: &[Gradient], strategy: &Strategy) -> f64 {
        let gradient = |Gradient { declaration, kind, operator }: &Gradient| {
            let carried = work.declaration.carried(strategy, declaration);
            self.compute_s(declaration, (*kind, operator), &carried)
        };
        gradients.iter().map(gradient).sum()
    }

    /// The same devices where links take no time: what is left is the devices' own.
    pub fn unlinked(&self) -> Costs<'a> {
        let free = |group: &Group| group.clone().free().handled(&self.device.handling);
        let groups = self.groups.iter().map(free).collect();
        // A device that computes meanwhile waits for no other.
        let handling = Handling { exchange_s: 0.0, ..self.device.handling };
        let device = Device { handling, ..self.device.clone() };
        Costs { groups, device, ..self.clone() }
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

    /// Keeping a parameter, bringing its gradient together, and its new value home.
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
                sync_s: scatter_s,
                handling_s,
                all_gather_s: scatter_s,
                all_gather_handling_s: handling_s,
                optimizer_s: update(elements * share),
                state_bytes: elements * (2.0 * element + optimizer * share),
                ..Cost::ZERO
            },
            Sharding::Gradients => Cost {
                backward_s: backward_s * share,
                backward_wire_s: scatter_s,
                all_gather_s: scatter_s,
                all_gather_handling_s: handling_s,
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

    /// How many ranks share a parameter's work.
    pub fn sharers(&self, sides: &Sides) -> f64 {
        self.shared(sides).iter().map(|dim| self.mesh[*dim] as f64).product()
    }

    /// The ranks that share a parameter's work.
    fn sharing(&self, sides: &Sides) -> Group {
        Group::along(self.cluster, &self.mesh, &self.shared(sides)).handled(&self.device.handling)
    }

    /// The dimensions of the mesh along which ranks share a parameter's work.
    fn shared(&self, sides: &Sides) -> Vec<usize> {
        let partial = |dim: &usize| matches!(sides.gradient.0[*dim], Placement::Partial(_));
        (0..self.mesh.len()).filter(partial).collect()
    }

    /// The ranks that share a parameter's work as its exchanges see them: side by side their
    /// latencies do not add up. With ZeRO 3 every exchange is waited for.
    fn under_way<'b>(&self, sharding: Sharding, group: &'b Group) -> Cow<'b, Group> {
        match self.side_by_side && sharding != Sharding::Parameters {
            true => Cow::Owned(group.clone().without_latency()),
            false => Cow::Borrowed(group),
        }
    }

    /// Bytes of one device's part of a tensor.
    pub fn bytes(&self, shape: &[usize], layout: &Layout) -> f64 {
        self.local(shape, layout) * self.precision.element
    }

    fn local(&self, shape: &[usize], layout: &Layout) -> f64 {
        layout.local_elements(shape, &self.mesh) as f64
    }
}
