//! Gradients are the slopes of the reference, and lie where a strategy says.

use std::collections::HashMap;

use proptest::prelude::*;
use thinwire_model::{
    Arithmetic, Array, Declaration, Element, Embedding, Error, Graph, Initial, Kind, Layout,
    Origin, Role, Strategy, Sum, TensorId, Training, backward, conversion,
};
use thinwire_wire::random::Key;

use crate::reference::evaluate;
use crate::samples::{Sample, Values, array, samples};
use crate::strategies::MESHES;

/// An operator between parameters and a loss: the sum of its outputs, each times random numbers.
struct Trial {
    graph: Graph,
    sources: Vec<(TensorId, Array)>,
    training: Training,
}

impl Trial {
    fn new(sample: &Sample, seed: u64) -> Result<Trial, Error> {
        let mut graph = Graph::default();
        let mut sources = Vec::new();
        for ((shape, values), value) in sample.inputs.iter().zip(sample.arrays(seed)) {
            let (element, role) = match values {
                Values::Index(_) => (Element::Index, Role::Input),
                _ => (Element::Float, Role::Parameter(Initial::Zeros)),
            };
            sources.push((graph.source("input", shape.clone(), element, role), value));
        }
        let inputs: Vec<TensorId> = sources.iter().map(|(id, _)| *id).collect();
        let outputs = graph.apply("operator", sample.operator.clone(), &inputs)?;
        let mut loss = None;
        for (at, output) in outputs.into_iter().enumerate() {
            let shape = graph.tensors[output].shape.clone();
            let key = Key { seed, step: 9, tensor: at as u32 };
            let weight = graph.source("weight", shape.clone(), Element::Float, Role::Input);
            sources.push((weight, array(&shape, Values::Any, key)));
            let product =
                graph.apply("product", Arithmetic::Multiply.into(), &[output, weight])?[0];
            let sum = graph.apply("sum", Sum::over(0..shape.len()).into(), &[product])?[0];
            loss = Some(match loss {
                None => sum,
                Some(before) => graph.apply("add", Arithmetic::Add.into(), &[before, sum])?[0],
            });
        }
        graph.loss = loss;
        let training = backward(&graph)?;
        Ok(Trial { graph, sources, training })
    }

    fn loss(&self, sources: &[(TensorId, Array)]) -> f64 {
        evaluate(&self.graph, sources)[self.graph.loss.unwrap()].values()[0]
    }

    /// What the loss grows by when one value of an input does.
    fn slope(&self, input: usize, place: usize) -> f64 {
        let step = 1e-5;
        let moved = |by: f64| {
            let mut sources = self.sources.clone();
            sources[input].1.values_mut()[place] += by;
            self.loss(&sources)
        };
        (moved(step) - moved(-step)) / (2.0 * step)
    }
}

fn gradients_are_slopes(sample: &Sample, seed: u64) {
    let trial = match Trial::new(sample, seed) {
        Err(error) if error.kind() == Kind::Gradient => return assert_is_gradient(sample),
        trial => trial.unwrap(),
    };
    let values = evaluate(&trial.training.graph, &trial.sources);
    for (input, (shape, sort)) in sample.inputs.iter().enumerate() {
        if matches!(sort, Values::Index(_)) {
            continue;
        }
        let gradient = trial.training.gradients[trial.sources[input].0];
        let gradient =
            gradient.map_or_else(|| Array::full(shape.clone(), 0.0), |id| values[id].clone());
        for (place, found) in gradient.values().iter().enumerate() {
            if *sort == Values::Gates && trial.sources[input].1.values()[place] == 0.0 {
                continue; // a token that is not sent to an expert: moving it would send it
            }
            let slope = trial.slope(input, place);
            let close = (found - slope).abs() <= 1e-5 * (1.0 + slope.abs());
            assert!(close, "{sample:?} input {input} place {place}: {found}, slope {slope}");
        }
    }
}

/// Only gradients have no gradients.
fn assert_is_gradient(sample: &Sample) {
    let name = sample.operator.name();
    let others = ["conv2d_input", "conv2d_weight", "combine_gates"];
    assert!(name.ends_with("_backward") || others.contains(&name), "{name} has no gradient");
}

/// Where the tensors are that a strategy computes, forward and backward.
struct Placed<'a> {
    trial: &'a Trial,
    mesh: &'a [usize],
    layouts: HashMap<TensorId, Layout>,
}

impl Placed<'_> {
    /// Follows a gradient's node: what it reads is where it must be, or gets there for nothing.
    fn follow(&mut self, at: usize, forward: &Declaration, strategy: &Strategy, what: &str) {
        let graph = &self.trial.training.graph;
        let node = &graph.nodes[at];
        let declaration = graph.declaration(node);
        let carried = forward.carried(strategy, &declaration);
        assert!(declaration.allows(&carried, self.mesh), "{what}: {} cannot", node.operator.name());
        for (input, id) in node.inputs.iter().enumerate() {
            let needed = declaration.input_sides(input, &carried).value;
            if let Some(found) = self.layouts.get(id) {
                let shape = &graph.tensors[*id].shape;
                let steps = conversion(shape, self.mesh, found, &needed).unwrap();
                let sent: f64 = steps.iter().map(|step| step.sent(self.mesh[step.mesh_dim])).sum();
                let output = self.trial.graph.nodes[0].outputs.contains(id);
                assert!(sent == 0.0 || output, "{what}: {found} to {needed} within a gradient");
            }
        }
        for (output, id) in node.outputs.iter().enumerate() {
            self.layouts.insert(*id, declaration.output_sides(output, &carried).value);
        }
    }
}

fn gradients_lie_as_promised(sample: &Sample, seed: u64) {
    let Ok(trial) = Trial::new(sample, seed) else { return };
    let node = &trial.graph.nodes[0];
    let forward = trial.graph.declaration(node);
    for mesh in MESHES {
        for strategy in forward.strategies(mesh) {
            let what = format!("{sample:?} {} on {mesh:?}", forward.describe(&strategy));
            let mut layouts = HashMap::new();
            for (at, id) in node.inputs.iter().enumerate() {
                layouts.insert(*id, forward.input_sides(at, &strategy).value);
            }
            for (at, id) in node.outputs.iter().enumerate() {
                let sides = forward.output_sides(at, &strategy);
                layouts.insert(*id, sides.value);
                if let Some(gradient) = trial.training.gradients[*id] {
                    layouts.insert(gradient, sides.gradient);
                }
            }
            let mut placed = Placed { trial: &trial, mesh, layouts };
            for (at, origin) in trial.training.origins.iter().enumerate() {
                if *origin == Origin::Gradient(0) {
                    placed.follow(at, &forward, &strategy, &what);
                }
            }
            for (at, id) in node.inputs.iter().enumerate() {
                let Some(gradient) = trial.training.gradients[*id] else { continue };
                let promised = forward.input_sides(at, &strategy).gradient;
                assert_eq!(placed.layouts[&gradient], promised, "{what}, input {at}");
            }
        }
    }
}

#[test]
fn ids_give_the_row_that_is_padding_no_gradient() {
    let gradient = |padding: Option<usize>| {
        let inputs = vec![(vec![5, 3], Values::Any), (vec![4, 6], Values::Index(5))];
        let trial = Trial::new(&Sample { operator: Embedding { padding }.into(), inputs }, 1);
        let Trial { sources, training, .. } = trial.unwrap();
        let table = training.gradients[sources[0].0].unwrap();
        evaluate(&training.graph, &sources)[table].clone()
    };
    let mut expected = gradient(None);
    let row = &mut expected.values_mut()[2 * 3..][..3];
    assert!(row.iter().all(|value| *value != 0.0));
    row.fill(0.0);
    assert_eq!(gradient(Some(2)), expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn gradients_of_every_operator_are_the_slopes_of_its_reference(seed: u64) {
        samples(seed).iter().for_each(|sample| gradients_are_slopes(sample, seed));
    }

    #[test]
    fn gradients_of_every_operator_lie_where_its_strategy_says(seed: u64) {
        samples(seed).iter().for_each(|sample| gradients_lie_as_promised(sample, seed));
    }
}
