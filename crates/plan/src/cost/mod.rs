//! Costs of strategies and layouts on a mesh of real devices.
//!
//! A product takes the longer of two times: its flops over the device's rate at that size, and its bytes over
//! the memory's rate. Any other operator takes the time of its bytes. All of them also take the device's
//! overhead. The backward pass is the sum of the nodes that compute gradients. Conversions take the time of
//! their collectives.

mod bound;
mod collective;
mod encoded;
mod group;
mod parts;
mod transport;
mod travel;
mod work;

pub use bound::Replication;
pub use collective::{Exchange, message_s};
pub use encoded::{Message, cheapest};
pub use group::{Group, Hop};
pub use parts::Cost;
pub use thinwire_program::{Coding, Sharding};
pub use transport::{GradientTransport, hull};
pub use travel::Passages;
pub use work::{Gradient, Pinned, Work, WorkKind, work};

use std::borrow::Cow;

use thinwire_model::{Declaration, Layout, Placement, Sides, Strategy};
use thinwire_wire::HEADER_BYTES;

use crate::Cluster;
use crate::cluster::{ADD, Device, Handling, UPDATE};

/// Way in which parameters may be divided among the ranks that share their work, by the stages of ZeRO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Division {
    /// All parameters are sharded alike.
    Alike(Sharding),
    /// Each parameter has the sharding that is best for it.
    Each,
}

impl Division {
    /// Returns the sharding that is priced first; the prices of other shardings are differences from its
    /// price.
    pub fn usual(self) -> Sharding {
        match self {
            Division::Alike(sharding) => sharding,
            Division::Each => Sharding::Optimizer,
        }
    }
}

/// Sizes of numbers, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Precision {
    /// Bytes per element of an activation, a parameter in use, and a gradient.
    pub element: f64,
    /// Bytes of a parameter's optimiser state, including an exact value if `element` is not exact.
    pub optimizer: f64,
}

impl Precision {
    /// Half precision with an exact copy, and Adam: 2 + 2 + 12 bytes per parameter.
    pub const MIXED: Precision = Precision { element: 2.0, optimizer: 12.0 };
    /// Single precision, and Adam, which keeps its own copy of the values: 4 + 4 + 12 bytes per parameter.
    pub const SINGLE: Precision = Precision { element: 4.0, optimizer: 12.0 };
}

/// Costs on a mesh of devices.
#[derive(Clone, Debug)]
pub struct Costs<'a> {
    /// Cluster.
    pub cluster: &'a Cluster,
    /// Device that sets the pace.
    pub device: Device,
    /// Sizes of the mesh.
    pub mesh: Vec<usize>,
    /// Sizes of numbers, in bytes.
    pub precision: Precision,
    /// Sharding of parameters.
    pub division: Division,
    /// Algorithm of collectives within a level.
    pub exchange: Exchange,
    /// Whether gradient exchanges run side by side.
    pub side_by_side: bool,
    /// Whether the gradient of a product's input is sent while the gradient of its weight is computed.
    pub products: bool,
    /// Codecs of gradients.
    pub codings: Vec<Coding>,
    /// Codec of activations for every level. It is used for transfers whose outermost level this is;
    /// without a codec, they are raw.
    pub activations: Vec<Option<Coding>>,
    /// Group along each dimension of the mesh.
    groups: Vec<Group>,
}

impl<'a> Costs<'a> {
    /// Returns the costs of a mesh over neighbouring devices of a cluster.
    pub fn new(cluster: &'a Cluster, mesh: &[usize], precision: Precision) -> Costs<'a> {
        let device = cluster.pace();
        let along = |dim| Group::along(cluster, mesh, &[dim]).handled(&device.handling);
        let groups = (0..mesh.len()).map(along).collect();
        Costs {
            cluster,
            device,
            mesh: mesh.to_vec(),
            precision,
            division: Division::Alike(Sharding::None),
            exchange: Exchange::Direct,
            side_by_side: false,
            products: false,
            codings: Vec::new(),
            activations: Vec::new(),
            groups,
        }
    }

    /// Returns the cost of a node under a strategy.
    pub fn node(&self, work: &Work, strategy: &Strategy) -> Cost {
        let forward_s = self.compute_s(&work.declaration, work.kind, work.operator, strategy);
        let backward_s = self.gradients_s(work, &work.gradients, strategy);
        let activation_bytes = self.activation_bytes(work, strategy);
        Cost { forward_s, backward_s, activation_bytes, ..Cost::ZERO }
    }

    /// Returns the bytes of activations of a node that a device keeps for the backward pass.
    fn activation_bytes(&self, work: &Work, strategy: &Strategy) -> f64 {
        let declaration = &work.declaration;
        let inputs = work.kept_inputs.iter().map(|at| {
            let layout = declaration.input_sides(*at, strategy).value;
            self.bytes(&declaration.shape(&declaration.inputs[*at]), &layout)
        });
        let outputs = work.kept_outputs.iter().map(|at| {
            let layout = declaration.output_sides(*at, strategy).value;
            self.bytes(&declaration.shape(&declaration.outputs[*at]), &layout)
        });
        inputs.chain(outputs).sum()
    }

    /// Returns the seconds for which a node still computes in the backward pass after the gradient of
    /// one of its inputs is ready.
    pub fn behind_s(&self, work: &Work, input: usize, strategy: &Strategy) -> f64 {
        self.gradients_s(work, &work.gradients[work.before[input]..], strategy)
    }

    /// Returns the seconds of some nodes that compute gradients.
    fn gradients_s(&self, work: &Work, gradients: &[Gradient], strategy: &Strategy) -> f64 {
        let gradient = |Gradient { declaration, kind, operator }: &Gradient| {
            let carried = work.declaration.carried(strategy, declaration);
            self.compute_s(declaration, *kind, operator, &carried)
        };
        gradients.iter().map(gradient).sum()
    }

    /// Returns the costs computed as if links took no time, so that only the devices' own time is left.
    pub fn unlinked(&self) -> Costs<'a> {
        let free = |group: &Group| group.clone().free().handled(&self.device.handling);
        let groups = self.groups.iter().map(free).collect();
        // A device that computes meanwhile waits for no other.
        let handling = Handling { exchange_s: 0.0, ..self.device.handling };
        let device = Device { handling, ..self.device.clone() };
        Costs { groups, device, ..self.clone() }
    }

    /// Returns the seconds in which one device computes its part of an operator.
    fn compute_s(
        &self,
        declaration: &Declaration,
        kind: WorkKind,
        operator: &str,
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
        self.seconds(kind, operator, flops, elements * self.precision.element)
    }

    /// Returns the seconds in which one device computes an operator of `flops` flops that reads and writes
    /// `bytes` bytes.
    pub fn seconds(&self, kind: WorkKind, operator: &str, flops: f64, bytes: f64) -> f64 {
        let product = flops / (self.device.flops_per_s * self.device.efficiency.at(flops));
        let pace = self.device.pace(operator);
        let seconds = match kind {
            WorkKind::View if pace.is_none() => return 0.0,
            WorkKind::View | WorkKind::Memory => self.memory_s(bytes),
            WorkKind::Product => self.memory_s(bytes).max(product),
        };
        seconds / pace.unwrap_or(1.0) + self.device.overhead_s
    }

    /// Returns the seconds in which operators read or write `bytes` bytes.
    fn memory_s(&self, bytes: f64) -> f64 {
        bytes / (self.device.memory_bytes_per_s * self.device.memory_efficiency)
    }

    /// Returns the cost of a parameter: its state, the synchronisation of its gradient, and the
    /// all-gather of its new value.
    pub fn parameter(&self, shape: &[usize], sides: &Sides) -> Cost {
        self.divided(self.division.usual(), self.local(shape, &sides.value), &self.sharing(sides))
    }

    /// Returns the cost of `elements` elements of parameters on each of the ranks that share their
    /// work.
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
        // A micro-batch is added to the sum of gradients: two reads and a write.
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

    /// Returns the device time of one end of a message, in seconds.
    pub fn message_handling_s(&self, bytes: f64) -> f64 {
        0.5 * self.device.handling.seconds(1.0, bytes + HEADER_BYTES as f64)
    }

    /// Returns the number of ranks that share a parameter's work.
    pub fn sharers(&self, sides: &Sides) -> f64 {
        self.shared(sides).iter().map(|dim| self.mesh[*dim] as f64).product()
    }

    /// Returns the group of ranks that share a parameter's work.
    fn sharing(&self, sides: &Sides) -> Group {
        Group::along(self.cluster, &self.mesh, &self.shared(sides)).handled(&self.device.handling)
    }

    /// Returns the mesh dimensions along which ranks share a parameter's work.
    fn shared(&self, sides: &Sides) -> Vec<usize> {
        let partial = |dim: &usize| matches!(sides.gradient.0[*dim], Placement::Partial(_));
        (0..self.mesh.len()).filter(partial).collect()
    }

    /// Returns the group with the latencies and rates that its exchanges have. If exchanges run side by
    /// side, their latencies do not add up. With ZeRO 3 the device waits for every exchange.
    fn under_way<'b>(&self, sharding: Sharding, group: &'b Group) -> Cow<'b, Group> {
        match self.side_by_side && sharding != Sharding::Parameters {
            true => Cow::Owned(group.clone().without_latency()),
            false => Cow::Borrowed(group),
        }
    }

    /// Returns the bytes of one device's part of a tensor.
    pub fn bytes(&self, shape: &[usize], layout: &Layout) -> f64 {
        self.local(shape, layout) * self.precision.element
    }

    fn local(&self, shape: &[usize], layout: &Layout) -> f64 {
        layout.local_elements(shape, &self.mesh) as f64
    }
}
