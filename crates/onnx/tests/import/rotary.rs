//! Rotary positions as one node become the operator, whichever way their tables are given.

use onnx_rs::ast::DataType;
use thinwire_model::{Graph, Operator};

use crate::files::{BATCH, Maker, SEQUENCE, int, ints};
use crate::{loss_from, operators};

const TOKENS: usize = 5;
const HEADS: i64 = 2;
const SIZE: i64 = 6;

/// How tables and heads are given.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Whether heads are a dimension of their own.
    apart: bool,
    /// Whether places look up rows of a longer table.
    looked_up: bool,
}

const WAYS: [Way; 4] = [
    Way { apart: false, looked_up: false },
    Way { apart: false, looked_up: true },
    Way { apart: true, looked_up: false },
    Way { apart: true, looked_up: true },
];

/// Tokens, an embedding, turned pairs, and classes.
fn file(way: Way, base: f64) -> Maker {
    let mut maker = Maker { version: 23, ..Maker::default() };
    maker.input("tokens", DataType::Int64, &[BATCH, SEQUENCE]);
    let table = maker.weight("table", &[7, HEADS * SIZE]);
    let mut x = maker.node("Gather", &[table, "tokens"], Vec::new());
    if way.apart {
        let shape = maker.numbers("heads", &[4], &[0, 0, HEADS, SIZE]);
        x = maker.node("Reshape", &[x, shape], Vec::new());
        x = maker.node("Transpose", &[x], vec![ints("perm", &[0, 2, 1, 3])]);
    }
    let (half, rows) = (SIZE / 2, if way.looked_up { 2 * TOKENS } else { TOKENS });
    let angle = |at: usize| {
        let (row, pair) = (at / half as usize, at % half as usize);
        row as f64 / base.powf(pair as f64 / half as f64)
    };
    let numbers = |of: fn(f64) -> f64| -> Vec<f32> {
        (0..rows * half as usize).map(|at| of(angle(at)) as f32).collect()
    };
    let shape: &[i64] = if way.looked_up { &[rows as i64, half] } else { &[1, rows as i64, half] };
    let cosines = maker.reals("model.cosines", shape, &numbers(f64::cos));
    let sines = maker.reals("model.sines", shape, &numbers(f64::sin));
    let mut operands = vec![x, cosines, sines];
    if way.looked_up {
        maker.input("position_ids", DataType::Int64, &[BATCH, SEQUENCE]);
        operands.push("position_ids");
    }
    let heads = if way.apart { Vec::new() } else { vec![int("num_heads", HEADS)] };
    let mut y = maker.node("RotaryEmbedding", &operands, heads);
    if way.apart {
        y = maker.node("Transpose", &[y], vec![ints("perm", &[0, 2, 1, 3])]);
        let shape = maker.numbers("flat", &[3], &[0, 0, HEADS * SIZE]);
        y = maker.node("Reshape", &[y, shape], Vec::new());
    }
    let weight = maker.weight("out", &[HEADS * SIZE, 3]);
    let logits = maker.node("MatMul", &[y, weight], Vec::new());
    maker.output(logits);
    maker
}

fn loss(graph: &Graph) -> f64 {
    loss_from(graph, |tensor| tensor.name.bytes().map(usize::from).sum())
}

#[test]
fn all_ways_of_rotary_positions_are_one() {
    for base in [10_000.0, 500_000.0, 1234.5] {
        let all = WAYS.map(|way| file(way, base).file().graph(2, TOKENS).unwrap());
        for (graph, way) in all.iter().zip(WAYS) {
            assert_eq!(operators(graph)[..3], ["embedding", "rotary", "linear"], "{way:?}");
            let Operator::Rotary(rotary) = graph.nodes[1].operator else { panic!("{way:?}") };
            assert_eq!((rotary.head_size, rotary.back), (SIZE as usize, false));
            assert!((rotary.base / base - 1.0).abs() < 1e-4, "{way:?}: {}", rotary.base);
            assert!((loss(graph) - loss(&all[0])).abs() < 1e-6, "{way:?}");
        }
    }
}

#[test]
fn tables_of_something_else_are_refused() {
    let refusal = |change: fn(&mut Maker)| {
        let mut maker = file(WAYS[0], 10_000.0);
        change(&mut maker);
        maker.file().graph(2, TOKENS).unwrap_err().to_string()
    };
    let other = refusal(|maker| {
        let table = maker.graph.initializer.iter().position(|one| one.name() == "model.sines");
        maker.graph.initializer.remove(table.unwrap());
        maker.reals("model.sines", &[1, 5, 3], &[0.5; 15]);
    });
    let expected = "its tables are not those of one base and of positions counted from 0";
    assert!(other.ends_with(expected), "{other}");
    let turns = refusal(|maker| maker.graph.node[1].attribute.push(int("interleaved", 1)));
    assert!(turns.ends_with("interleaved is 1, expected 0"), "{turns}");
    let odd = refusal(|maker| maker.graph.node[1].attribute[0] = int("num_heads", 5));
    assert!(odd.ends_with("of 5 heads, expected an even number for each"), "{odd}");
}

#[test]
fn a_slope_that_is_trained_is_put_together() {
    let mut maker = Maker::default();
    maker.input("x", DataType::Float, &[BATCH, onnx_rs::ast::Dimension::Value(4)]);
    let [weight, slope, out] = [("weight", &[4, 6][..]), ("slope", &[6]), ("out", &[6, 3])]
        .map(|(name, shape)| maker.weight(name, shape));
    let x = maker.node("MatMul", &["x", weight], Vec::new());
    let y = maker.node("PRelu", &[x, slope], Vec::new());
    let logits = maker.node("MatMul", &[y, out], Vec::new());
    maker.output(logits);
    let graph = maker.file().graph(2, 1).unwrap();
    let names = operators(&graph);
    let expected =
        ["linear", "activation", "scale", "activation", "arithmetic", "arithmetic", "linear"];
    assert_eq!(names[..7], expected, "{names:?}");
    assert!(thinwire_model::backward(&graph).is_ok());
}
