//! Parameters' names and operators decide which numbers are trained; all others are constants.

use onnx_rs::ast::{DataType, Dimension};
use thinwire_model::{Graph, Initial, Node, Operator, Role};
use thinwire_onnx::OnnxFile;

use crate::files::{BATCH, Maker, SEQUENCE, int, ints, mlp, real};
use crate::operators;

const TOKENS: usize = 4;
const HIDDEN: i64 = 8;
const HEADS: i64 = 2;
const SIZE: i64 = HIDDEN / HEADS;

/// The trained parameters, and their values before the first step.
fn trained(graph: &Graph) -> Vec<(&str, Initial)> {
    let initial = |role: Role| match role {
        Role::Parameter(initial) => initial,
        _ => panic!("a parameter"),
    };
    graph.parameters().map(|(_, tensor)| (&tensor.name[..], initial(tensor.role))).collect()
}

/// The initial value of one parameter.
fn initial(graph: &Graph, name: &str) -> Initial {
    let found = trained(graph).into_iter().find(|(found, _)| *found == name);
    found.unwrap_or_else(|| panic!("{name} in {:?}", trained(graph))).1
}

/// RMS norm in pieces.
fn rms_norm(maker: &mut Maker, gain: &str, x: &'static str) -> &'static str {
    let gain = maker.weight(gain, &[HIDDEN]);
    let name = format!("{x}{gain}");
    let two = maker.number(&format!("{name}.two"), 2.0);
    let epsilon = maker.number(&format!("{name}.epsilon"), 1e-6);
    let square = maker.node("Pow", &[x, two], Vec::new());
    let mean = maker.node("ReduceMean", &[square], vec![ints("axes", &[-1])]);
    let sum = maker.node("Add", &[mean, epsilon], Vec::new());
    let root = maker.node("Sqrt", &[sum], Vec::new());
    let inverse = maker.node("Reciprocal", &[root], Vec::new());
    let normal = maker.node("Mul", &[x, inverse], Vec::new());
    maker.node("Mul", &[gain, normal], Vec::new())
}

/// Rotary positions by folded tables.
fn turned(maker: &mut Maker, x: &'static str) -> &'static str {
    let part = |maker: &mut Maker, start: i64, end: i64| {
        let [start, end, axes] = [("start", start), ("end", end), ("axes", 3)]
            .map(|(name, value)| maker.numbers(&format!("{x}.{start}.{name}"), &[1], &[value]));
        maker.node("Slice", &[x, start, end, axes], Vec::new())
    };
    let [first, second] = [part(maker, 0, SIZE / 2), part(maker, SIZE / 2, SIZE)];
    let minus = maker.node("Neg", &[second], Vec::new());
    let rotated = maker.node("Concat", &[minus, first], vec![int("axis", -1)]);
    let straight = maker.node("Mul", &[x, "val_21"], Vec::new());
    let rotated = maker.node("Mul", &[rotated, "val_22"], Vec::new());
    maker.node("Add", &[straight, rotated], Vec::new())
}

/// The causal mask, for two sequences.
fn causal() -> Vec<f32> {
    let hidden = |query: usize, key: usize| if key > query { f32::MIN } else { 0.0 };
    let one = (0..TOKENS).flat_map(|query| (0..TOKENS).map(move |key| hidden(query, key)));
    let one: Vec<f32> = one.collect();
    one.repeat(2)
}

/// A Llama of one block as exporters fold it: linear layers turned and renamed, tables of rotary
/// positions and the causal mask worked out.
fn llama(mask: &str, values: &[f32]) -> Maker {
    let mut maker = Maker::default();
    maker.input(
        "input_ids",
        DataType::Int64,
        &[Dimension::Value(2), Dimension::Value(TOKENS as i64)],
    );
    let table = maker.weight("model.embed_tokens.weight", &[11, HIDDEN]);
    let mut x = maker.node("Gather", &[table, "input_ids"], Vec::new());
    let angle = |at: usize| (at / SIZE as usize) as f32 / 10f32.powi((at % 2) as i32);
    let rows = 0..TOKENS * SIZE as usize;
    for (name, of) in [("val_21", f32::cos as fn(f32) -> f32), ("val_22", f32::sin)] {
        let values: Vec<f32> = rows.clone().map(|at| of(angle(at))).collect();
        maker.reals(name, &[1, 1, TOKENS as i64, SIZE], &values);
    }
    let mask = maker.reals(mask, &[2, 1, TOKENS as i64, TOKENS as i64], values);
    let normal = rms_norm(&mut maker, "model.layers.0.input_layernorm.weight", x);
    let shape = maker.numbers("heads", &[4], &[0, 0, HEADS, SIZE]);
    let [q, k, v] = [41, 42, 43].map(|number| {
        let weight = maker.weight(&format!("onnx::MatMul_{number}"), &[HIDDEN, HIDDEN]);
        let y = maker.node("MatMul", &[normal, weight], Vec::new());
        let y = maker.node("Reshape", &[y, shape], Vec::new());
        maker.node("Transpose", &[y], vec![ints("perm", &[0, 2, 1, 3])])
    });
    let [q, k] = [turned(&mut maker, q), turned(&mut maker, k)];
    let k = maker.node("Transpose", &[k], vec![ints("perm", &[0, 1, 3, 2])]);
    let scores = maker.node("MatMul", &[q, k], Vec::new());
    let factor = maker.number("val_30", (SIZE as f32).powf(-0.5));
    let scores = maker.node("Mul", &[scores, factor], Vec::new());
    let seen = maker.node("Add", &[scores, mask], Vec::new());
    let weights = maker.node("Softmax", &[seen], vec![int("axis", -1)]);
    let mixed = maker.node("MatMul", &[weights, v], Vec::new());
    let mixed = maker.node("Transpose", &[mixed], vec![ints("perm", &[0, 2, 1, 3])]);
    let flat = maker.numbers("flat", &[3], &[0, 0, HIDDEN]);
    let mixed = maker.node("Reshape", &[mixed, flat], Vec::new());
    let weight = maker.weight("onnx::MatMul_44", &[HIDDEN, HIDDEN]);
    let mixed = maker.node("MatMul", &[mixed, weight], Vec::new());
    x = maker.node("Add", &[x, mixed], Vec::new());
    x = rms_norm(&mut maker, "model.norm.g", x);
    let head = maker.weight("onnx::MatMul_45", &[HIDDEN, 11]);
    x = maker.node("MatMul", &[x, head], Vec::new());
    maker.output(x);
    maker
}

#[test]
fn a_folded_mask_is_never_trained() {
    // Some exporters leave the mask the name of a buffer that ends as a parameter's does.
    for name in ["val_63", "onnx::Add_63", "/model/Where_output_0", "mask", "h.0.attn.bias"] {
        let graph = llama(name, &causal()).file().graph(2, 1).unwrap();
        let mut names: Vec<&str> = trained(&graph).into_iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        let expected = [
            "model.embed_tokens.weight",
            "model.layers.0.input_layernorm.weight",
            "model.norm.g",
            "onnx::MatMul_41",
            "onnx::MatMul_42",
            "onnx::MatMul_43",
            "onnx::MatMul_44",
            "onnx::MatMul_45",
        ];
        assert_eq!(names, expected, "{name}");
        let causal = graph.nodes.iter().any(|node| match &node.operator {
            Operator::Attention(attention) => attention.causal,
            _ => false,
        });
        assert!(causal, "{name}: {:?}", operators(&graph));
    }
}

#[test]
fn numbers_that_nothing_marks_keep_the_values_of_the_file() {
    let some: Vec<f32> = (0..2 * TOKENS * TOKENS).map(|at| at as f32).collect();
    let graph = llama("val_63", &some).file().graph(2, 1).unwrap();
    let known = |name: &str| {
        let of = |node: &&Node| graph.tensors[node.outputs[0]].name == name;
        match &graph.nodes.iter().find(of).unwrap().operator {
            Operator::Constant(known) => known.values.to_vec(),
            other => panic!("{name} is {other:?}"),
        }
    };
    assert_eq!(known("val_63"), some);
    let inverse = |value: f32| (value / 10.0).cos();
    assert_eq!(known("val_21")[..2], [1.0, 1.0]);
    assert_eq!(known("val_21")[5], inverse(1.0));
    assert!(trained(&graph).iter().all(|(name, _)| !name.starts_with("val_")));
}

#[test]
fn parameters_begin_as_their_role_says() {
    let normal = Initial::Normal(0.02);
    let graph = llama("val_63", &causal()).file().graph(2, 1).unwrap();
    let of_llama = [
        ("model.layers.0.input_layernorm.weight", Initial::Ones),
        ("model.norm.g", Initial::Ones),
        ("onnx::MatMul_41", normal),
        ("model.embed_tokens.weight", normal),
    ];
    for (name, expected) in of_llama {
        assert_eq!(initial(&graph, name), expected, "{name}");
    }

    // The names say nothing, or the contrary.
    let mut maker = Maker { version: 23, ..Maker::default() };
    maker.input("x", DataType::Float, &[BATCH, Dimension::Value(4)]);
    let [a, b] = ["a.bias", "b.weight"].map(|name| maker.weight(name, &[4]));
    let mut x = maker.node("LayerNormalization", &["x", a, b], Vec::new());
    let c = maker.weight("onnx::RMSNormalization_3", &[4]);
    x = maker.node("RMSNormalization", &[x, c], vec![real("epsilon", 1e-6)]);
    let d = maker.weight("layer_scale", &[4]);
    x = maker.node("Mul", &[x, d], Vec::new());
    let [e, f] = [maker.weight("e.gain", &[3, 4]), maker.weight("f.scale", &[3])];
    x = maker.node("Gemm", &[x, e, f], vec![int("transB", 1)]);
    let g = maker.weight("g.bias", &[3]);
    x = maker.node("Add", &[x, g], Vec::new());
    let h = maker.weight("val_9", &[3, 1]);
    let one = maker.node("MatMul", &[x, h], Vec::new());
    x = maker.node("Mul", &[x, one], Vec::new());
    maker.output(x);
    let graph = maker.file().graph(2, 1).unwrap();
    let expected = [
        ("a.bias", Initial::Ones),
        ("b.weight", Initial::Zeros),
        ("onnx::RMSNormalization_3", Initial::Ones),
        ("layer_scale", Initial::Ones),
        ("e.gain", normal),
        ("f.scale", Initial::Zeros),
        ("g.bias", Initial::Zeros),
        ("val_9", normal),
    ];
    assert_eq!(trained(&graph), expected);

    let mut maker = Maker::default();
    let pixels = Dimension::Value(4);
    maker.input("x", DataType::Float, &[BATCH, Dimension::Value(3), pixels.clone(), pixels]);
    let kernel = maker.weight("k.bias", &[5, 3, 1, 1]);
    let mut x = maker.node("Conv", &["x", kernel], Vec::new());
    let moments = ["val_1", "val_2", "mean", "var"].map(|name| maker.weight(name, &[5]));
    x = maker.node("BatchNormalization", &[&[x][..], &moments].concat(), Vec::new());
    x = maker.node("GlobalAveragePool", &[x], Vec::new());
    x = maker.node("Flatten", &[x], Vec::new());
    maker.output(x);
    let graph = maker.file().graph(2, 1).unwrap();
    let expected = [("k.bias", normal), ("val_1", Initial::Ones), ("val_2", Initial::Zeros)];
    assert_eq!(trained(&graph), expected);
}

#[test]
fn gains_and_biases_that_were_merged_are_told_apart() {
    let count = |values: [f32; 4]| {
        let mut maker = Maker { version: 23, ..Maker::default() };
        maker.input("x", DataType::Float, &[BATCH, Dimension::Value(4)]);
        let [gain, bias] = ["a.weight", "a.bias"].map(|name| maker.reals(name, &[4], &values));
        let mut x = "x";
        for _ in 0..3 {
            x = maker.node("LayerNormalization", &[x, gain, bias], Vec::new());
        }
        maker.output(x);
        let graph = maker.file().graph(2, 1).unwrap();
        trained(&graph).into_iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
    };
    let names = count([1.0; 4]);
    assert_eq!(names.len(), 6, "{names:?}");
    assert!(names.contains(&"a.bias@LayerNormalization_2".to_owned()), "{names:?}");
    // Values that differ were trained together, or written so.
    assert_eq!(count([1.0, 2.0, 3.0, 4.0]), ["a.weight", "a.bias"]);
}

#[test]
fn a_turned_weight_is_the_weight_and_a_looked_up_table_of_positions_is_not() {
    let mut maker = mlp(&[4, 6, 3]);
    let last = maker.graph.node.last().unwrap().output[0];
    let weight = maker.weight("val_5", &[5, 3]);
    let turned = maker.node("Transpose", &[weight], vec![ints("perm", &[1, 0])]);
    let turned = maker.node("Identity", &[turned], Vec::new());
    let x = maker.node("MatMul", &[last, turned], Vec::new());
    maker.graph.output.clear();
    maker.output(x);
    let graph = maker.file().graph(2, 1).unwrap();
    assert_eq!(initial(&graph, "val_5"), Initial::Normal(0.02));

    let graph = positions("val_8", &[1, 2, 3]).unwrap();
    assert!(trained(&graph).iter().all(|(name, _)| *name != "val_8"), "{:?}", trained(&graph));
    let graph = positions("wpe.weight", &[0, 1, 2]).unwrap();
    assert_eq!(initial(&graph, "wpe.weight"), Initial::Normal(0.02));
}

/// Tokens and rows of a table at known places, added.
fn positions(table: &str, places: &[i64]) -> Result<Graph, thinwire_model::Error> {
    let mut maker = Maker::default();
    maker.input("tokens", DataType::Int64, &[BATCH, SEQUENCE]);
    let tokens = maker.weight("wte.weight", &[7, 5]);
    let values: Vec<f32> = (0..30).map(|at| (at as f32).sin()).collect();
    let table = maker.reals(table, &[6, 5], &values);
    let places = maker.numbers("places", &[1, places.len() as i64], places);
    let [x, y] = [(tokens, "tokens"), (table, places)]
        .map(|(table, ids)| maker.node("Gather", &[table, ids], Vec::new()));
    let x = maker.node("Add", &[x, y], Vec::new());
    maker.output(x);
    OnnxFile::new(maker.bytes())?.graph(2, 3)
}

#[test]
fn rows_of_a_table_are_those_that_the_file_names() {
    let names = |places: &[i64]| operators(&positions("wpe.weight", places).unwrap());
    assert_eq!(names(&[0, 1, 2])[..2], ["embedding", "embedding"]);
    // Text would put positions counted from 0 in the place of these.
    assert!(names(&[2, 3, 4]).iter().filter(|name| **name == "embedding").count() == 1);
    assert!(names(&[0, 0, 0]).iter().filter(|name| **name == "embedding").count() == 1);
    let refused = |places: &[i64]| positions("wpe.weight", places).unwrap_err().to_string();
    let expected = "node 1 'Gather_1': 'places' has indices of shape [1, 3] that are not 0, 1, 2 …, \
                    expected positions";
    assert_eq!(refused(&[2, 1, 0]), expected);
    assert_eq!(refused(&[4, 5, 6]), "node 1 'Gather_1': rows 4 to 6 of a table of 6 rows");
}

#[test]
fn numbers_that_nodes_copy_are_bounded_together() {
    let mut maker = Maker::default();
    maker.input("tokens", DataType::Int64, &[BATCH, SEQUENCE]);
    let mut known = maker.numbers("known", &[1 << 13], &[0; 1 << 13]);
    for _ in 0..10 {
        known = maker.node("Concat", &[known, known], vec![int("axis", 0)]);
    }
    for _ in 0..8 {
        known = maker.node("Identity", &[known], Vec::new());
    }
    maker.output(known);
    let refused = maker.file().graph(2, 3).unwrap_err().to_string();
    assert!(refused.ends_with("more than 67108864 known numbers in all nodes"), "{refused}");
}

/// A convolution over a sequence, whose result is added to what may be a buffer.
fn shifted() -> OnnxFile {
    let mut maker = Maker::default();
    maker.input(
        "x",
        DataType::Float,
        &[Dimension::Value(2), Dimension::Value(3), Dimension::Value(8)],
    );
    let [kernel, bias] = [maker.weight("conv.weight", &[4, 3, 1]), maker.weight("conv.bias", &[4])];
    let shift = maker.weight("shift_scale", &[4, 8]);
    let y = maker.node("Conv", &["x", kernel, bias], Vec::new());
    let y = maker.node("Add", &[y, shift], Vec::new());
    let y = maker.node("Flatten", &[y], vec![int("axis", 1)]);
    let head = maker.weight("onnx::MatMul_7", &[32, 5]);
    let y = maker.node("MatMul", &[y, head], Vec::new());
    maker.output(y);
    maker.file()
}

#[test]
fn parameters_of_convolutions_have_the_shapes_of_the_file() {
    let graph = shifted().graph(2, 1).unwrap();
    let shapes = graph.parameters().map(|(_, tensor)| (&tensor.name[..], &tensor.shape[..]));
    let expected: [(&str, &[usize]); 4] = [
        ("conv.weight", &[4, 3, 1]),
        ("conv.bias", &[4]),
        ("shift_scale", &[4, 8]),
        ("onnx::MatMul_7", &[32, 5]),
    ];
    assert_eq!(shapes.collect::<Vec<_>>(), expected);
}

#[test]
fn what_may_be_a_buffer_is_noted_and_can_be_frozen() {
    let mut file = shifted();
    let graph = file.graph(2, 1).unwrap();
    let notes = file.notes(&graph).unwrap();
    assert!(notes["shift_scale"].starts_with("read by arithmetic alone, perhaps a buffer"));
    assert!(notes["onnx::MatMul_7"].starts_with("named by the exporter"));
    assert_eq!(notes.len(), 2, "{notes:?}");
    let refusal = file.freeze(&["shift".to_owned()]).unwrap_err();
    assert_eq!(refusal.to_string(), "nothing is called 'shift' among its 4 tensors");
    file.freeze(&["shift_scale".to_owned()]).unwrap();
    let graph = file.graph(2, 1).unwrap();
    assert!(trained(&graph).iter().all(|(name, _)| *name != "shift_scale"));
    assert_eq!(graph.parameters().count(), 3);
    assert_eq!(file.notes(&graph).unwrap()["shift_scale"], "frozen by name");
}
