//! The volumes of AutoDDL's examples, from the axes of the model's operators alone.
//!
//! What a device sends per step, in millions of elements: forward, backward, and the gradients of
//! weights. Inputs come cut by their batch on every mesh dimension, outputs leave cut in any way.
//! The numbers are the published ones' derivation from first principles: pure data parallelism,
//! and the least over all meshes of one, two and three dimensions. There every mesh dimension is
//! converted for itself, the smallest first, as if it did not matter which of two cuts of a dimension
//! is the outer one; the planner's own conversions honour that, and choose their order.

use thinwire_model::{
    Activation, Conv2d, Cut, Declaration, Element, Graph, Initial, Layout, Linear, NodeId,
    Operator, Placement, Pool, PoolKind, Reshape, Role, Sides, Strategy, TensorId, conversion,
};
use thinwire_plan::cost::{Cost, GradientTransport};
use thinwire_plan::stage::{Block, Outline, Pricing, Weights, solve};

/// A graph under construction, with the tensor that comes next.
struct Chain {
    graph: Graph,
    last: TensorId,
}

impl Chain {
    fn new(shape: &[usize]) -> Chain {
        let mut graph = Graph::default();
        let last = graph.source("x", shape, Element::Float, Role::Input);
        Chain { graph, last }
    }

    fn apply(mut self, operator: impl Into<Operator>, weight: Option<&[usize]>) -> Chain {
        let name = format!("node.{}", self.graph.nodes.len());
        let role = Role::Parameter(Initial::Normal(0.02));
        let mut inputs = vec![self.last];
        inputs.extend(weight.map(|shape| self.graph.source(&name, shape, Element::Float, role)));
        self.last = self.graph.apply(name, operator.into(), &inputs).unwrap()[0];
        self
    }

    fn linear(self, from: usize, to: usize) -> Chain {
        self.apply(Linear::plain(), Some(&[from, to]))
    }
}

fn fully_connected(chain: Chain) -> Chain {
    let chain = chain.linear(25088, 4096).apply(Activation::Relu, None);
    chain.linear(4096, 4096).apply(Activation::Relu, None).linear(4096, 1000)
}

fn vgg13(batch: usize) -> Chain {
    let mut chain = Chain::new(&[batch, 3, 224, 224]);
    let mut channels = 3;
    for width in [64, 128, 256, 512, 512] {
        for _ in 0..2 {
            let conv = Conv2d::square(1, 1);
            chain = chain.apply(conv, Some(&[width, channels, 3, 3])).apply(Activation::Relu, None);
            channels = width;
        }
        chain = chain.apply(Pool::square(PoolKind::Max, 2, 2, 0), None);
    }
    fully_connected(chain.apply(Reshape { shape: vec![batch, 25088] }, None))
}

fn square() -> Chain {
    Chain::new(&[8192, 8192]).linear(8192, 8192).linear(8192, 8192)
}

fn feed_forward(tokens: usize, hidden: usize) -> Chain {
    let chain = Chain::new(&[tokens, hidden]).linear(hidden, 4 * hidden);
    chain.apply(Activation::Gelu, None).linear(4 * hidden, hidden)
}

/// What is allowed, and how it is counted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rules {
    /// Everything is cut by its batch.
    DataParallel,
    /// As the published numbers are.
    Published,
    /// As the planner counts.
    Own,
}

/// Elements sent.
struct Volume<'a> {
    graph: &'a Graph,
    mesh: &'a [usize],
    rules: Rules,
}

impl Volume<'_> {
    fn one_way(&self, shape: &[usize], from: &Layout, to: &Layout) -> f64 {
        if self.rules != Rules::Own {
            return self.dimension_by_dimension(shape, from, to);
        }
        match conversion(shape, self.mesh, from, to) {
            Ok(steps) => steps.iter().map(|step| step.sent(self.mesh[step.mesh_dim])).sum(),
            Err(_) => f64::INFINITY,
        }
    }

    fn dimension_by_dimension(&self, shape: &[usize], from: &Layout, to: &Layout) -> f64 {
        let elements = shape.iter().product::<usize>() as f64;
        let mut now = from.clone();
        let mut sent = 0.0;
        for (at, size) in self.mesh.iter().enumerate() {
            let (before, after) = (now.0[at], to.0[at]);
            now.0[at] = Placement::Replicated;
            let cut = now.0.iter().zip(self.mesh);
            let cut = cut.filter(|(placement, _)| matches!(placement, Placement::Sharded(_)));
            let local = elements / cut.map(|(_, size)| *size as f64).product::<f64>();
            let p = *size as f64;
            use Placement::{Partial, Replicated, Sharded};
            sent += (p - 1.0) / p
                * local
                * match (before, after) {
                    (before, after) if before == after => 0.0,
                    (Partial(_), Replicated) => 2.0,
                    (Partial(_), Sharded(_)) | (Sharded(_), Replicated) => 1.0,
                    (Sharded(_), Sharded(_)) => 1.0 / p,
                    _ => 0.0,
                };
            now.0[at] = after;
        }
        sent
    }
}

impl Pricing for Volume<'_> {
    /// Products are never computed twice. Where the published numbers come from, nothing is, and
    /// images become rows by batch alone.
    fn node(&self, id: NodeId, declaration: &Declaration, strategy: &Strategy) -> Cost {
        let node = &self.graph.nodes[id];
        let product = matches!(node.operator, Operator::Linear(_) | Operator::Conv2d(_));
        let twice = strategy.0.iter().any(|cut| !matches!(cut, Cut::Axis(_)));
        let reshape = matches!(node.operator, Operator::Reshape(_));
        let batch = declaration.axis('b').map(Cut::Axis);
        let by_feature = strategy.0.iter().any(|cut| Some(*cut) != batch);
        let refused = match self.rules {
            Rules::DataParallel => by_feature,
            Rules::Published => twice || reshape && by_feature,
            Rules::Own => product && twice,
        };
        if refused { Cost { forward_s: f64::INFINITY, ..Cost::ZERO } } else { Cost::ZERO }
    }

    /// Dimension by dimension, or all ranks that have a part of the gradient at once.
    fn parameter(&self, shape: &[usize], sides: &Sides) -> Cost {
        if self.rules != Rules::Own {
            let sync_s = self.one_way(shape, &sides.gradient, &sides.value);
            return Cost { sync_s, ..Cost::ZERO };
        }
        let partial = sides.gradient.0.iter().zip(self.mesh);
        let partial = partial.filter(|(placement, _)| matches!(placement, Placement::Partial(_)));
        let ranks = partial.map(|(_, size)| *size as f64).product::<f64>();
        let elements = sides.value.local_elements(shape, self.mesh) as f64;
        Cost { sync_s: 2.0 * (ranks - 1.0) / ranks * elements, ..Cost::ZERO }
    }

    fn strategies(&self, _: NodeId, declaration: &Declaration, mesh: &[usize]) -> Vec<Strategy> {
        declaration.strategies(mesh)
    }

    fn transports(&self, _: &[usize], _: &Sides) -> Vec<GradientTransport> {
        Vec::new()
    }

    fn conversions_s(&self, shape: &[usize], from: &[Layout], to: &[Layout]) -> Vec<f64> {
        let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (from, to)));
        let sent = |(from, to): (&Layout, &Layout)| match from == to {
            true => 0.0,
            false => self.one_way(shape, from, to),
        };
        pairs.map(sent).collect()
    }

    fn own_s(&self, _: &[usize], _: &[Layout], _: &[Layout]) -> Option<Vec<f64>> {
        None
    }

    fn behind_s(&self, _: NodeId, _: usize, _: &Strategy) -> f64 {
        0.0
    }

    fn entry(&self, _: &[usize], _: &Sides) -> Cost {
        Cost::ZERO
    }
}

/// All meshes of so many dimensions and `size` ranks.
fn meshes(size: usize, dims: usize) -> Vec<Vec<usize>> {
    if dims == 1 {
        return vec![vec![size]];
    }
    let outer = (1..=size).filter(|outer| size.is_multiple_of(*outer));
    outer
        .flat_map(|outer| {
            meshes(size / outer, dims - 1)
                .into_iter()
                .map(move |rest| [&[outer], &rest[..]].concat())
        })
        .collect()
}

fn split(shape: &[usize], mesh: &[usize]) -> Vec<Sides> {
    let mut layouts = vec![Vec::new()];
    for _ in mesh {
        let longer = |layout: &Vec<Placement>| {
            let layout = layout.clone();
            (0..shape.len()).map(move |dim| [&layout[..], &[Placement::Sharded(dim)]].concat())
        };
        layouts = layouts.iter().flat_map(longer).collect();
    }
    let layouts = layouts.into_iter().map(Layout).filter(|layout| layout.fits(shape, mesh));
    layouts.map(|layout| Sides { value: layout.clone(), gradient: layout }).collect()
}

/// The least volume on a mesh, in millions of elements.
fn least(chain: &Chain, mesh: &[usize], rules: Rules) -> f64 {
    let graph = &chain.graph;
    let by_batch = Layout(vec![Placement::Sharded(0); mesh.len()]);
    let entry = vec![Sides { value: by_batch.clone(), gradient: by_batch }];
    let exit = split(&graph.tensors[chain.last].shape, mesh);
    let nodes = 0..graph.nodes.len();
    let block = Block { graph, nodes, entry: Some((0, entry)), exit: Some((chain.last, exit)) };
    let volume = Volume { graph, mesh, rules };
    let formulation = Outline::new(&block, mesh, &volume).unwrap().priced(graph, &volume);
    solve(&formulation.problem(&Weights::ONCE, 0.0), 0.0).0 / 1e6
}

/// The least over all meshes of so many dimensions.
fn best(chain: &Chain, ranks: usize, dims: usize, rules: Rules) -> f64 {
    let ascending = |mesh: &&Vec<usize>| mesh.is_sorted() || rules == Rules::Own;
    let meshes = meshes(ranks, dims);
    meshes
        .iter()
        .filter(ascending)
        .map(|mesh| least(chain, mesh, rules))
        .fold(f64::INFINITY, f64::min)
}

fn check(chain: &Chain, ranks: usize, published: [f64; 4]) {
    let data_parallel = best(chain, ranks, 1, Rules::DataParallel);
    let algebra = (1..=3).map(|dims| best(chain, ranks, dims, Rules::Published));
    let algebra: Vec<f64> = std::iter::once(data_parallel).chain(algebra).collect();
    for (ours, published) in algebra.into_iter().zip(published) {
        assert!((ours / published - 1.0).abs() < 1e-3, "{ours}, expected {published}");
    }
    for (dims, published) in published.into_iter().enumerate().skip(1) {
        let chosen = best(chain, ranks, dims, Rules::Own);
        assert!(chosen <= 1.001 * published, "{chosen}, expected {published}");
    }
}

#[test]
fn square_products() {
    check(&square(), 8, [234.88, 234.88, 134.22, 113.25]);
    check(&square(), 64, [264.24, 264.24, 58.72, 41.68]);
    check(&square(), 512, [267.91, 267.91, 24.12, 12.04]);
}

#[test]
fn feed_forward_of_a_gpt() {
    check(&feed_forward(16_384, 2048), 16, [62.91, 62.91, 37.75, 37.75]);
    check(&feed_forward(65_536, 2048), 64, [66.06, 66.06, 40.89, 40.89]);
    check(&feed_forward(65_536, 8192), 64, [1056.96, 1056.96, 352.32, 352.32]);
}

#[test]
fn the_fully_connected_layers_of_vgg13() {
    let layers = |batch| fully_connected(Chain::new(&[batch, 25088]));
    check(&layers(512), 16, [231.81, 10.33, 8.36, 8.36]);
    check(&layers(512), 64, [243.40, 9.66, 4.74, 4.74]);
    check(&layers(2048), 64, [243.40, 38.64, 18.57, 17.08]);
}

#[test]
fn vgg13_whole() {
    check(&vgg13(512), 16, [249.44, 27.96, 27.96, 27.96]);
    check(&vgg13(512), 64, [261.91, 28.17, 27.22, 27.22]);
    check(&vgg13(2048), 64, [261.91, 57.15, 50.18, 50.18]);
}

#[test]
fn vgg_on_64_ranks_sends_a_ninth_of_data_parallelism() {
    let chain = vgg13(512);
    let ratio = best(&chain, 64, 1, Rules::DataParallel) / best(&chain, 64, 2, Rules::Own);
    assert!(ratio >= 8.9, "{ratio}");
}
