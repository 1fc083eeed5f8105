//! Attention as other programs write it becomes one operator, and all ways mean the same.

use onnx_rs::ast::DataType;
use proptest::prelude::*;
use thinwire_model::{Graph, Operator};

use crate::files::{BATCH, Maker, SEQUENCE, int, ints, real};
use crate::{loss_from, operators};

/// How attention is written.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Scores divided, `Where` as the mask.
    Divided,
    /// Queries and keys multiplied by a root each, a mask that is worked out and added, numbers that
    /// are none replaced.
    Rooted,
    /// A mask from an input that says which tokens count, added to scores.
    Padded,
    /// Batch and heads as one dimension, apart where the mask is added.
    Merged,
    /// One node, heads apart.
    Node,
    /// One node, heads within features.
    FlatNode,
}

const WAYS: [Way; 6] =
    [Way::Divided, Way::Rooted, Way::Padded, Way::Merged, Way::Node, Way::FlatNode];

/// Sizes of an attention.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    tokens: usize,
    groups: usize,
    queries_per_key: usize,
    features: usize,
    causal: bool,
}

/// Tokens, an embedding, attention and classes.
fn file(way: Way, sizes: Sizes) -> Maker {
    let mut maker = Maker { version: 23, ..Maker::default() };
    maker.input("tokens", DataType::Int64, &[BATCH, SEQUENCE]);
    let [d, groups, times] =
        [sizes.features, sizes.groups, sizes.queries_per_key].map(|n| n as i64);
    let heads = groups * times;
    let table = maker.weight("table", &[7, 5]);
    let x = maker.node("Gather", &[table, "tokens"], Vec::new());
    let [q, k, v] = [("q", heads), ("k", groups), ("v", groups)].map(|(name, heads)| {
        let weight = maker.weight(name, &[5, heads * d]);
        maker.node("MatMul", &[x, weight], Vec::new())
    });
    let mixed = match way {
        Way::FlatNode => node(&mut maker, sizes, [q, k, v], true),
        _ => {
            let [q, k, v] = [q, k, v].map(|x| {
                let shape = maker.numbers(&format!("{x}.heads"), &[4], &[0, 0, -1, d]);
                let x = maker.node("Reshape", &[x, shape], Vec::new());
                maker.node("Transpose", &[x], vec![ints("perm", &[0, 2, 1, 3])])
            });
            let mixed = match way {
                Way::Node => node(&mut maker, sizes, [q, k, v], false),
                _ => {
                    let [k, v] = [k, v].map(|x| repeated(&mut maker, x, sizes));
                    products(&mut maker, way, sizes, [q, k, v])
                }
            };
            let mixed = maker.node("Transpose", &[mixed], vec![ints("perm", &[0, 2, 1, 3])]);
            let shape = maker.numbers("flat", &[3], &[0, 0, -1]);
            maker.node("Reshape", &[mixed, shape], Vec::new())
        }
    };
    let weight = maker.weight("out", &[heads * d, 3]);
    let logits = maker.node("MatMul", &[mixed, weight], Vec::new());
    maker.output(logits);
    maker
}

/// The operator of ONNX itself.
fn node(maker: &mut Maker, sizes: Sizes, operands: [&'static str; 3], flat: bool) -> &'static str {
    let mut attributes = vec![int("is_causal", i64::from(sizes.causal))];
    if flat {
        attributes.push(int("q_num_heads", (sizes.groups * sizes.queries_per_key) as i64));
        attributes.push(int("kv_num_heads", sizes.groups as i64));
    }
    maker.node("Attention", &operands, attributes)
}

/// Heads of keys as often as those of queries.
fn repeated(maker: &mut Maker, x: &'static str, sizes: Sizes) -> &'static str {
    if sizes.queries_per_key == 1 {
        return x;
    }
    let Sizes { batch, tokens, groups, queries_per_key, features, .. } = sizes;
    let axes = maker.numbers(&format!("{x}.axes"), &[1], &[2]);
    let apart = maker.node("Unsqueeze", &[x, axes], Vec::new());
    let shape = [batch, groups, queries_per_key, tokens, features].map(|n| n as i64);
    let shape = maker.numbers(&format!("{x}.often"), &[5], &shape);
    let often = maker.node("Expand", &[apart, shape], Vec::new());
    let shape = [batch, groups * queries_per_key, tokens, features].map(|n| n as i64);
    let shape = maker.numbers(&format!("{x}.all"), &[4], &shape);
    maker.node("Reshape", &[often, shape], Vec::new())
}

/// Two products and what is between them.
fn products(
    maker: &mut Maker,
    way: Way,
    sizes: Sizes,
    [mut q, k, mut v]: [&'static str; 3],
) -> &'static str {
    let Sizes { batch, tokens, groups, queries_per_key, features, causal } = sizes;
    let heads = groups * queries_per_key;
    let [b, h, s, d] = [batch, heads, tokens, features].map(|n| n as i64);
    let mut k = maker.node("Transpose", &[k], vec![ints("perm", &[0, 1, 3, 2])]);
    if matches!(way, Way::Merged) {
        let shape = maker.numbers("merged", &[3], &[b * h, s, d]);
        let turned = maker.numbers("merged.turned", &[3], &[b * h, d, s]);
        [q, v] = [q, v].map(|x| maker.node("Reshape", &[x, shape], Vec::new()));
        k = maker.node("Reshape", &[k, turned], Vec::new());
    }
    if matches!(way, Way::Rooted) {
        let root = maker.reals("root", &[1], &[(features as f32).powf(-0.25)]);
        [q, k] = [q, k].map(|x| maker.node("Mul", &[x, root], Vec::new()));
    }
    let mut scores = maker.node("MatMul", &[q, k], Vec::new());
    if !matches!(way, Way::Rooted) {
        let root = maker.number("root", (features as f32).sqrt());
        scores = maker.node("Div", &[scores, root], Vec::new());
    }
    if matches!(way, Way::Merged) {
        let shape = maker.numbers("apart", &[4], &[b, h, s, s]);
        scores = maker.node("Reshape", &[scores, shape], Vec::new());
    }
    let mut seen = masked(maker, way, scores, causal, tokens);
    if matches!(way, Way::Merged) {
        let shape = maker.numbers("together", &[3], &[b * h, s, s]);
        seen = maker.node("Reshape", &[seen, shape], Vec::new());
    }
    let mut weights = maker.node("Softmax", &[seen], vec![int("axis", -1)]);
    if matches!(way, Way::Rooted) {
        let missing = maker.node("IsNaN", &[weights], Vec::new());
        let zero = maker.number("nothing", 0.0);
        weights = maker.node("Where", &[missing, zero, weights], Vec::new());
    }
    let mixed = maker.node("MatMul", &[weights, v], Vec::new());
    if !matches!(way, Way::Merged) {
        return mixed;
    }
    let shape = maker.numbers("mixed", &[4], &[b, h, s, d]);
    maker.node("Reshape", &[mixed, shape], Vec::new())
}

/// Scores with what is not seen far below.
fn masked(
    maker: &mut Maker,
    way: Way,
    scores: &'static str,
    causal: bool,
    tokens: usize,
) -> &'static str {
    let s = tokens as i64;
    let shape = maker.numbers("square", &[2], &[s, s]);
    let [one, zero, far] = [("one", 1.0), ("zero", 0.0), ("far", f32::MIN)]
        .map(|(name, value)| maker.number(name, value));
    let ones = maker.node("Expand", &[one, shape], Vec::new());
    let lower = match causal {
        true => maker.node("Trilu", &[ones], vec![int("upper", 0)]),
        false => ones,
    };
    let hidden = maker.node("Equal", &[lower, zero], Vec::new());
    match way {
        Way::Divided => maker.node("Where", &[hidden, far, scores], Vec::new()),
        Way::Padded => {
            maker.input("attention_mask", DataType::Int64, &[BATCH, SEQUENCE]);
            let axes = maker.numbers("mask.axes", &[2], &[1, 2]);
            let counts = maker.node("Unsqueeze", &["attention_mask", axes], Vec::new());
            let counts = maker.node("Cast", &[counts], vec![int("to", 1)]);
            let missing = maker.node("Sub", &[one, counts], Vec::new());
            let missing = maker.node("Mul", &[missing, far], Vec::new());
            let later = maker.node("Where", &[hidden, far, zero], Vec::new());
            let mask = maker.node("Min", &[missing, later], Vec::new());
            maker.node("Add", &[mask, scores], Vec::new())
        }
        _ => {
            let mask = maker.node("Where", &[hidden, far, zero], Vec::new());
            maker.node("Add", &[scores, mask], Vec::new())
        }
    }
}

/// The model without attention taken apart.
fn graph(way: Way, sizes: Sizes) -> Graph {
    file(way, sizes).file().graph(sizes.batch, sizes.tokens).unwrap()
}

/// The loss, from weights that depend on their names.
fn loss(graph: &Graph) -> f64 {
    loss_from(graph, |tensor| tensor.name.bytes().map(usize::from).sum())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_ways_of_attention_are_one(
        batch in 1_usize..3,
        tokens in 1_usize..5,
        groups in 1_usize..3,
        queries_per_key in 1_usize..3,
        features in 1_usize..4,
        causal in any::<bool>(),
    ) {
        let sizes = Sizes { batch, tokens, groups, queries_per_key, features, causal };
        let expected = loss(&graph(Way::FlatNode, sizes));
        for way in WAYS {
            let found = graph(way, sizes);
            let names = operators(&found);
            let whole = ["embedding", "linear", "linear", "linear", "attention", "linear"];
            prop_assert_eq!(&names[..6], whole, "{:?}: {:?}", way, names);
            let attention = found.nodes.iter().find_map(|node| match node.operator {
                Operator::Attention(attention) => Some(attention),
                _ => None,
            });
            let attention = attention.unwrap();
            prop_assert_eq!(attention.head_size, features);
            // A single token sees itself alone, and a single head may be shared or not.
            prop_assert_eq!(attention.causal && tokens > 1, causal && tokens > 1, "{:?}", way);
            prop_assert_eq!(attention.queries_per_key, queries_per_key, "{:?}", way);
            prop_assert!((loss(&found) - expected).abs() < 1e-6, "{:?}: {}", way, loss(&found));
        }
    }
}

#[test]
fn another_scale_is_a_scale_of_queries() {
    let sizes =
        Sizes { batch: 1, tokens: 3, groups: 2, queries_per_key: 1, features: 4, causal: true };
    let mut maker = file(Way::FlatNode, sizes);
    let attention = maker.graph.node.iter_mut().find(|node| node.name.contains("Attention"));
    attention.unwrap().attribute.push(real("scale", 1.0));
    let found = maker.file().graph(1, 3).unwrap();
    let scale = found.nodes.iter().find_map(|node| match &node.operator {
        Operator::Scale(scale) => Some(scale.0),
        _ => None,
    });
    assert_eq!(scale, Some(2.0));
    assert!(operators(&found).contains(&"attention"));
}

#[test]
fn attention_that_is_more_is_refused() {
    let sizes =
        Sizes { batch: 1, tokens: 3, groups: 2, queries_per_key: 1, features: 4, causal: false };
    let refusal = |change: fn(&mut Maker, usize)| {
        let mut maker = file(Way::FlatNode, sizes);
        let at = maker.graph.node.iter().position(|node| node.name.contains("Attention"));
        change(&mut maker, at.unwrap());
        maker.file().graph(1, 3).unwrap_err().to_string()
    };
    let capped = refusal(|maker, at| maker.graph.node[at].attribute.push(real("softcap", 30.0)));
    assert_eq!(capped, "node 4 'Attention_4': softcap is 30, expected 0");
    let masked = refusal(|maker, at| {
        let mask = maker.numbers("some", &[3, 3], &[0, 1, 1, 1, 1, 1, 1, 1, 1]);
        maker.graph.node[at].input.push(mask);
    });
    let expected = "node 4 'Attention_4': its mask is neither causal nor open to all keys";
    assert_eq!(masked, expected);
    let odd = refusal(|maker, at| maker.graph.node[at].attribute[1].i = 3);
    assert_eq!(
        odd,
        "node 4 'Attention_4': 3 heads of queries share 2 of keys, expected a multiple of 2"
    );
}
