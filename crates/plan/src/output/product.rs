//! What products send, beside the least that they could where their operands lie as they do.
//!
//! A device that does 1/p of a product's multiplications touches at least D elements of operands
//! and result (Al Daas et al., SPAA'22, see [`super::least`]). What it has not at first must come,
//! and what it has not at last must go; of a result one copy is there at last.
//!
//! Law: no product's operands, result and gradients send less.

use thinwire_model::{Declaration, Layout, NodeId, Placement, Role, Sides, Strategy, TensorId};

use super::least::product;
use super::moved::{MovedKind, MovedTensor, Path, Paths, Step};
use super::parameter::Parameter;
use crate::cost::Sharding;
use crate::search::Class;

/// A product: two operands and a result, each with two of three sizes.
struct Product<'a> {
    inputs: [TensorId; 2],
    output: TensorId,
    /// How operands are read.
    read: [Sides; 2],
    elements: [f64; 3],
    paths: &'a Paths,
    devices: f64,
}

impl Step<'_> {
    /// The products of the blocks that are done in one way.
    pub(super) fn products(&self, class: &Class, way: usize, blocks: &[usize]) -> Vec<MovedTensor> {
        let paths = self.paths(class, way);
        let of = |(id, strategy): (NodeId, &Strategy)| self.product(class, id, strategy, &paths);
        let strategies = self.chain.strategies(&self.outcome.choice, way).into_iter();
        let products = strategies.filter_map(|(id, strategy)| Some((id, of((id, strategy))?)));
        products.map(|(id, product)| self.row(id, &product, blocks)).collect()
    }

    /// A node as a product; none if it is no single one.
    fn product<'b>(
        &self,
        class: &Class,
        id: NodeId,
        strategy: &Strategy,
        paths: &'b Paths,
    ) -> Option<Product<'b>> {
        let declaration = &class.work[&id].declaration;
        if declaration.flops == 0.0 || !is_product(declaration) {
            return None;
        }
        let node = &self.prepared.graph.nodes[id];
        let count = |id: &TensorId| self.prepared.graph.tensors[*id].elements() as f64;
        let (inputs, output) = ([node.inputs[0], node.inputs[1]], node.outputs[0]);
        Some(Product {
            inputs,
            output,
            read: [0, 1].map(|at| declaration.input_sides(at, strategy)),
            elements: [count(&inputs[0]), count(&inputs[1]), count(&output)],
            paths,
            devices: self.costs.mesh.iter().product::<usize>() as f64,
        })
    }

    fn row(&self, id: NodeId, product: &Product<'_>, blocks: &[usize]) -> MovedTensor {
        let rounds = self.outcome.rounds as f64;
        let count = blocks.len() as f64;
        let mut sent = 0.0;
        let tensors = product.inputs.iter().zip(&product.read).map(|(id, read)| (*id, Some(read)));
        for (tensor, read) in tensors.chain([(product.output, None)]) {
            let path = product.paths.get(&tensor);
            sent += match (&self.prepared.graph.tensors[tensor].role, read) {
                (Role::Parameter(_), Some(_)) => self.parameter_sent(tensor, blocks),
                _ => path.map_or(0.0, |path| {
                    rounds * count * self.ways(tensor, path, None).sent.iter().sum::<f64>()
                }),
            };
        }
        let element = self.costs.precision.element;
        let least: f64 = blocks.iter().map(|block| self.needed(product, *block)).sum();
        let of: Vec<_> = blocks.iter().map(|block| (*block, product.output)).collect();
        MovedTensor {
            name: self.node_in(id, blocks[0]),
            kind: MovedKind::Product,
            blocks: blocks.len(),
            last: self.last(&of),
            sent_bytes: sent,
            least_bytes: element * least,
            of,
        }
    }

    /// What the node of a class's first block is called in another one.
    fn node_in(&self, id: NodeId, block: usize) -> String {
        let prepared = self.prepared;
        let first = prepared.classes[prepared.of_block[block]].nodes.start;
        let shift = prepared.graph.blocks[block].nodes.start - first;
        prepared.graph.nodes[id + shift].name.clone()
    }

    /// What some blocks' parameter sends, with all who use it.
    fn parameter_sent(&self, tensor: TensorId, blocks: &[usize]) -> f64 {
        let is_it = |parameter: &&Parameter| {
            let mut users = parameter.users.iter();
            users.any(|user| user.tensor == tensor && blocks.contains(&user.block))
        };
        self.parameters.iter().filter(is_it).map(|one| self.sent_of(one)).sum()
    }

    /// The least elements of a step: of forward, and of the gradient that needs more.
    fn needed(&self, product: &Product<'_>, block: usize) -> f64 {
        let rounds = self.outcome.rounds as f64;
        let [a, b, c] = product.elements;
        let had = [0, 1].map(|at| self.had(product, at, block));
        let forward = touched([a, b, c], 1.0, product.devices) - had[0] - had[1];
        let forward = forward - self.kept(product, product.output, c, |sides| &sides.value);
        let result = self.given(product);
        let gradient = |at: usize| {
            let tensor = product.inputs[at];
            let other = self.local(product.inputs[1 - at], &product.read[1 - at].value);
            let elements = product.elements[at];
            match self.prepared.graph.tensors[tensor].role {
                Role::Parameter(_) => {
                    let touched = touched([a, b, c], rounds, product.devices);
                    touched - rounds * (result + other) - elements / product.devices
                }
                Role::Activation => {
                    let kept = self.kept(product, tensor, elements, |sides| &sides.gradient);
                    let touched = touched([a, b, c], 1.0, product.devices);
                    rounds * (touched - result - other - kept)
                }
                Role::Input => 0.0,
            }
        };
        rounds * forward.max(0.0) + gradient(0).max(gradient(1)).max(0.0)
    }

    /// Elements of an operand that a device has before it is brought to the product.
    fn had(&self, product: &Product<'_>, at: usize, block: usize) -> f64 {
        let (tensor, read) = (product.inputs[at], &product.read[at]);
        let origin = product.paths.get(&tensor).and_then(Path::origin);
        match self.prepared.graph.tensors[tensor].role {
            Role::Activation => self.local(tensor, &origin.unwrap_or(read).value),
            Role::Input => self.local(tensor, &read.value),
            Role::Parameter(_) => match self.sharding(block, tensor) {
                Sharding::Parameters => self.local(tensor, &read.value) / self.costs.sharers(read),
                _ => self.local(tensor, &read.value),
            },
        }
    }

    /// Elements of a result that a device need not send: its part of one copy, or all where it stays
    /// in partial sums.
    fn kept(
        &self,
        product: &Product<'_>,
        tensor: TensorId,
        elements: f64,
        side: fn(&Sides) -> &Layout,
    ) -> f64 {
        let Some(path) = product.paths.get(&tensor) else { return elements };
        let partial = |sides: &&Sides| {
            side(sides).0.iter().any(|placement| matches!(placement, Placement::Partial(_)))
        };
        let ends = path.read.iter().chain(&path.between);
        // Backward ends where the tensor was made.
        let backward = tensor != product.output;
        let mut ends: Vec<&Sides> = if backward { Vec::new() } else { ends.collect() };
        ends.extend(path.origin().filter(|_| backward));
        match ends.iter().find(|sides| partial(sides)) {
            Some(_) => elements,
            None => elements / product.devices,
        }
    }

    /// Elements of the result's gradient that a device has at most before it is brought anywhere.
    fn given(&self, product: &Product<'_>) -> f64 {
        let Some(path) = product.paths.get(&product.output) else { return product.elements[2] };
        let all = path.read.iter().chain(&path.between);
        all.map(|sides| self.local(product.output, &sides.gradient)).sum()
    }

    fn local(&self, tensor: TensorId, layout: &Layout) -> f64 {
        let shape = &self.prepared.graph.tensors[tensor].shape;
        layout.local_elements(shape, &self.costs.mesh) as f64
    }
}

/// Whether every axis belongs to two of the first two operands and the result.
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

/// The least elements that a device touches which does its part of a product of operands and a
/// result with so many elements; the first operand and the result are so many times as long.
fn touched([a, b, c]: [f64; 3], times: f64, devices: f64) -> f64 {
    let k = (a * b / c).sqrt();
    let [m, n] = [times * a / k, b / k];
    product([m, n, k], devices) + (m * n + m * k + n * k) / devices
}
