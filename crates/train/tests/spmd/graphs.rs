//! Small models: a GPT with everything that one has, and a CNN.

use thinwire_model::{
    Activation, Arithmetic, Attention, Block, CrossEntropy, Dropout, Element, Embedding, Graph,
    Initial, LayerNorm, Linear, MatMul, Operator, Role, Scale, Sum, TensorId,
};

/// Sequences of a micro-batch, tokens of a sequence, features, classes.
pub const SIZES: [usize; 4] = [4, 4, 8, 8];

/// Nodes are added in blocks.
pub struct Builder {
    pub graph: Graph,
    start: usize,
}

impl Builder {
    pub fn new() -> Builder {
        Builder { graph: Graph::default(), start: 0 }
    }

    pub fn apply(
        &mut self,
        name: &str,
        operator: impl Into<Operator>,
        inputs: &[TensorId],
    ) -> TensorId {
        self.graph.apply(name, operator.into(), inputs).unwrap()[0]
    }

    pub fn parameter(&mut self, name: &str, shape: &[usize], initial: Initial) -> TensorId {
        self.graph.source(name, shape, Element::Float, Role::Parameter(initial))
    }

    pub fn linear(&mut self, name: &str, x: TensorId, (k, n): (usize, usize)) -> TensorId {
        let weight = self.parameter(&format!("{name}.weight"), &[k, n], Initial::Normal(0.3));
        let bias = self.parameter(&format!("{name}.bias"), &[n], Initial::Normal(0.1));
        self.apply(name, Linear { bias: true }, &[x, weight, bias])
    }

    pub fn norm(&mut self, name: &str, x: TensorId, n: usize) -> TensorId {
        let gain = self.parameter(&format!("{name}.gain"), &[n], Initial::Ones);
        let bias = self.parameter(&format!("{name}.bias"), &[n], Initial::Zeros);
        self.apply(name, LayerNorm, &[x, gain, bias])
    }

    pub fn end_block(&mut self, name: &str) {
        let end = self.graph.nodes.len();
        self.graph.blocks.push(Block { name: name.to_owned(), nodes: self.start..end });
        self.start = end;
    }

    /// The mean of what tokens lose.
    pub fn loss(&mut self, logits: TensorId, targets: TensorId) {
        let shape = self.graph.tensors[targets].shape.clone();
        let terms = self.graph.apply("terms", CrossEntropy.into(), &[logits, targets]).unwrap();
        let each = self.apply("each", Arithmetic::Subtract, &terms);
        let sum = self.apply("sum", Sum::over(0..shape.len()), &[each]);
        let count: usize = shape.iter().product();
        let loss = self.apply("loss", Scale(1.0 / count as f64), &[sum]);
        self.graph.loss = Some(loss);
    }
}

/// A GPT of this many blocks; its head is the embedding, if `tied`.
pub fn gpt(layers: usize, tied: bool) -> Graph {
    let [b, s, n, v] = SIZES;
    let mut builder = Builder::new();
    let tokens = builder.graph.source("tokens", [b, s], Element::Index, Role::Input);
    let targets = builder.graph.source("targets", [b, s], Element::Index, Role::Input);
    let table = builder.parameter("table", &[v, n], Initial::Normal(0.3));
    let positions = builder.parameter("positions", &[s, n], Initial::Normal(0.3));
    let embedded = builder.apply("embedding", Embedding, &[table, tokens]);
    let mut x = builder.apply("positioned", Arithmetic::Add, &[embedded, positions]);
    builder.end_block("embedding");
    for layer in 0..layers {
        x = block(&mut builder, layer, x, n);
    }
    let normed = builder.norm("head.norm", x, n);
    let logits = match tied {
        true => builder.apply("head", MatMul::new("bsn", "vn", "bsv"), &[normed, table]),
        false => {
            let weight = builder.parameter("head.weight", &[n, v], Initial::Normal(0.3));
            builder.apply("head", Linear { bias: false }, &[normed, weight])
        }
    };
    builder.loss(logits, targets);
    builder.end_block("head");
    builder.graph
}

fn block(builder: &mut Builder, layer: usize, x: TensorId, n: usize) -> TensorId {
    let name = |part: &str| format!("block.{layer}.{part}");
    let normed = builder.norm(&name("attention.norm"), x, n);
    let parts = ["query", "key", "value"]
        .map(|part| builder.linear(&name(&format!("attention.{part}")), normed, (n, n)));
    let attention = Attention { head_size: 4, queries_per_key: 1, causal: true };
    let seen = builder.apply(&name("attention"), attention, &parts);
    let out = builder.linear(&name("attention.output"), seen, (n, n));
    let dropout = Dropout { rate: 0.1, stream: 2 * layer as u32 };
    let dropped = builder.apply(&name("attention.dropout"), dropout, &[out]);
    let x = builder.apply(&name("attention.added"), Arithmetic::Add, &[x, dropped]);
    let normed = builder.norm(&name("mlp.norm"), x, n);
    let up = builder.linear(&name("mlp.up"), normed, (n, 2 * n));
    let active = builder.apply(&name("mlp.active"), Activation::Gelu, &[up]);
    let down = builder.linear(&name("mlp.down"), active, (2 * n, n));
    let x = builder.apply(&name("mlp.added"), Arithmetic::Add, &[x, down]);
    builder.end_block(&format!("block.{layer}"));
    x
}
