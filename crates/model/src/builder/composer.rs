//! Builder of a graph. Names are paths, and each parameter is added next to the node that uses it.

use crate::{
    Arithmetic, BatchNorm, Block, Conv2d, Dropout, Element, Error, Graph, Initial, LayerNorm,
    Linear, Moments, Operator, RmsNorm, Role, TensorId, cross_entropy,
};

/// The standard deviation of weights before the first step.
const DEVIATION: Initial = Initial::Normal(0.02);

/// A graph that is being built.
#[derive(Clone, Debug, Default)]
pub struct Composer {
    graph: Graph,
    path: Vec<String>,
    dropouts: u32,
}

impl Composer {
    /// Adds a block of nodes, whose names begin with the block's name. Every node must belong to a
    /// block.
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

    /// Adds nodes whose names begin with a further name.
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

    /// Adds an input from the data.
    pub fn input(&mut self, name: &str, shape: &[usize], element: Element) -> TensorId {
        self.graph.source(name, shape, element, Role::Input)
    }

    /// Adds inputs for tokens, their positions, and the token after each, for `batch` sequences of `sequence`
    /// tokens.
    pub fn text(&mut self, batch: usize, sequence: usize) -> [TensorId; 3] {
        let whole: &[usize] = &[batch, sequence];
        [("tokens", whole), ("positions", &[sequence]), ("targets", whole)]
            .map(|(name, shape)| self.input(name, shape, Element::Index))
    }

    /// Adds a parameter.
    pub fn parameter(&mut self, name: &str, shape: &[usize], initial: Initial) -> TensorId {
        let name = self.named(name);
        self.graph.source(name, shape, Element::Float, Role::Parameter(initial))
    }

    /// Adds a weight with small random values.
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> TensorId {
        self.parameter(name, shape, DEVIATION)
    }

    /// Returns the shape of a tensor.
    pub fn shape(&self, tensor: TensorId) -> Vec<usize> {
        self.graph.tensors[tensor].shape.clone()
    }

    /// Returns the length of a tensor's last dimension; 1 if it has none.
    pub fn features(&self, tensor: TensorId) -> usize {
        self.graph.tensors[tensor].shape.last().copied().unwrap_or(1)
    }

    /// Adds a node with several outputs.
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

    /// Adds a node with one output.
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

    /// Adds a linear layer to `features`, with weight and bias.
    ///
    /// # Errors
    /// If x has no dimensions.
    pub fn linear(&mut self, name: &str, x: TensorId, features: usize) -> Result<TensorId, Error> {
        let weight = self.weight(&format!("{name}.weight"), &[self.features(x), features]);
        let bias = self.parameter(&format!("{name}.bias"), &[features], Initial::Zeros);
        self.apply(name, Linear { bias: true, turned: false }, &[x, weight, bias])
    }

    /// Adds a linear layer to `features`, with only a weight.
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

    /// Adds a layer norm, with its parameters.
    ///
    /// # Errors
    /// If x has no dimensions.
    pub fn layer_norm(&mut self, name: &str, x: TensorId) -> Result<TensorId, Error> {
        let features = [self.features(x)];
        let gain = self.parameter(&format!("{name}.gain"), &features, Initial::Ones);
        let bias = self.parameter(&format!("{name}.bias"), &features, Initial::Zeros);
        self.apply(name, LayerNorm::default(), &[x, gain, bias])
    }

    /// Adds an RMS norm with its parameter.
    ///
    /// # Errors
    /// If x has no dimensions.
    pub fn rms_norm(&mut self, name: &str, x: TensorId) -> Result<TensorId, Error> {
        let gain = self.parameter(&format!("{name}.gain"), &[self.features(x)], Initial::Ones);
        self.apply(name, RmsNorm::default(), &[x, gain])
    }

    /// Adds a convolution with square windows that keeps an image's size except for the stride.
    ///
    /// # Errors
    /// If x is not an image, or is too small.
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

    /// Adds a batch norm, with its parameters.
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

    /// Adds the sum of two tensors.
    ///
    /// # Errors
    /// If their shapes do not allow it.
    pub fn add(&mut self, name: &str, x: TensorId, y: TensorId) -> Result<TensorId, Error> {
        self.apply(name, Arithmetic::Add, &[x, y])
    }

    /// Adds a dropout with its own random numbers; adds nothing if the rate is zero.
    ///
    /// # Errors
    /// If the rate is not valid.
    pub fn dropout(&mut self, name: &str, x: TensorId, rate: f64) -> Result<TensorId, Error> {
        if rate == 0.0 {
            return Ok(x);
        }
        self.dropouts += 1;
        self.apply(name, Dropout { rate, stream: self.dropouts }, &[x])
    }

    /// Adds the mean cross-entropy of classes, which becomes the graph's loss.
    ///
    /// # Errors
    /// If the number of targets differs from the number of predictions in the logits.
    pub fn cross_entropy(&mut self, logits: TensorId, targets: TensorId) -> Result<(), Error> {
        let path = self.named("");
        cross_entropy(&mut self.graph, &path, logits, targets)
    }

    /// Returns the finished graph.
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
