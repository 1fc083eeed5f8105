//! Whole models, forward and backward, with a random strategy for every node.

use proptest::prelude::*;
use thinwire_model::{
    Array, AttentionKind, Declaration, Element, Gpt, Graph, Initial, Layout, Llama, Moe, Origin,
    Resnet, Role, Strategy, TensorId, Training, Vgg, backward, conversion,
};
use thinwire_wire::random::Key;

use crate::conversions::run;
use crate::reference::{Reference, evaluate};
use crate::shards::{assert_close, gather, ranks};

/// A tensor on all ranks.
type Spread = (Layout, Vec<Array>);

/// A model on a mesh, as it is computed.
struct Program<'a> {
    training: &'a Training,
    mesh: &'a [usize],
    seed: u64,
    strategies: Vec<Strategy>,
    tensors: Vec<Option<Spread>>,
}

impl Program<'_> {
    fn run(&mut self, sources: &[(TensorId, Array)]) {
        let ranks: usize = self.mesh.iter().product();
        for (id, value) in sources {
            let everywhere = vec![value.clone(); ranks];
            self.tensors[*id] = Some((Layout::replicated(self.mesh), everywhere));
        }
        for at in 0..self.training.graph.nodes.len() {
            self.node(at);
        }
    }

    /// The strategy of a node: that of the node whose gradient it is, or any.
    fn strategy(&self, at: usize, declaration: &Declaration) -> Strategy {
        if let Origin::Gradient(of) = self.training.origins[at] {
            let forward = self.training.graph.declaration(&self.training.graph.nodes[of]);
            return forward.carried(&self.strategies[of], declaration);
        }
        let all = declaration.strategies(self.mesh);
        let key = Key { seed: self.seed, step: 5, tensor: 0 };
        all[key.below(at as u64, all.len() as u32) as usize].clone()
    }

    fn node(&mut self, at: usize) {
        let node = &self.training.graph.nodes[at];
        let declaration = self.training.graph.declaration(node);
        let strategy = self.strategy(at, &declaration);
        let inputs: Vec<Vec<Array>> = node
            .inputs
            .iter()
            .enumerate()
            .map(|(input, id)| self.moved(*id, &declaration.input_sides(input, &strategy).value))
            .collect();
        let mut outputs: Vec<Vec<Array>> = vec![Vec::new(); node.outputs.len()];
        for (rank, coordinates) in ranks(self.mesh).iter().enumerate() {
            let local: Vec<&Array> = inputs.iter().map(|shards| &shards[rank]).collect();
            let region = declaration.region(&strategy, self.mesh, coordinates);
            let found = node.operator.evaluate(&local, &region);
            outputs.iter_mut().zip(found).for_each(|(list, output)| list.push(output));
        }
        for ((output, id), shards) in node.outputs.iter().enumerate().zip(outputs) {
            let layout = declaration.output_sides(output, &strategy).value;
            self.tensors[*id] = Some((layout, shards));
        }
        self.strategies.push(strategy);
    }

    /// A tensor in another layout.
    fn moved(&self, id: TensorId, to: &Layout) -> Vec<Array> {
        let (from, shards) = self.tensors[id].as_ref().unwrap();
        let shape = &self.training.graph.tensors[id].shape;
        let steps = conversion(shape, self.mesh, from, to).unwrap();
        steps.iter().fold(shards.clone(), |shards, step| run(step, &shards, self.mesh))
    }
}

/// Values for everything that no node computes.
pub fn sources(graph: &Graph, seed: u64) -> Vec<(TensorId, Array)> {
    let made: Vec<TensorId> = graph.nodes.iter().flat_map(|node| node.outputs.clone()).collect();
    let free = (0..graph.tensors.len()).filter(|id| !made.contains(id));
    let value = |id: TensorId| {
        let tensor = &graph.tensors[id];
        let key = Key { seed, step: 0, tensor: id as u32 };
        let random = |at: u64| match (tensor.element, tensor.role) {
            (Element::Index, _) => f64::from(key.below(at, 2)),
            (_, Role::Parameter(Initial::Ones)) => 1.0 + 0.1 * f64::from(key.normal(at)),
            _ => 0.4 * f64::from(key.normal(at)),
        };
        let values = (0..tensor.elements() as u64).map(random).collect();
        (id, Array::new(tensor.shape.clone(), values))
    };
    free.map(value).collect()
}

fn llama() -> Llama {
    Llama {
        layers: 1,
        hidden: 8,
        heads: 4,
        key_heads: 2,
        feed_forward: 8,
        vocabulary: 4,
        positions: 4,
        base: 100.0,
    }
}

fn gpt(attention: AttentionKind, dropout: f64) -> Graph {
    let gpt = Gpt {
        layers: 2,
        hidden: 8,
        heads: 4,
        feed_forward: 8,
        vocabulary: 4,
        positions: 4,
        attention,
        dropout,
    };
    gpt.graph(4, 4).unwrap()
}

fn models() -> Vec<Graph> {
    let moe = Moe { trunk: llama(), experts: 4, chosen: 2, capacity_factor: 1.0 };
    let vgg = Vgg { stages: vec![(1, 2), (1, 4)], hidden: vec![4], image: 4, classes: 4 };
    let resnet = Resnet { stages: vec![(1, 1), (1, 2)], stem: 4, image: 8, classes: 4 };
    vec![
        gpt(AttentionKind::Fused, 0.0),
        gpt(AttentionKind::Plain, 0.2),
        llama().graph(4, 4).unwrap(),
        moe.graph(4, 4).unwrap(),
        vgg.graph(4).unwrap(),
        resnet.graph(4).unwrap(),
    ]
}

/// Every tensor, gradients too, is what one rank computes.
fn any_strategies_are_exact(graph: &Graph, mesh: &[usize], seed: u64) {
    let training = backward(graph).unwrap();
    let sources = sources(graph, seed);
    let expected = evaluate(&training.graph, &sources);
    let tensors = vec![None; training.graph.tensors.len()];
    let mut program = Program { training: &training, mesh, seed, strategies: Vec::new(), tensors };
    program.run(&sources);
    for (id, spread) in program.tensors.into_iter().enumerate() {
        let (layout, shards) = spread.unwrap();
        let what = || format!("{} as {layout} on {mesh:?}", training.graph.tensors[id].name);
        assert_close(&gather(shards, &layout, mesh), &expected[id], 1e-7, &what);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn a_model_with_any_strategies_computes_what_one_rank_does(
        mesh in prop_oneof![Just(vec![2]), Just(vec![4]), Just(vec![2, 2])],
        seed: u64,
    ) {
        models().iter().for_each(|graph| any_strategies_are_exact(graph, &mesh, seed));
    }
}
