//! Networks: a layer per hop, with ReLU and dropout between them.

use thinwire_graph::{Adjacency, Sample};
use thinwire_wire::random::{Key, unit};

use super::hop::Hop;
use super::layer::{Forward, Layer};
use super::loss::{Figures, cross_entropy};
use super::matrix::Matrix;
use super::{Model, Wanted};
use crate::Parameter;
use crate::error::{Error, Kind};

/// `tensor` number of the random stream of initial values.
const INITIAL: u32 = 0x676e_6e00;

/// Sizes of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Kind of all layers.
    pub model: Model,
    /// Number of features of a vertex.
    pub features: usize,
    /// Outputs of all layers but the last.
    pub hidden: usize,
    /// Outputs of the last layer.
    pub classes: usize,
    /// Number of layers, which equals the number of hops.
    pub layers: usize,
    /// Attention heads of all layers but the last, which has one.
    pub heads: usize,
}

/// Network of layers, without its values.
#[derive(Clone, Debug)]
pub struct Network {
    layers: Vec<Layer>,
    parameters: Vec<Parameter>,
    /// Index of the first parameter of every layer, and the number of all parameters.
    firsts: Vec<usize>,
}

/// Vertices of a mini-batch, with their data.
#[derive(Debug)]
pub struct Input<'a> {
    /// The sample, with one block per layer. Each block expands all vertices so far.
    pub sample: &'a Sample,
    /// Graph from which the sample was drawn.
    pub graph: &'a Adjacency,
    /// Features of the sample's vertices.
    pub features: Matrix,
    /// Gradients to compute.
    pub wanted: Wanted,
}

/// Dropout of the inputs of layers in a training step; equal keys drop the same values.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// Share of values that become 0; the others are divided by one minus this share.
    pub share: f32,
    /// Key of the random numbers; each layer has its own stream.
    pub key: Key,
}

impl Dropout {
    /// Drops values from the inputs of a layer.
    pub fn apply(&self, layer: usize, x: &mut Matrix) {
        if self.share == 0.0 {
            return;
        }
        let key = Key { tensor: self.key.tensor ^ (layer as u32) << 24, ..self.key };
        for (block, values) in (0..).zip(x.values_mut().chunks_mut(4)) {
            for (value, word) in values.iter_mut().zip(key.words(block)) {
                *value *= if unit(word) < self.share { 0.0 } else { self.scale() };
            }
        }
    }

    /// Returns the factor of values that are kept.
    pub fn scale(&self) -> f32 {
        1.0 / (1.0 - self.share)
    }
}

impl Network {
    /// Creates a network.
    ///
    /// # Errors
    /// If a size is 0, or the heads do not divide the hidden outputs.
    pub fn new(shape: Shape) -> Result<Network, Error> {
        let Shape { model, features, hidden, classes, layers, heads } = shape;
        let invalid = |what: String| Err(Error::new(Kind::Invalid, what));
        for (name, size) in [
            ("features", features),
            ("hidden outputs", hidden),
            ("classes", classes),
            ("layers", layers),
            ("heads", heads),
        ] {
            if size == 0 {
                return invalid(format!("0 {name}, expected at least 1"));
            }
        }
        if model == Model::Gat && !hidden.is_multiple_of(heads) {
            return invalid(format!(
                "{hidden} hidden outputs for {heads} heads, expected a multiple"
            ));
        }
        let layer = |number: usize| {
            let inputs = if number == 0 { features } else { hidden };
            let (outputs, heads) = match number + 1 == layers {
                true => (classes, 1),
                false => (hidden, if model == Model::Gat { heads } else { 1 }),
            };
            Layer { model, inputs, outputs, heads }
        };
        let layers: Vec<Layer> = (0..layers).map(layer).collect();
        let (mut parameters, mut firsts) = (Vec::new(), vec![0]);
        for (number, layer) in layers.iter().enumerate() {
            parameters.extend(layer.parameters(number));
            firsts.push(parameters.len());
        }
        Ok(Network { layers, parameters, firsts })
    }

    /// Returns the number of values of all parameters.
    pub fn elements(&self) -> u64 {
        self.parameters.iter().map(|it| it.elements() as u64).sum()
    }

    /// Returns the parameters, in the order of the layers.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Draws initial values: for matrices uniformly, after Glorot and Bengio ("Understanding the
    /// difficulty of training deep feedforward neural networks", 2010); biases are 0.
    pub fn initial(&self, seed: u64) -> Vec<Vec<f32>> {
        let draw = |(step, parameter): (u64, &Parameter)| {
            let [rows, columns] = parameter.shape[..] else {
                return vec![0.0; parameter.elements()];
            };
            let key = Key { seed, step, tensor: INITIAL };
            let limit = (6.0 / (rows + columns) as f32).sqrt();
            let value = |element| limit * (2.0 * key.uniform(element) - 1.0);
            (0..parameter.elements() as u64).map(value).collect()
        };
        (0..).zip(&self.parameters).map(draw).collect()
    }

    /// Computes the outputs of the seeds, one row of classes each.
    pub fn outputs(&self, values: &[Vec<f32>], input: Input<'_>) -> Matrix {
        let mut x = input.features;
        for (number, layer) in self.layers.iter().enumerate() {
            let hop = Hop::new(layer.model, input.sample, number, input.graph);
            (x, _) = layer.forward(self.of(number, values), &hop, &x);
            self.activate(number, &mut x);
        }
        x
    }

    /// Computes the gradients of the mean loss over the seeds, and passes each to `ready`, with the number of
    /// its parameter, as soon as it is complete. Without seeds, gradients are 0. Returns the figures of the
    /// seeds, and on request the gradient of the features.
    ///
    /// # Errors
    /// If `ready` fails.
    pub fn gradients<E>(
        &self,
        values: &[Vec<f32>],
        input: Input<'_>,
        labels: &[u32],
        dropout: Dropout,
        mut ready: impl FnMut(usize, Vec<f32>) -> Result<(), E>,
    ) -> Result<(Figures, Option<Matrix>), E> {
        let mut x = input.features;
        let mut passes = Vec::new();
        for (number, layer) in self.layers.iter().enumerate() {
            dropout.apply(number, &mut x);
            let hop = Hop::new(layer.model, input.sample, number, input.graph);
            let (mut y, kept) = layer.forward(self.of(number, values), &hop, &x);
            self.activate(number, &mut y);
            passes.push(Forward { hop, x: std::mem::replace(&mut x, y), kept });
        }
        let figures = cross_entropy(&mut x, labels);
        let mut dy = x;
        for (number, pass) in passes.iter().enumerate().rev() {
            let wanted = if number == 0 { input.wanted } else { Wanted::All };
            let weights = self.of(number, values);
            let (gradients, dx) = pass.backward(weights, &dy, wanted);
            for (parameter, gradient) in (self.firsts[number]..).zip(gradients) {
                ready(parameter, gradient)?;
            }
            let Some(dx) = dx else { return Ok((figures, None)) };
            dy = dx;
            if number == 0 {
                // Features may be 0 without having been dropped.
                dropout.apply(0, &mut dy);
                return Ok((figures, Some(dy)));
            }
            // An input is positive if neither ReLU nor dropout has made it 0.
            let scale = dropout.scale();
            let pairs = dy.values_mut().iter_mut().zip(pass.x.values());
            pairs.for_each(|(dy, x)| *dy *= if *x > 0.0 { scale } else { 0.0 });
        }
        Ok((figures, None))
    }

    fn of<'v>(&self, layer: usize, values: &'v [Vec<f32>]) -> &'v [Vec<f32>] {
        &values[self.firsts[layer]..self.firsts[layer + 1]]
    }

    /// Applies ReLU after all layers but the last.
    fn activate(&self, layer: usize, y: &mut Matrix) {
        if layer + 1 < self.layers.len() {
            // What is not a number stays so, and the step is skipped.
            let negative = y.values_mut().iter_mut().filter(|value| **value < 0.0);
            negative.for_each(|value| *value = 0.0);
        }
    }
}
