//! ONNX files as other programs write them, made small.

use onnx_rs::ast::{
    Attribute, AttributeType, DataType, Dimension, Graph, Model, Node, OpType, OperatorSetId,
    TensorProto, TensorShape, TensorShapeDimension, TensorTypeProto, TypeProto, TypeValue,
    ValueInfo,
};
use thinwire_onnx::OnnxFile;

/// A file in the making. Names live as long as the test.
pub struct Maker {
    pub graph: Graph<'static>,
    /// The version of the operators.
    pub version: i64,
}

impl Default for Maker {
    fn default() -> Maker {
        Maker { graph: Graph::default(), version: 17 }
    }
}

fn leak(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

/// Attributes of whole numbers.
pub fn ints(name: &'static str, values: &[i64]) -> Attribute<'static> {
    Attribute { name, ints: values.to_vec(), r#type: AttributeType::Ints, ..Attribute::default() }
}

/// An attribute of one whole number.
pub fn int(name: &'static str, value: i64) -> Attribute<'static> {
    Attribute { name, i: value, r#type: AttributeType::Int, ..Attribute::default() }
}

/// An attribute of one real number.
pub fn real(name: &'static str, value: f32) -> Attribute<'static> {
    Attribute { name, f: value, r#type: AttributeType::Float, ..Attribute::default() }
}

impl Maker {
    /// An input; a name is an open dimension.
    pub fn input(&mut self, name: &'static str, kind: DataType, shape: &[Dimension<'static>]) {
        self.graph.input.push(info(name, kind, shape));
    }

    /// The output.
    pub fn output(&mut self, name: &'static str) {
        self.graph.output.push(info(name, DataType::Float, &[]));
    }

    /// Something that is trained.
    pub fn weight(&mut self, name: &str, shape: &[i64]) -> &'static str {
        let name = leak(name);
        let count = shape.iter().product::<i64>() as usize;
        let weight = TensorProto::from_f32(name, shape.to_vec(), vec![0.5; count]);
        self.graph.initializer.push(weight);
        name
    }

    /// Known numbers.
    pub fn numbers(&mut self, name: &str, shape: &[i64], values: &[i64]) -> &'static str {
        let name = leak(name);
        self.graph.initializer.push(TensorProto::from_i64(name, shape.to_vec(), values.to_vec()));
        name
    }

    /// A known number.
    pub fn number(&mut self, name: &str, value: f32) -> &'static str {
        self.reals(name, &[], &[value])
    }

    /// Real numbers.
    pub fn reals(&mut self, name: &str, shape: &[i64], values: &[f32]) -> &'static str {
        let name = leak(name);
        self.graph.initializer.push(TensorProto::from_f32(name, shape.to_vec(), values.to_vec()));
        name
    }

    /// A node, and what it writes.
    pub fn node(
        &mut self,
        operator: &'static str,
        inputs: &[&'static str],
        attribute: Vec<Attribute<'static>>,
    ) -> &'static str {
        let name = leak(&format!("/{operator}_{}", self.graph.node.len()));
        self.graph.node.push(Node {
            name,
            op_type: OpType::from(operator),
            input: inputs.to_vec(),
            output: vec![name],
            attribute,
            ..Node::default()
        });
        name
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        onnx_rs::encode(&Model {
            ir_version: 9,
            opset_import: vec![OperatorSetId { domain: "", version: self.version }],
            graph: Some(self.graph.clone()),
            ..Model::default()
        })
    }

    /// The file.
    pub fn file(&self) -> OnnxFile {
        OnnxFile::new(self.bytes()).unwrap()
    }
}

fn info(
    name: &'static str,
    elem_type: DataType,
    shape: &[Dimension<'static>],
) -> ValueInfo<'static> {
    let dim =
        |value: &Dimension<'static>| TensorShapeDimension { value: value.clone(), denotation: "" };
    let shape = Some(TensorShape { dim: shape.iter().map(dim).collect() });
    let value = Some(TypeValue::Tensor(TensorTypeProto { elem_type, shape }));
    let r#type = Some(TypeProto { value, denotation: "" });
    ValueInfo { name, r#type, ..ValueInfo::default() }
}

/// The batch, open.
pub const BATCH: Dimension<'static> = Dimension::Param("batch");
/// The sequence, open.
pub const SEQUENCE: Dimension<'static> = Dimension::Param("sequence");

/// A perceptron as torch writes it: Gemm with weights the other way round, ReLU between.
pub fn mlp(features: &[i64]) -> Maker {
    let mut maker = Maker::default();
    maker.input("x", DataType::Float, &[BATCH, Dimension::Value(features[0])]);
    let mut x = "x";
    for (layer, pair) in features.windows(2).enumerate() {
        let weight = maker.weight(&format!("{layer}.weight"), &[pair[1], pair[0]]);
        let bias = maker.weight(&format!("{layer}.bias"), &[pair[1]]);
        x = maker.node("Gemm", &[x, weight, bias], vec![int("transB", 1)]);
        if layer + 2 < features.len() {
            x = maker.node("Relu", &[x], Vec::new());
        }
    }
    maker.output(x);
    maker
}

/// Two convolutions with a pool each, flattened by a shape that is worked out, and a linear layer.
pub fn cnn() -> Maker {
    let mut maker = Maker::default();
    let pixels = Dimension::Value(8);
    maker.input("images", DataType::Float, &[BATCH, Dimension::Value(3), pixels.clone(), pixels]);
    let mut x = "images";
    for (layer, (from, to)) in [(3, 4), (4, 6)].into_iter().enumerate() {
        let weight = maker.weight(&format!("conv.{layer}.weight"), &[to, from, 3, 3]);
        let bias = maker.weight(&format!("conv.{layer}.bias"), &[to]);
        let attributes = vec![ints("pads", &[1; 4]), ints("strides", &[1, 1])];
        x = maker.node("Conv", &[x, weight, bias], attributes);
        x = maker.node("Relu", &[x], Vec::new());
        let window = vec![ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])];
        x = maker.node("MaxPool", &[x], window);
    }
    let shape = maker.node("Shape", &[x], Vec::new());
    let zero = maker.numbers("zero", &[], &[0]);
    let batch = maker.node("Gather", &[shape, zero], Vec::new());
    let axes = maker.numbers("axes", &[1], &[0]);
    let batch = maker.node("Unsqueeze", &[batch, axes], Vec::new());
    let rest = maker.numbers("rest", &[1], &[-1]);
    let shape = maker.node("Concat", &[batch, rest], vec![int("axis", 0)]);
    x = maker.node("Reshape", &[x, shape], Vec::new());
    let weight = maker.weight("fc.weight", &[10, 24]);
    let bias = maker.weight("fc.bias", &[10]);
    x = maker.node("Gemm", &[x, weight, bias], vec![int("transB", 1)]);
    x = maker.node("LogSoftmax", &[x], vec![int("axis", 1)]);
    maker.output(x);
    maker
}

/// Layer norm in pieces.
fn layer_norm(maker: &mut Maker, name: &str, x: &'static str, features: i64) -> &'static str {
    let [gain, bias] =
        ["weight", "bias"].map(|end| maker.weight(&format!("{name}.{end}"), &[features]));
    let [two, epsilon] = [("two", 2.0), ("epsilon", 1e-5)]
        .map(|(end, value)| maker.number(&format!("{name}.{end}"), value));
    let last = || vec![ints("axes", &[-1])];
    let mean = maker.node("ReduceMean", &[x], last());
    let centred = maker.node("Sub", &[x, mean], Vec::new());
    let square = maker.node("Pow", &[centred, two], Vec::new());
    let variance = maker.node("ReduceMean", &[square], last());
    let sum = maker.node("Add", &[variance, epsilon], Vec::new());
    let deviation = maker.node("Sqrt", &[sum], Vec::new());
    let normal = maker.node("Div", &[centred, deviation], Vec::new());
    let scaled = maker.node("Mul", &[normal, gain], Vec::new());
    maker.node("Add", &[scaled, bias], Vec::new())
}

/// A linear layer as MatMul and Add.
fn linear(maker: &mut Maker, name: &str, x: &'static str, [k, n]: [i64; 2]) -> &'static str {
    let weight = maker.weight(&format!("{name}.weight"), &[k, n]);
    let bias = maker.weight(&format!("{name}.bias"), &[n]);
    let y = maker.node("MatMul", &[x, weight], Vec::new());
    maker.node("Add", &[bias, y], Vec::new())
}

/// GELU in pieces.
fn gelu(maker: &mut Maker, name: &str, x: &'static str) -> &'static str {
    let [root, one, half] = [("root", std::f32::consts::SQRT_2), ("one", 1.0), ("half", 0.5)]
        .map(|(end, value)| maker.number(&format!("{name}.{end}"), value));
    let inner = maker.node("Div", &[x, root], Vec::new());
    let erf = maker.node("Erf", &[inner], Vec::new());
    let sum = maker.node("Add", &[erf, one], Vec::new());
    let twice = maker.node("Mul", &[x, sum], Vec::new());
    maker.node("Mul", &[twice, half], Vec::new())
}

/// A GPT of equal blocks, whose head is the embedding, with everything taken apart.
pub fn gpt(layers: usize, hidden: i64, heads: i64, vocabulary: i64, tokens: usize) -> Maker {
    let mut maker = Maker::default();
    maker.input("tokens", DataType::Int64, &[BATCH, SEQUENCE]);
    let table = maker.weight("wte.weight", &[vocabulary, hidden]);
    let places = maker.weight("wpe.weight", &[tokens as i64, hidden]);
    let positions: Vec<i64> = (0..tokens as i64).collect();
    let positions = maker.numbers("positions", &[tokens as i64], &positions);
    let token = maker.node("Gather", &[table, "tokens"], Vec::new());
    let place = maker.node("Gather", &[places, positions], Vec::new());
    let mut x = maker.node("Add", &[token, place], Vec::new());
    for layer in 0..layers {
        x = block(&mut maker, &format!("h.{layer}"), x, [hidden, heads], tokens);
    }
    x = layer_norm(&mut maker, "ln_f", x, hidden);
    let turned = maker.node("Transpose", &[table], vec![ints("perm", &[1, 0])]);
    x = maker.node("MatMul", &[x, turned], Vec::new());
    maker.output(x);
    maker
}

fn block(
    maker: &mut Maker,
    name: &str,
    x: &'static str,
    [hidden, heads]: [i64; 2],
    tokens: usize,
) -> &'static str {
    let size = hidden / heads;
    let normal = layer_norm(maker, &format!("{name}.ln_1"), x, hidden);
    let shape = maker.numbers(&format!("{name}.shape"), &[4], &[0, 0, heads, size]);
    let [q, k, v] = ["q", "k", "v"].map(|part| {
        let y = linear(maker, &format!("{name}.{part}"), normal, [hidden, hidden]);
        let y = maker.node("Reshape", &[y, shape], Vec::new());
        maker.node("Transpose", &[y], vec![ints("perm", &[0, 2, 1, 3])])
    });
    let k = maker.node("Transpose", &[k], vec![ints("perm", &[0, 1, 3, 2])]);
    let scores = maker.node("MatMul", &[q, k], Vec::new());
    let root = maker.number(&format!("{name}.root"), (size as f32).sqrt());
    let scores = maker.node("Div", &[scores, root], Vec::new());
    let pairs = (0..tokens).flat_map(|q| (0..tokens).map(move |k| i64::from(k <= q)));
    let mask = [1, 1, tokens as i64, tokens as i64];
    let mask = maker.numbers(&format!("{name}.mask"), &mask, &pairs.collect::<Vec<_>>());
    let far = maker.number(&format!("{name}.far"), f32::MIN);
    let seen = maker.node("Where", &[mask, scores, far], Vec::new());
    let weights = maker.node("Softmax", &[seen], vec![int("axis", -1)]);
    let mixed = maker.node("MatMul", &[weights, v], Vec::new());
    let mixed = maker.node("Transpose", &[mixed], vec![ints("perm", &[0, 2, 1, 3])]);
    let flat = maker.numbers(&format!("{name}.flat"), &[3], &[0, 0, -1]);
    let mixed = maker.node("Reshape", &[mixed, flat], Vec::new());
    let mixed = linear(maker, &format!("{name}.proj"), mixed, [hidden, hidden]);
    let x = maker.node("Add", &[x, mixed], Vec::new());
    let normal = layer_norm(maker, &format!("{name}.ln_2"), x, hidden);
    let up = linear(maker, &format!("{name}.up"), normal, [hidden, 4 * hidden]);
    let active = gelu(maker, &format!("{name}.gelu"), up);
    let down = linear(maker, &format!("{name}.down"), active, [4 * hidden, hidden]);
    maker.node("Add", &[x, down], Vec::new())
}
