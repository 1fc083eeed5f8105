//! The bytes that products send, and the fewest bytes that they could send with their operands in the
//! same layouts.
//!
//! A device that does 1/p of a product's multiplications touches at least D elements of operands and result
//! (Al Daas et al., SPAA'22, see [`super::least`]). It must receive the elements that it does not have
//! at the beginning, and send those that it does not keep at the end. At the end there is one copy of
//! the result.
//!
//! Law: no product sends less than this for its operands, its result and their gradients.

use std::collections::{BTreeMap, HashMap, HashSet};

use thinwire_model::{Declaration, Layout, NodeId, Origin, Placement, Role, TensorId, Training};
use thinwire_program::bytes::Kind;
use thinwire_program::{Assignment, End, StepBytes};

use super::graph_model::GraphModel;
use super::least::product;
use super::{TensorTraffic, TrafficKind};

/// Returns the products of a step, in bytes of all devices. Products at the same place of equal blocks are
/// one row.
pub(super) fn products(
    model: &GraphModel<'_>,
    assignment: &Assignment<'_>,
    bytes: &StepBytes,
) -> Vec<TensorTraffic> {
    let graph = &model.prepared.graph;
    let step = Step::new(assignment, bytes);
    let mut rows: BTreeMap<(usize, usize), TensorTraffic> = BTreeMap::new();
    for (id, node) in graph.nodes.iter().enumerate() {
        let Some(product) = step.product(id) else { continue };
        let block = assignment.block(id);
        let offset = id.wrapping_sub(graph.blocks[block].nodes.start);
        let row = rows.entry((model.outcome.choice.of_block[block], offset));
        let new = || TensorTraffic::new(node.name.clone(), TrafficKind::Product);
        let row = row.or_insert_with(new);
        row.count(graph, block, product.output);
        row.sent_bytes += step.sent(&product);
        row.least_bytes += model.element_bytes as f64 * step.devices * step.needed(&product);
    }
    rows.into_values().collect()
}

/// A product: two operands and a result, each of which has two of three sizes.
struct Product {
    node: NodeId,
    inputs: [TensorId; 2],
    output: TensorId,
    elements: [f64; 3],
}

struct Step<'a> {
    assignment: &'a Assignment<'a>,
    /// Bytes of all devices, by tensor of the training graph.
    sent: HashMap<TensorId, f64>,
    /// Bytes of all devices for a parameter and its gradient, by parameter.
    of_parameters: HashMap<TensorId, f64>,
    devices: f64,
    rounds: f64,
}

impl<'a> Step<'a> {
    fn new(assignment: &'a Assignment<'a>, bytes: &StepBytes) -> Step<'a> {
        let (mut sent, mut of_parameters) = (HashMap::new(), HashMap::new());
        for one in &bytes.exchanges {
            let sum = match one.kind {
                Kind::Activation => sent.entry(one.tensor).or_insert(0.0),
                Kind::Parameter => of_parameters.entry(one.subject).or_insert(0.0),
                Kind::Message => continue,
            };
            *sum += bytes.bytes(one) as f64;
        }
        let rounds = assignment.plan.micro_batches as f64;
        Step { assignment, sent, of_parameters, devices: bytes.width() as f64, rounds }
    }

    /// Returns a node as a product; `None` if it is not exactly one product.
    fn product(&self, node: NodeId) -> Option<Product> {
        let declaration = &self.assignment.declarations[node];
        if declaration.flops == 0.0 || !is_product(declaration) {
            return None;
        }
        let graph = &self.assignment.training.graph;
        let work = &graph.nodes[node];
        let (inputs, output) = ([work.inputs[0], work.inputs[1]], work.outputs[0]);
        let elements = [inputs[0], inputs[1], output].map(|id| graph.tensors[id].elements() as f64);
        Some(Product { node, inputs, output, elements })
    }

    /// Returns the bytes of operands, result and gradients, of all devices.
    fn sent(&self, product: &Product) -> f64 {
        let [a, b] = product.inputs;
        [a, b, product.output].into_iter().map(|tensor| self.sent_of(tensor)).sum()
    }

    fn sent_of(&self, tensor: TensorId) -> f64 {
        if let Role::Parameter(_) = self.role(tensor) {
            return self.of_parameters.get(&tensor).copied().unwrap_or(0.0);
        }
        let all = self.gradients(tensor).into_iter().chain([tensor]);
        all.map(|part| self.sent.get(&part).copied().unwrap_or(0.0)).sum()
    }

    /// Returns the gradient of a tensor, and all terms of which it is the sum.
    fn gradients(&self, tensor: TensorId) -> HashSet<TensorId> {
        let mut open: Vec<TensorId> =
            self.assignment.training.gradients[tensor].into_iter().collect();
        let mut all = HashSet::new();
        while let Some(part) = open.pop() {
            if all.insert(part) {
                open.extend(self.terms(tensor, part));
            }
        }
        all
    }

    /// Returns the terms of a sum of gradients of a tensor; none if the tensor is not such a sum.
    fn terms(&self, tensor: TensorId, part: TensorId) -> &[TensorId] {
        let Training { graph, origins, .. } = self.assignment.training;
        match self.assignment.producers[part] {
            Some((node, _)) if origins[node] == Origin::Accumulate(tensor) => {
                &graph.nodes[node].inputs
            }
            _ => &[],
        }
    }

    /// Returns the fewest elements of a device in a step: for the forward pass, and for the gradient that
    /// needs more.
    fn needed(&self, product: &Product) -> f64 {
        let [a, b, c] = product.elements;
        let had: f64 =
            [0, 1].map(|at| self.had((product.node, at), product.inputs[at])).iter().sum();
        let readers = self.readers(product.output).map(|end| self.assignment.required(end));
        let forward = touched([a, b, c], 1.0, self.devices) - had;
        let forward = forward - self.kept(c, readers);
        let gradient = |at: usize| self.gradient(product, at);
        self.rounds * forward.max(0.0) + gradient(0).max(gradient(1)).max(0.0)
    }

    /// Returns the fewest elements of a device in a step for the gradient of an operand.
    fn gradient(&self, product: &Product, at: usize) -> f64 {
        let (tensor, elements) = (product.inputs[at], product.elements[at]);
        let Some(gradient) = self.assignment.training.gradients[tensor] else { return 0.0 };
        let result = self.given(product);
        let other = (product.node, 1 - at);
        let other = self.local(product.inputs[1 - at], &self.assignment.required(other));
        match self.role(tensor) {
            Role::Parameter(_) => {
                let touched = touched(product.elements, self.rounds, self.devices);
                touched - self.rounds * (result + other) - elements / self.devices
            }
            Role::Activation => {
                let readers = self.assignment.consumers[gradient].iter();
                let kept = self.kept(elements, readers.map(|end| self.assignment.required(*end)));
                let touched = touched(product.elements, 1.0, self.devices);
                self.rounds * (touched - result - other - kept)
            }
            Role::Input => 0.0,
        }
    }

    /// Returns the elements of an operand that a device has before the operand is converted for the product.
    fn had(&self, end: End, tensor: TensorId) -> f64 {
        let stage = self.assignment.stage_of(end.0);
        match (self.role(tensor), self.assignment.producers[tensor]) {
            (Role::Parameter(_), _) => {
                self.local(tensor, &self.assignment.resident_layout(tensor, stage))
            }
            (Role::Activation, Some(made)) => self.local(tensor, &self.made(tensor, made, stage)),
            _ => self.local(tensor, &self.assignment.required(end)),
        }
    }

    /// Returns the layout of a tensor on a stage before it is converted there.
    fn made(&self, tensor: TensorId, end: End, stage: usize) -> Layout {
        match self.assignment.stage_of(end.0) == stage {
            true => self.assignment.produced(end),
            false => self.assignment.boundary(tensor, stage),
        }
    }

    /// Returns the elements of a result that a device need not send: its part of one copy, or all of them if
    /// the result stays in partial sums.
    fn kept(&self, elements: f64, readers: impl Iterator<Item = Layout>) -> f64 {
        let mut readers = readers.peekable();
        let partial = |layout: Layout| {
            layout.0.iter().any(|placement| matches!(placement, Placement::Partial(_)))
        };
        match readers.peek().is_none() || readers.any(partial) {
            true => elements,
            false => elements / self.devices,
        }
    }

    /// Returns the largest number of elements of the result's gradient that a device has before it is
    /// converted.
    fn given(&self, product: &Product) -> f64 {
        let stage = self.assignment.stage_of(product.node);
        let all = self.gradients(product.output);
        let made = |part: &TensorId| {
            let end = self.assignment.producers[*part]?;
            let here = self.assignment.stage_of(end.0) == stage;
            let arrives = self.assignment.consumers[*part]
                .iter()
                .any(|reader| self.assignment.stage_of(reader.0) == stage);
            // A sum that is formed here is of terms that are counted already.
            let term = here && self.terms(product.output, *part).is_empty();
            (term || !here && arrives).then(|| self.local(*part, &self.made(*part, end, stage)))
        };
        match all.is_empty() {
            true => product.elements[2],
            false => all.iter().filter_map(made).sum(),
        }
    }

    fn readers(&self, tensor: TensorId) -> impl Iterator<Item = End> + '_ {
        let all = self.assignment.consumers[tensor].iter().copied();
        all.filter(|(node, _)| self.assignment.is_forward(*node))
    }

    fn role(&self, tensor: TensorId) -> Role {
        self.assignment.training.graph.tensors[tensor].role
    }

    fn local(&self, tensor: TensorId, layout: &Layout) -> f64 {
        let shape = &self.assignment.training.graph.tensors[tensor].shape;
        layout.local_elements(shape, &self.assignment.sizes) as f64
    }
}

/// Returns whether every axis occurs in exactly two of the first two operands and the result.
fn is_product(declaration: &Declaration) -> bool {
    let ([first, second, rest @ ..], [output]) =
        (&declaration.inputs[..], &declaration.outputs[..])
    else {
        return false;
    };
    let operands = [first, second, output];
    let twice =
        |axis: usize| operands.iter().filter(|operand| operand.dim_of(axis).is_some()).count() == 2;
    let rest = rest.iter().all(|operand| operand.dims.len() == 1);
    let narrow = operands.iter().all(|one| one.dims.iter().all(|dim| dim.width == 1));
    rest && narrow && (0..declaration.axes.len()).all(twice)
}

/// Returns the fewest elements that a device touches when it does its part of a product. `[a, b, c]` are the
/// elements of the operands and the result; the first operand and the result are `times` as long.
fn touched([a, b, c]: [f64; 3], times: f64, devices: f64) -> f64 {
    let k = (a * b / c).sqrt();
    let [m, n] = [times * a / k, b / k];
    product([m, n, k], devices) + (m * n + m * k + n * k) / devices
}
