//! Files become the graphs that the builders make, and are refused in one line where they cannot.

mod attention;
mod constants;
mod files;
mod hostile;
#[path = "../../../model/tests/reference/mod.rs"]
mod reference;
mod rotary;

use files::{BATCH, Maker, cnn, gpt, int, mlp};
use onnx_rs::ast::{Attribute, DataType, Dimension, TensorProto};
use proptest::prelude::*;
use reference::evaluate;
use thinwire_model::{
    Activation, Array, AttentionKind, Element, Epsilon, Gpt, Graph, LayerNorm, Mlp, Operator, Role,
    TensorId, Vgg, classes, summary,
};
use thinwire_onnx::OnnxFile;

/// The operators of a graph, in order.
fn operators(graph: &Graph) -> Vec<&'static str> {
    graph.nodes.iter().map(|node| node.operator.name()).collect()
}

/// The loss, from sources that depend on their shapes alone.
fn loss(graph: &Graph) -> f64 {
    loss_from(graph, |tensor| tensor.shape.len())
}

/// The loss, from sources that depend on a number of each.
fn loss_from(graph: &Graph, seed: fn(&thinwire_model::Tensor) -> usize) -> f64 {
    let sources = graph.tensors.iter().enumerate();
    let sources = sources.filter(|(_, tensor)| tensor.role != Role::Activation);
    let value = |(id, tensor): (usize, &thinwire_model::Tensor)| {
        let turned = is_turned(graph, id);
        let wave = |at: &[usize]| {
            let next = |place: usize, i: &usize| place * 7 + i;
            let place = match turned {
                true => at.iter().rev().fold(seed(tensor), next),
                false => at.iter().fold(seed(tensor), next),
            };
            match (tensor.element, at) {
                (Element::Index, [position]) => *position as f64,
                (Element::Index, _) => (place % 3) as f64,
                (Element::Float, _) => (place as f64).sin(),
            }
        };
        (id, Array::from_fn(tensor.shape.clone(), wave))
    };
    let sources: Vec<_> = sources.map(value).collect();
    evaluate(graph, &sources)[graph.loss.unwrap()].values()[0]
}

/// Whether a tensor is a weight that a linear layer reads the other way round.
fn is_turned(graph: &Graph, id: TensorId) -> bool {
    graph.nodes.iter().any(|node| match &node.operator {
        Operator::Linear(linear) => linear.turned && node.inputs[1] == id,
        _ => false,
    })
}

#[test]
fn a_weight_has_the_shape_of_the_file() {
    let graph = mlp(&[4, 6, 6, 3]).file().graph(2, 1).unwrap();
    let weights: Vec<_> = graph.tensors.iter().filter(|tensor| tensor.shape.len() == 2).collect();
    let shape = |name: &str| &weights.iter().find(|tensor| tensor.name == name).unwrap().shape[..];
    assert_eq!([shape("0.weight"), shape("1.weight"), shape("2.weight")], [[6, 4], [6, 6], [3, 6]]);
    for node in graph.nodes.iter().filter(|node| node.operator.name() == "linear") {
        assert!(is_turned(&graph, node.inputs[1]), "{}", node.name);
    }
}

#[test]
fn a_perceptron_is_the_built_one() {
    let found = mlp(&[784, 512, 512, 10]).file().graph(8, 1).unwrap();
    let built = Mlp { features: vec![784, 512, 512, 10] }.graph(8).unwrap();
    assert_eq!(operators(&found), operators(&built));
    let [found_size, built_size] = [&found, &built].map(|graph| summary(graph).unwrap());
    assert_eq!(found_size.parameters, built_size.parameters);
    assert_eq!(found_size.forward_flops, built_size.forward_flops);
    assert_eq!(found_size.backward_flops, built_size.backward_flops);
    assert_eq!(found.blocks.len(), 3);
    let names: Vec<&str> = found.nodes.iter().map(|node| &node.name[..]).collect();
    assert_eq!(names[..3], ["block.0.Gemm_0", "block.0.Relu_1", "block.1.Gemm_2"]);
}

#[test]
fn a_network_of_convolutions_is_the_built_one() {
    let found = cnn().file().graph(4, 1).unwrap();
    let vgg = Vgg { stages: vec![(1, 4), (1, 6)], hidden: Vec::new(), image: 8, classes: 10 };
    let built = vgg.graph(4).unwrap();
    // Biases of the file have one dimension, those of the builder three.
    let ours = found.nodes.iter().filter(|node| !node.name.ends_with("bias_of_channels"));
    assert_eq!(ours.map(|node| node.operator.name()).collect::<Vec<_>>(), operators(&built));
    let shapes = found.parameters().map(|(_, tensor)| tensor.shape.len());
    assert_eq!(shapes.collect::<Vec<_>>(), [4, 1, 4, 1, 2, 1]);
    let [found, built] = [&found, &built].map(|graph| summary(graph).unwrap());
    assert_eq!((found.parameters, found.forward_flops), (built.parameters, built.forward_flops));
    assert_eq!(found.backward_flops, built.backward_flops);
}

#[test]
fn a_transformer_taken_apart_is_put_together() {
    let (layers, hidden, heads, vocabulary, tokens) = (3, 16, 2, 40, 6);
    let maker = gpt(layers, hidden as i64, heads as i64, vocabulary as i64, tokens);
    let found = maker.file().graph(2, tokens).unwrap();
    let built = Gpt {
        layers,
        hidden,
        heads,
        feed_forward: 4 * hidden,
        vocabulary,
        positions: tokens,
        attention: AttentionKind::Fused,
        dropout: 0.0,
    };
    let built = built.graph(2, tokens).unwrap();
    let count = |graph: &Graph, operator: &str| {
        operators(graph).into_iter().filter(|name| *name == operator).count()
    };
    for operator in ["layer_norm", "activation", "attention", "embedding", "matmul", "scale"] {
        assert_eq!(count(&found, operator), count(&built, operator), "{operator}");
    }
    // Queries, keys and values are three products instead of one.
    assert_eq!(count(&found, "linear"), count(&built, "linear") + 2 * layers);
    assert_eq!(["softmax", "reshape", "transpose"].map(|name| count(&found, name)), [0; 3]);
    let causal = found.nodes.iter().filter(|node| match &node.operator {
        Operator::Attention(attention) => attention.causal,
        _ => false,
    });
    assert_eq!(causal.count(), layers);
    let blocks: Vec<usize> = classes(&found).iter().map(|class| class.blocks.len()).collect();
    assert!(blocks.contains(&layers), "{blocks:?}");
    let [found, built] = [&found, &built].map(|graph| summary(graph).unwrap());
    // GELU by the error function counts three flops less than by tanh, and its slope six.
    let less = 3.0 * (layers * 2 * tokens * 4 * hidden) as f64;
    assert_eq!(found.parameters, built.parameters);
    assert_eq!(found.forward_flops, built.forward_flops - less);
    // The three products give three gradients of what they read, which are added.
    let added = (2 * layers * 2 * tokens * hidden) as f64;
    assert_eq!(found.backward_flops, built.backward_flops + added - 2.0 * less);
}

#[test]
fn a_transformer_means_what_the_built_one_means() {
    let found = gpt(0, 8, 2, 5, 4).file().graph(2, 4).unwrap();
    let built = Gpt {
        layers: 0,
        hidden: 8,
        heads: 2,
        feed_forward: 32,
        vocabulary: 5,
        positions: 4,
        attention: AttentionKind::Plain,
        dropout: 0.0,
    };
    let built = built.graph(2, 4).unwrap();
    assert!((loss(&found) - loss(&built)).abs() < 1e-12);
    let small = mlp(&[4, 6, 3]).file().graph(5, 1).unwrap();
    let built = Mlp { features: vec![4, 6, 3] }.graph(5).unwrap();
    assert!((loss(&small) - loss(&built)).abs() < 1e-12);
}

/// The refusal of a file.
fn refusal(maker: &Maker) -> String {
    let error = OnnxFile::new(maker.bytes()).and_then(|file| file.graph(2, 3)).unwrap_err();
    let error = error.to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn what_is_not_supported_is_named_with_its_place() {
    let mut maker = mlp(&[4, 6, 3]);
    maker.graph.output.clear();
    let x = maker.node("Einsum", &["/Gemm_2"], Vec::new());
    maker.output(x);
    let error = refusal(&maker);
    let expected =
        "node 3 'Einsum_3': operator Einsum is not supported, expected one of 47, such as";
    assert!(error.starts_with(expected), "{error}");

    let mut maker = cnn();
    maker.graph.node[0].attribute.push(int("group", 2));
    assert_eq!(
        refusal(&maker),
        "node 0 'Conv_0': Conv_0: conv2d: x is 3 long, expected a multiple of 2"
    );

    let mut maker = mlp(&[4, 6, 3]);
    maker.graph.node.truncate(1);
    maker.graph.output.clear();
    let x = maker.node("Erf", &["/Gemm_0"], Vec::new());
    maker.output(x);
    let expected =
        "node 1 'Erf_1': Erf is only supported as a part of GELU, layer norm or RMS norm";
    assert_eq!(refusal(&maker), expected);
}

/// The functions of a file with one node after a linear layer.
fn function(operator: &'static str, attributes: Vec<Attribute<'static>>) -> Operator {
    let mut maker = mlp(&[4, 6, 3]);
    maker.graph.node.truncate(1);
    maker.graph.output.clear();
    let x = maker.node(operator, &["/Gemm_0"], attributes);
    maker.output(x);
    maker.file().graph(2, 1).unwrap().nodes[1].operator.clone()
}

#[test]
fn functions_are_the_ones_that_were_meant() {
    let tanh = Attribute { name: "approximate", s: b"tanh", ..Attribute::default() };
    assert_eq!(function("Gelu", vec![tanh]), Activation::Gelu.into());
    assert_eq!(function("Gelu", Vec::new()), Activation::GeluErf.into());
    assert_eq!(function("Sigmoid", Vec::new()), Activation::Sigmoid.into());
    assert_eq!(function("Tanh", Vec::new()), Activation::Tanh.into());
    // In pieces, GELU has the error function and layer norm its own number.
    let graph = gpt(1, 8, 2, 5, 4).file().graph(2, 4).unwrap();
    let has = |operator: Operator| graph.nodes.iter().any(|node| node.operator == operator);
    assert!(has(Activation::GeluErf.into()) && !has(Activation::Gelu.into()));
    assert!(has(LayerNorm(Epsilon { value: 1e-5 }).into()));
}

#[test]
fn files_that_contradict_themselves_are_refused() {
    let mut maker = mlp(&[4, 6, 3]);
    maker.graph.node.swap(0, 1);
    let expected = "node 0 'Relu_1': it reads '/Gemm_0', which no node before it writes";
    assert_eq!(refusal(&maker), expected);

    let mut maker = mlp(&[4, 6, 3]);
    maker.graph.initializer[0] = TensorProto::from_f32("0.weight", vec![6, 5], vec![0.0; 30]);
    let error = refusal(&maker);
    assert!(error.starts_with("node 0 'Gemm_0': Gemm_0: linear: "), "{error}");

    let mut maker = mlp(&[4, 6, 3]);
    maker.output("x");
    assert_eq!(refusal(&maker), "it has 2 outputs, expected one");

    let mut maker = mlp(&[4, 6, 3]);
    maker.graph.input.clear();
    maker.input("x", DataType::Float, &[Dimension::Value(1), Dimension::Value(4)]);
    let expected =
        "input 'x': its batch is always 1, not 2: export the model with an open first dimension";
    assert_eq!(refusal(&maker), expected);

    let mut maker = mlp(&[4, 6, 3]);
    maker.input("y", DataType::Float, &[BATCH, Dimension::Param("a"), Dimension::Param("b")]);
    let expected = "input 'y': dimension 2 is 'b', expected the batch or the sequence 'a'";
    assert_eq!(refusal(&maker), expected);

    let mut maker = mlp(&[4, 6, 3]);
    let much = Dimension::Value(1 << 30);
    maker.input("z", DataType::Float, &[BATCH, much.clone(), much.clone(), much]);
    assert!(refusal(&maker).ends_with(" is too large to be counted"));

    let mut maker = mlp(&[4, 6, 3]);
    maker.weight("twice", &[4, 6]);
    maker.weight("twice", &[6, 4]);
    assert_eq!(refusal(&maker), "twice: two initial values have this name, expected one");

    let mut maker = mlp(&[4, 6, 3]);
    maker.graph.node[1].output = maker.graph.node[0].output.clone();
    assert!(refusal(&maker).ends_with("it writes '/Gemm_0', which exists already"));

    let mut maker = mlp(&[4, 6, 3]);
    maker.graph.node[0].domain = "com.microsoft";
    assert!(refusal(&maker).contains("operator com.microsoft.Gemm is not supported"));

    let mut maker = mlp(&[4, 6, 3]);
    let relu = maker.graph.node[1].input[0];
    maker.graph.node[1].input.push(relu);
    assert_eq!(refusal(&maker), "node 1 'Relu_1': it has 2 inputs, expected 1");

    for version in [-1, 0, 5, 99] {
        let refused = refusal(&Maker { version, ..mlp(&[4, 6, 3]) });
        let expected = format!(
            "operators of version {version}, expected 6 to 25: export the \
            model for"
        );
        assert!(refused.starts_with(&expected), "{refused}");
    }

    let mut maker = mlp(&[4, 6, 3]);
    let last = maker.graph.node.last().unwrap().output[0];
    let whole = maker.numbers("whole", &[3, 2], &[1; 6]);
    let product = maker.node("MatMul", &[last, whole], Vec::new());
    maker.graph.output.clear();
    maker.output(product);
    assert!(refusal(&maker).ends_with("input 'whole' has whole numbers, expected real ones"));

    let mut maker = mlp(&[4, 6, 3]);
    let last = maker.graph.node.last().unwrap().output[0];
    let cut = maker.node("Slice", &[last], Vec::new());
    maker.graph.output.clear();
    maker.output(cut);
    assert!(refusal(&maker).ends_with("it has 1 inputs, expected 3 to 5"));

    let mut maker = mlp(&[4, 6, 3]);
    let rows = maker.numbers("rows", &[2], &[-1, -1]);
    let last = maker.graph.node.last().unwrap().output[0];
    let reshaped = maker.node("Reshape", &[last, rows], Vec::new());
    maker.graph.output.clear();
    maker.output(reshaped);
    assert!(refusal(&maker).ends_with("cannot become [-1, -1]"), "{}", refusal(&maker));

    let mut maker = cnn();
    let missing = TensorProto::from_i64("zero", Vec::new(), Vec::new());
    let zero = maker.graph.initializer.iter_mut().find(|tensor| tensor.name() == "zero").unwrap();
    *zero = missing.with_data_location(onnx_rs::ast::DataLocation::External);
    let expected = "zero: its numbers are in 'another file', expected that file next to the model, or export with external_data=False";
    assert_eq!(refusal(&maker), expected);
}

#[test]
fn constants_beside_the_model_are_those_in_it() {
    let within = cnn();
    let mut beside = cnn();
    let zero = beside.graph.initializer.iter_mut().find(|tensor| tensor.name() == "zero").unwrap();
    let shape = zero.dims().to_vec();
    let numbers: Vec<u8> = zero.as_i64().unwrap().iter().flat_map(|v| v.to_le_bytes()).collect();
    let entry = onnx_rs::ast::StringStringEntry { key: "location", value: "cnn.onnx.data" };
    let missing = TensorProto::from_i64("zero", shape, Vec::new())
        .with_data_location(onnx_rs::ast::DataLocation::External);
    *zero = missing.with_external_data(vec![entry]);
    let mut file = beside.file();
    let external = file.external().unwrap();
    assert_eq!((external.len(), external[0].length), (1, numbers.len()));
    file.supply(&external[0], numbers);
    assert_eq!(file.graph(2, 1).unwrap(), within.file().graph(2, 1).unwrap());
}

#[test]
fn a_batch_that_is_a_number_is_known() {
    let mut maker = mlp(&[4, 6, 3]);
    assert_eq!(maker.file().batch().unwrap(), None);
    maker.graph.input.clear();
    maker.input("x", DataType::Float, &[Dimension::Value(5), Dimension::Value(4)]);
    let file = maker.file();
    assert_eq!(file.batch().unwrap(), Some(5));
    let graph = file.graph(5, 1).unwrap();
    assert_eq!(graph.tensors[graph.nodes[0].inputs[0]].shape, [5, 4]);
    let expected =
        "input 'x': its batch is always 5, not 8: export the model with an open first dimension";
    assert_eq!(file.graph(8, 1).unwrap_err().to_string(), expected);
}

/// Bytes as a field of another message.
fn wrapped(field: u8, bytes: &[u8]) -> Vec<u8> {
    let mut wrapped = vec![field << 3 | 2];
    let mut length = bytes.len();
    while length >= 128 {
        wrapped.push((length % 128) as u8 | 128);
        length /= 128;
    }
    wrapped.push(length as u8);
    wrapped.extend(bytes);
    wrapped
}

#[test]
fn bytes_of_something_else_are_refused() {
    let error = |bytes: Vec<u8>| OnnxFile::new(bytes).unwrap_err().to_string();
    assert_eq!(error(Vec::new()), "it is no ONNX file: it has no nodes");
    assert!(error(b"{ \"json\": 1 }".to_vec()).starts_with("it is no ONNX file: "));
    let mut cut = cnn().bytes();
    cut.truncate(cut.len() / 2);
    assert!(error(cut).starts_with("it is no ONNX file: cut off at offset "));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_that_changed_never_panic(
        which in 0_usize..3,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        batch in 1_usize..4,
    ) {
        let maker = [mlp(&[4, 6, 3]), cnn(), gpt(1, 4, 2, 6, 3)].into_iter().nth(which).unwrap();
        let mut bytes = maker.bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(graph) = OnnxFile::new(bytes).and_then(|file| file.graph(batch, 3)) {
            let _ = summary(&graph);
        }
    }
}
