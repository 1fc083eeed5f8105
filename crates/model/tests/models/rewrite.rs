//! What is written anew means what it meant, and attention in pieces becomes one operator.

use proptest::prelude::*;
use thinwire_model::{
    Array, Broadcast, Element, Graph, MatMul, Operator, Reshape, Role, Scale, Softmax, Sum,
    TensorId, Transpose, simplify,
};

use crate::reference::evaluate;

/// How attention is taken apart.
#[derive(Clone, Debug)]
struct Pieces {
    /// Batch, tokens, keys, heads of keys, and features of a head.
    sizes: [usize; 5],
    /// Heads of queries that share one of keys.
    queries_per_key: usize,
    causal: bool,
    /// What queries, keys and scores are multiplied by.
    factors: [f64; 3],
    /// Whether batch and heads are one dimension where products are.
    merged: bool,
    /// Whether keys have features before tokens in the product.
    turned: bool,
    /// Whether scores are seen as `[batch, heads, ..]` at the softmax where they are merged.
    seen_apart: bool,
}

fn pieces() -> impl Strategy<Value = Pieces> {
    let sizes = [1_usize..3, 1..5, 1..5, 1..4, 1..4];
    let factor = || prop::sample::select(vec![1.0, 0.5, 0.25, 0.7]);
    let flags = prop::array::uniform4(any::<bool>());
    (sizes, 1_usize..3, prop::array::uniform2(factor()), prop::option::of(factor()), flags)
        .prop_map(|(mut sizes, queries_per_key, [of_q, of_k], of_scores, flags)| {
            let [causal, merged, turned, seen_apart] = flags;
            if causal {
                sizes[2] = sizes[1];
            }
            let usual = 1.0 / (sizes[4] as f64).sqrt() / of_q / of_k;
            let factors = [of_q, of_k, of_scores.unwrap_or(usual)];
            Pieces { sizes, queries_per_key, causal, factors, merged, turned, seen_apart }
        })
}

fn add(graph: &mut Graph, operator: impl Into<Operator>, inputs: &[TensorId]) -> TensorId {
    let name = format!("n{}", graph.nodes.len());
    graph.apply(name, operator.into(), inputs).unwrap()[0]
}

/// The graph of queries, keys and values, and what comes out.
fn graph(pieces: &Pieces) -> (Graph, TensorId) {
    let Pieces { sizes: [b, s, t, groups, d], queries_per_key, causal, .. } = *pieces;
    let heads = groups * queries_per_key;
    let mut graph = Graph::default();
    let [q, k, v] = [("q", s, heads), ("k", t, groups), ("v", t, groups)]
        .map(|(name, n, heads)| graph.source(name, [b, n, heads * d], Element::Float, Role::Input));
    let [q, k, v] = [(q, s, heads), (k, t, groups), (v, t, groups)].map(|(x, n, heads)| {
        let x = add(&mut graph, Reshape { shape: vec![b, n, heads, d] }, &[x]);
        add(&mut graph, Transpose::new("bshd", "bhsd"), &[x])
    });
    let [k, v] = [k, v].map(|x| match queries_per_key {
        1 => x,
        times => {
            let x = add(&mut graph, Reshape { shape: vec![b, groups, 1, t, d] }, &[x]);
            let shape = vec![b, groups, times, t, d];
            let sum = Sum::back_to(&shape, &[b, groups, 1, t, d]);
            let sum = Sum { dims: sum.dims[..3].to_vec() };
            let x = add(&mut graph, Broadcast { shape, sum: only_third(sum) }, &[x]);
            add(&mut graph, Reshape { shape: vec![b, heads, t, d] }, &[x])
        }
    });
    let lead = if pieces.merged { vec![b * heads] } else { vec![b, heads] };
    let [q, k, v] = [(q, s), (k, t), (v, t)].map(|(x, n)| match pieces.merged {
        true => add(&mut graph, Reshape { shape: vec![b * heads, n, d] }, &[x]),
        false => x,
    });
    let letters = if pieces.merged { "b" } else { "bh" };
    let [of_q, of_k, of_scores] = pieces.factors;
    let q = add(&mut graph, Scale(of_q), &[q]);
    let (k, right) = match pieces.turned {
        true => {
            let turned = Transpose::new(format!("{letters}td"), format!("{letters}dt"));
            (add(&mut graph, turned, &[k]), format!("{letters}dt"))
        }
        false => (k, format!("{letters}td")),
    };
    let k = add(&mut graph, Scale(of_k), &[k]);
    let product = MatMul::new(format!("{letters}sd"), right, format!("{letters}st"));
    let scores = add(&mut graph, product, &[q, k]);
    let scores = add(&mut graph, Scale(of_scores), &[scores]);
    let weights = match pieces.seen_apart {
        true => {
            let scores = add(&mut graph, Reshape { shape: vec![b, heads, s, t] }, &[scores]);
            let weights = add(&mut graph, Softmax { causal }, &[scores]);
            let shape = lead.iter().copied().chain([s, t]).collect();
            add(&mut graph, Reshape { shape }, &[weights])
        }
        false => add(&mut graph, Softmax { causal }, &[scores]),
    };
    let product =
        MatMul::new(format!("{letters}st"), format!("{letters}td"), format!("{letters}sd"));
    let mixed = add(&mut graph, product, &[weights, v]);
    let mixed = add(&mut graph, Reshape { shape: vec![b, heads, s, d] }, &[mixed]);
    let mixed = add(&mut graph, Transpose::new("bhsd", "bshd"), &[mixed]);
    let mixed = add(&mut graph, Reshape { shape: vec![b, s, heads * d] }, &[mixed]);
    (graph, mixed)
}

/// A sum over the third dimension alone.
fn only_third(sum: Sum) -> Sum {
    let dims = sum.dims.into_iter().enumerate();
    let of =
        |(at, _)| if at == 2 { thinwire_model::Summed::ToOne } else { thinwire_model::Summed::No };
    Sum { dims: dims.map(of).collect() }
}

/// The values of a graph's tensor, from sources that depend on their place in the list alone.
fn value(graph: &Graph, output: TensorId) -> Array {
    let sources = graph.tensors.iter().enumerate();
    let sources = sources.filter(|(_, tensor)| tensor.role != Role::Activation);
    let filled = |(place, (id, tensor)): (usize, (TensorId, &thinwire_model::Tensor))| {
        let mut count = place as f64;
        let wave = |_: &[usize]| {
            count += 1.7;
            count.sin()
        };
        (id, Array::from_fn(tensor.shape.clone(), wave))
    };
    let sources: Vec<_> = sources.enumerate().map(filled).collect();
    evaluate(graph, &sources)[output].clone()
}

fn count(graph: &Graph, name: &str) -> usize {
    graph.nodes.iter().filter(|node| node.operator.name() == name).count()
}

/// The nodes that an output depends on.
fn needed(graph: &Graph, output: TensorId) -> Graph {
    let mut wanted = vec![output];
    let mut kept = Vec::new();
    for node in graph.nodes.iter().rev() {
        if node.outputs.iter().any(|id| wanted.contains(id)) {
            wanted.extend(&node.inputs);
            kept.push(node.clone());
        }
    }
    Graph { nodes: kept.into_iter().rev().collect(), ..graph.clone() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attention_in_pieces_is_one_operator_and_means_the_same(pieces in pieces()) {
        let (old, output) = graph(&pieces);
        let (new, place) = simplify(&old, output).unwrap();
        let (expected, found) = (value(&old, output), value(&new, place));
        prop_assert_eq!(expected.shape(), found.shape());
        for (expected, found) in expected.values().iter().zip(found.values()) {
            prop_assert!((expected - found).abs() < 1e-9, "{expected} {found}");
        }
        let needed = needed(&new, place);
        prop_assert_eq!((count(&needed, "attention"), count(&needed, "matmul")), (1, 0));
        let [q, k, scores] = pieces.factors;
        let usual = (q * k * scores * (pieces.sizes[4] as f64).sqrt() - 1.0).abs() < 1e-9;
        prop_assert_eq!(count(&needed, "scale"), usize::from(!usual));
        // Heads that are dimensions of their own leave no views at all.
        let views = count(&needed, "reshape") + count(&needed, "transpose");
        prop_assert!(!usual || views == 0, "{views} views");
        let shared = needed.nodes.iter().find_map(|node| match &node.operator {
            Operator::Attention(attention) => Some(attention.queries_per_key),
            _ => None,
        });
        prop_assert_eq!(shared, Some(pieces.queries_per_key));
    }
}

#[test]
fn scores_that_are_read_otherwise_stay() {
    let mut old = Graph::default();
    let [q, k, v] =
        ["q", "k", "v"].map(|name| old.source(name, [2, 3, 4, 4], Element::Float, Role::Input));
    let scores = add(&mut old, MatMul::new("bhsd", "bhtd", "bhst"), &[q, k]);
    let weights = add(&mut old, Softmax { causal: false }, &[scores]);
    let mixed = add(&mut old, MatMul::new("bhst", "bhtd", "bhsd"), &[weights, v]);
    let both = add(&mut old, thinwire_model::Arithmetic::Add, &[mixed, weights]);
    let (new, _) = simplify(&old, both).unwrap();
    assert_eq!((count(&new, "attention"), count(&new, "softmax")), (0, 1));
}
