//! Small models of every family: their gradients are slopes of their losses.

use thinwire_model::{
    Array, AttentionKind, Bert, Element, Gpt, Graph, Initial, Llama, Mlp, Moe, Resnet, Role,
    TensorId, Vgg, backward,
};
use thinwire_wire::random::Key;

use crate::reference::evaluate;

/// Values for everything that no node computes.
fn sources(graph: &Graph) -> Vec<(TensorId, Array)> {
    let produced = graph.nodes.iter().flat_map(|node| node.outputs.clone()).collect::<Vec<_>>();
    let free = (0..graph.tensors.len()).filter(|id| !produced.contains(id));
    let value = |id: TensorId| {
        let tensor = &graph.tensors[id];
        let key = Key { seed: 11, step: 0, tensor: id as u32 };
        let mut at = 0;
        let array = Array::from_fn(tensor.shape.clone(), |_| {
            at += 1;
            match (tensor.element, tensor.role) {
                (Element::Index, _) if tensor.name == "positions" => at as f64 - 1.0,
                (Element::Index, _) => f64::from(key.below(at, 2)),
                (_, Role::Parameter(Initial::Ones)) => 1.0 + 0.1 * f64::from(key.normal(at)),
                _ => 0.4 * f64::from(key.normal(at)),
            }
        });
        (id, array)
    };
    free.map(value).collect()
}

/// The gradient of some elements of every parameter, and the slope of the loss there.
fn check(graph: &Graph) {
    let training = backward(graph).unwrap();
    let sources = sources(graph);
    let values = evaluate(&training.graph, &sources);
    let loss =
        |sources: &[(TensorId, Array)]| evaluate(graph, sources)[graph.loss.unwrap()].values()[0];
    let mut steepest: f64 = 0.0;
    for (source, (id, _)) in sources.iter().enumerate() {
        if !matches!(graph.tensors[*id].role, Role::Parameter(_)) {
            continue;
        }
        let gradient = &values[training.gradients[*id].expect("everything is trained")];
        let count = gradient.values().len();
        for place in [0, count / 3, count - 1] {
            let moved = |by: f64| {
                let mut sources = sources.clone();
                sources[source].1.values_mut()[place] += by;
                loss(&sources)
            };
            let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            let found = gradient.values()[place];
            steepest = steepest.max(slope.abs());
            let name = &graph.tensors[*id].name;
            assert!(
                (found - slope).abs() < 1e-6 * (1.0 + slope.abs()),
                "{name} {place}: {found}, slope {slope}"
            );
        }
    }
    assert!(steepest > 1e-3);
}

fn gpt(attention: AttentionKind, dropout: f64) -> Graph {
    let gpt = Gpt {
        layers: 2,
        hidden: 4,
        heads: 2,
        feed_forward: 8,
        vocabulary: 5,
        positions: 4,
        attention,
        dropout,
    };
    gpt.graph(2, 3).unwrap()
}

fn llama() -> Llama {
    Llama {
        layers: 1,
        hidden: 8,
        heads: 4,
        key_heads: 2,
        feed_forward: 6,
        vocabulary: 5,
        positions: 4,
        base: 100.0,
    }
}

#[test]
fn gpt_has_true_gradients() {
    check(&gpt(AttentionKind::Fused, 0.0));
    check(&gpt(AttentionKind::Plain, 0.2));
}

#[test]
fn both_kinds_of_attention_are_the_same() {
    let of = |kind| {
        let graph = gpt(kind, 0.0);
        // Values belong to names: the kinds have other tensors between them.
        let mut values = sources(&graph);
        for (id, value) in &mut values {
            let name = &graph.tensors[*id].name;
            let seed = name.bytes().fold(7, |hash: u64, byte| hash * 31 % 65521 + u64::from(byte));
            let key = Key { seed, step: 0, tensor: 0 };
            if graph.tensors[*id].element == Element::Float {
                let random = value.values_mut().iter_mut().zip(0..);
                random.for_each(|(value, at)| *value = f64::from(key.normal(at)));
            } else {
                value
                    .values_mut()
                    .iter_mut()
                    .zip(0..)
                    .for_each(|(value, at)| *value = f64::from(at % 3));
            }
        }
        evaluate(&graph, &values)[graph.loss.unwrap()].values()[0]
    };
    let (fused, plain) = (of(AttentionKind::Fused), of(AttentionKind::Plain));
    assert!((fused - plain).abs() < 1e-12, "{fused} {plain}");
}

#[test]
fn llama_has_true_gradients() {
    check(&llama().graph(2, 3).unwrap());
}

#[test]
fn a_mixture_of_experts_has_true_gradients() {
    let moe = Moe { trunk: llama(), experts: 4, chosen: 2, capacity_factor: 1.0 };
    check(&moe.graph(2, 4).unwrap());
}

#[test]
fn bert_has_true_gradients() {
    let attention = AttentionKind::Fused;
    let bert = Bert {
        layers: 1,
        hidden: 4,
        heads: 2,
        feed_forward: 8,
        vocabulary: 5,
        positions: 4,
        attention,
    };
    check(&bert.graph(2, 3).unwrap());
}

#[test]
fn perceptrons_have_true_gradients() {
    check(&Mlp { features: vec![3, 4, 2] }.graph(3).unwrap());
}

#[test]
fn models_of_images_have_true_gradients() {
    let vgg = Vgg { stages: vec![(1, 2), (2, 3)], hidden: vec![4], image: 4, classes: 2 };
    check(&vgg.graph(2).unwrap());
    let resnet = Resnet { stages: vec![(1, 1), (2, 2)], stem: 2, image: 8, classes: 2 };
    check(&resnet.graph(2).unwrap());
}
