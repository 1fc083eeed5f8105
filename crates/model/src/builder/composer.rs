//! A graph in the making: names by path, parameters beside the nodes that use them.

use crate::{
    Arithmetic, BatchNorm, Block, Conv2d, Dropout, Element, Error, Graph, Initial, LayerNorm,
    Linear, Moments, Operator, RmsNorm, Role, TensorId, cross_entropy,
};

/// The standard deviation of weights before the first step.
const DEVIATION: Initial = Initial::Normal(0.02);

/// A graph in the making.
#[derive(Clone, Debug, Default)]
pub struct Composer {
    graph: Graph,
    path: Vec<String>,
    dropouts: u32,
}

impl Composer {
    /// A block of nodes; their names begin with its name. Every node belongs to one.
    pub fn block<T>(
        &mut self,
        name: impl Into<String>,
        build: impl FnOnce(&mut Composer) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let name = name.into();
        let first = self.graph.nodes.len();
        let built = self.scope(name.clone(), build)?;
        self.graph.blocks.push(Block { name, nodes: first..self.graph.nodes.len() });
        Ok(built)
    }

    /// Nodes whose names begin with another name.
    pub fn scope<T>(
        &mut self,
        name: impl Into<String>,
        build: impl FnOnce(&mut Composer) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.path.push(name.into());
        let built = build(self);
        self.path.pop();
        built
    }

    /// Something from the data.
    pub fn input(&mut self, name: &str, shape: &[usize], element: Element) -> TensorId {
        self.graph.source(name, shape, element, Role::Input)
    }

    /// Tokens, their places and what follows each, of so many sequences.
    pub fn text(&mut self, batch: usize, sequence: usize) -> [TensorId; 3] {
        let whole: &[usize] = &[batch, sequence];
        [("tokens", whole), ("positions", &[sequence]), ("targets", whole)]
            .map(|(name, shape)| self.input(name, shape, Element::Index))
    }

    /// Something that is trained.
    pub fn parameter(&mut self, name: &str, shape: &[usize], initial: Initial) -> TensorId {
        let name = self.named(name);
        self.graph.source(name, shape, Element::Float, Role::Parameter(initial))
    }

    /// A weight, with small random values.
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> TensorId {
        self.parameter(name, shape, DEVIATION)
    }

    /// The shape of a tensor.
    pub fn shape(&self, tensor: TensorId) -> Vec<usize> {
        self.graph.tensors[tensor].shape.clone()
    }

    /// The length of a tensor's last dimension; 1 if it has none.
    pub fn features(&self, tensor: TensorId) -> usize {
        self.graph.tensors[tensor].shape.last().copied().unwrap_or(1)
    }

    /// A node of several outputs.
    ///
    /// # Errors
    /// If the operator cannot take these inputs.
    pub fn apply_all(
        &mut self,
        name: &str,
        operator: impl Into<Operator>,
        inputs: &[TensorId],
    ) -> Result<Vec<TensorId>, Error> {
        let name = self.named(name);
        self.graph.apply(name, operator.into(), inputs)
    }

    /// A node of one output.
    ///
    /// # Errors
    /// If the operator cannot take these inputs.
    pub fn apply(
        &mut self,
        name: &str,
        operator: impl Into<Operator>,
        inputs: &[TensorId],
    ) -> Result<TensorId, Error> {
        Ok(self.apply_all(name, operator, inputs)?[0])
    }

    /// A linear layer to `features`, with weight and bias.
    ///
    /// # Errors
    /// If x has no dimensions.
    pub fn linear(&mut self, name: &str, x: TensorId, features: usize) -> Result<TensorId, Error> {
        let weight = self.weight(&format!("{name}.weight"), &[self.features(x), features]);
        let bias = self.parameter(&format!("{name}.bias"), &[features], Initial::Zeros);
        self.apply(name, Linear { bias: true, turned: false }, &[x, weight, bias])
    }

    /// A linear layer to `features`, with a weight alone.
    ///
    /// # Errors
    /// If x has no dimensions.
    pub fn linear_without_bias(
        &mut self,
        name: &str,
        x: TensorId,
        features: usize,
    ) -> Result<TensorId, Error> {
        let weight = self.weight(&format!("{name}.weight"), &[self.features(x), features]);
        self.apply(name, Linear { bias: false, turned: false }, &[x, weight])
    }

    /// A layer norm, with its parameters.
    ///
    /// # Errors
    /// If x has no dimensions.
    pub fn layer_norm(&mut self, name: &str, x: TensorId) -> Result<TensorId, Error> {
        let features = [self.features(x)];
        let gain = self.parameter(&format!("{name}.gain"), &features, Initial::Ones);
        let bias = self.parameter(&format!("{name}.bias"), &features, Initial::Zeros);
        self.apply(name, LayerNorm::default(), &[x, gain, bias])
    }

    /// An RMS norm, with its parameter.
    ///
    /// # Errors
    /// If x has no dimensions.
    pub fn rms_norm(&mut self, name: &str, x: TensorId) -> Result<TensorId, Error> {
        let gain = self.parameter(&format!("{name}.gain"), &[self.features(x)], Initial::Ones);
        self.apply(name, RmsNorm::default(), &[x, gain])
    }

    /// A convolution with square windows that keeps an image's size but for the stride.
    ///
    /// # Errors
    /// If x is no image, or is too small.
    pub fn conv2d(
        &mut self,
        name: &str,
        x: TensorId,
        channels: usize,
        size: usize,
        stride: usize,
    ) -> Result<TensorId, Error> {
        let had = self.shape(x).get(1).copied().unwrap_or(1);
        let weight = self.weight(&format!("{name}.weight"), &[channels, had, size, size]);
        self.apply(name, Conv2d::square(stride, size / 2), &[x, weight])
    }

    /// A batch norm, with its parameters.
    ///
    /// # Errors
    /// If x has no channels.
    pub fn batch_norm(&mut self, name: &str, x: TensorId) -> Result<TensorId, Error> {
        let channels = [self.shape(x).get(1).copied().unwrap_or(1)];
        let gain = self.parameter(&format!("{name}.gain"), &channels, Initial::Ones);
        let bias = self.parameter(&format!("{name}.bias"), &channels, Initial::Zeros);
        let moments = self.apply_all(&format!("{name}.moments"), Moments, &[x])?;
        self.apply(name, BatchNorm::default(), &[x, moments[0], moments[1], gain, bias])
    }

    /// The sum of two tensors.
    ///
    /// # Errors
    /// If their shapes do not allow it.
    pub fn add(&mut self, name: &str, x: TensorId, y: TensorId) -> Result<TensorId, Error> {
        self.apply(name, Arithmetic::Add, &[x, y])
    }

    /// A dropout of its own random numbers, or nothing where the rate is zero.
    ///
    /// # Errors
    /// If the rate is none.
    pub fn dropout(&mut self, name: &str, x: TensorId, rate: f64) -> Result<TensorId, Error> {
        if rate == 0.0 {
            return Ok(x);
        }
        self.dropouts += 1;
        self.apply(name, Dropout { rate, stream: self.dropouts }, &[x])
    }

    /// The mean cross-entropy of classes, which becomes the graph's loss.
    ///
    /// # Errors
    /// If the targets are not as many as the logits are for.
    pub fn cross_entropy(&mut self, logits: TensorId, targets: TensorId) -> Result<(), Error> {
        let path = self.named("");
        cross_entropy(&mut self.graph, &path, logits, targets)
    }

    /// The finished graph.
    ///
    /// # Panics
    /// If a node belongs to no block, or to two.
    pub fn finish(self) -> Graph {
        let mut next = 0;
        for block in &self.graph.blocks {
            assert_eq!(
                block.nodes.start, next,
                "block {} begins where the last one ends",
                block.name
            );
            next = block.nodes.end;
        }
        assert_eq!(next, self.graph.nodes.len(), "every node belongs to a block");
        self.graph
    }

    fn named(&self, name: &str) -> String {
        let mut path = self.path.join(".");
        if !path.is_empty() {
            path.push('.');
        }
        path + name
    }
}
