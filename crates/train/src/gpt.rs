//! A byte-level GPT on Burn, run as a chain of segments.
//!
//! "Language Models are Unsupervised Multitask Learners" (Radford et al.), section 2.3: layer
//! norm before each part, GELU, learned positions, residual projections initialised smaller.
//! Embedding, each block, and head with loss are a **segment** each: forward cuts the graph in
//! front of each, so that backward runs segment by segment from the last, and a segment's
//! gradients leave while those before it are still computed. The head has its own weights and
//! does not share the embedding's: those would be complete only when backward ends, and at 256
//! symbols sharing saves next to nothing.
//!
//! Law: the gradients equal those of the uncut graph.

mod kernel;
mod layers;
mod leaves;
mod sample;

use burn_tensor::module::linear;
use burn_tensor::{Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind};
use crate::{Batch, Initial, Model, Parameter, Sink};
use leaves::{Leaves, matrix, vector};

pub use sample::Sampled;

/// Symbols: the bytes.
pub const VOCABULARY: usize = 256;

/// The size of a [`Gpt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Bytes that a prediction is made from, at most.
    pub context: usize,
    /// Elements of an activation.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads; they divide the width.
    pub heads: usize,
}

/// The model: its size and its parameters' names and shapes.
#[derive(Clone, Debug)]
pub struct Gpt {
    config: Config,
    parameters: Vec<Parameter>,
    device: Device,
}

impl Gpt {
    /// A model of this size on the CPU.
    ///
    /// # Errors
    /// If a size is zero, or heads do not divide the width.
    pub fn new(config: Config) -> Result<Gpt, Error> {
        let Config { context, width, layers, heads } = config;
        if [context, width, layers, heads].contains(&0) || !width.is_multiple_of(heads) {
            let error = format!(
                "model of context {context}, width {width}, {layers} layers and {heads} heads"
            );
            let hint = "all must be at least 1, and the width a multiple of the heads";
            return Err(Error::new(Kind::Invalid, error).with_hint(hint));
        }
        Ok(Gpt { config, parameters: parameters(&config), device: Device::flex() })
    }

    /// The model's size.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The parameters of segment `segment` (0 is the embedding, the last is the head) as tensors.
    fn leaves(&self, segment: usize, values: &[Vec<f32>], device: &Device) -> Leaves {
        let end = self.parameters.len();
        let blocks = |count: usize| HEAD_PARAMETERS + count * BLOCK_PARAMETERS;
        let range = match self.config.layers + 1 - segment {
            0 => 0..HEAD_PARAMETERS,
            after if segment > 0 => blocks(after - 1)..blocks(after),
            _ => end - EMBEDDING_PARAMETERS..end,
        };
        Leaves::new(range.start, &self.parameters[range.clone()], &values[range], device)
    }

    fn block(&self, x: Tensor<2>, leaves: &Leaves, context: usize) -> Tensor<2> {
        let mut next = leaves.tensors.iter();
        let mut affine = || (matrix(&mut next), Some(vector(&mut next)));
        let apply = |x: &Tensor<2>, (w, b)| linear(x.clone(), w, b);
        let parts = [affine(), affine(), affine(), affine(), affine(), affine()];
        let [query, key, value, output, up, down] = parts;
        let mut norm = || (vector(&mut next), vector(&mut next));
        let [before_attention, before_feed] = [norm(), norm()];

        let h = layers::layer_norm(x.clone(), before_attention.0, before_attention.1);
        let parts = [apply(&h, query), apply(&h, key), apply(&h, value)];
        let x = x + apply(&layers::attention(parts, context, self.config.heads), output);
        let h = layers::layer_norm(x.clone(), before_feed.0, before_feed.1);
        x + apply(&layers::gelu(apply(&h, up)), down)
    }

    fn embed(&self, tokens: Tensor<1, Int>, leaves: &Leaves, context: usize) -> Tensor<2> {
        let mut next = leaves.tensors.iter();
        let (table, positions) = (matrix(&mut next), matrix(&mut next));
        let positions = positions.narrow(0, 0, context);
        layers::embed(table, positions, tokens)
    }

    fn logits(&self, x: Tensor<2>, leaves: &Leaves) -> Tensor<2> {
        let mut next = leaves.tensors.iter();
        let weight = matrix(&mut next);
        let (gain, bias) = (vector(&mut next), vector(&mut next));
        linear(layers::layer_norm(x, gain, bias), weight, None)
    }

    /// The leaves of every segment, outside any graph.
    fn constants(&self, values: &[Vec<f32>]) -> Vec<Leaves> {
        let segments = 0..=self.config.layers + 1;
        segments.map(|segment| self.leaves(segment, values, &self.device)).collect()
    }

    /// Forward up to the head.
    fn trunk(&self, segments: &[Leaves], tokens: Tensor<1, Int>, context: usize) -> Tensor<2> {
        let x = self.embed(tokens, &segments[0], context);
        let blocks = &segments[1..=self.config.layers];
        blocks.iter().fold(x, |x, leaves| self.block(x, leaves, context))
    }
}

impl Model for Gpt {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn loss_and_gradients(
        &self,
        values: &[Vec<f32>],
        batch: &Batch,
        sink: &mut Sink<'_>,
    ) -> Result<f32, Error> {
        let device = self.device.clone().autodiff();
        let (context, layers) = (batch.context(), self.config.layers);
        let [tokens, targets] = tokens_and_targets(batch, &device);

        let leaves = self.leaves(0, values, &device);
        let output = self.embed(tokens, &leaves, context);
        let mut segments = vec![Segment { input: None, output, leaves }];
        for segment in 1..=layers {
            let input = cut(&segments[segment - 1].output);
            let leaves = self.leaves(segment, values, &device);
            let output = self.block(input.clone(), &leaves, context);
            segments.push(Segment { input: Some(input), output, leaves });
        }
        let input = cut(&segments[layers].output);
        let leaves = self.leaves(layers + 1, values, &device);
        let loss = layers::cross_entropy(self.logits(input.clone(), &leaves), targets);

        let mut gradients = loss.backward();
        let mut upstream = input.grad_remove(&mut gradients);
        leaves.hand_over(&mut gradients, sink)?;
        while let (Some(segment), Some(seed)) = (segments.pop(), upstream) {
            let Segment { input, output, leaves } = segment;
            let mut gradients = (output * seed).sum().backward();
            upstream = input.and_then(|input| input.grad_remove(&mut gradients));
            leaves.hand_over(&mut gradients, sink)?;
        }
        Ok(loss.into_scalar())
    }

    fn loss(&self, values: &[Vec<f32>], batch: &Batch) -> f32 {
        let [tokens, targets] = tokens_and_targets(batch, &self.device);
        let segments = self.constants(values);
        let x = self.trunk(&segments, tokens, batch.context());
        let head = &segments[self.config.layers + 1];
        layers::cross_entropy(self.logits(x, head), targets).into_scalar()
    }
}

/// A piece of the chain that was run forward.
struct Segment {
    /// The segment's input as a leaf of its own graph; the embedding has none.
    input: Option<Tensor<2>>,
    output: Tensor<2>,
    leaves: Leaves,
}

/// The same activations as the start of a graph.
fn cut(output: &Tensor<2>) -> Tensor<2> {
    output.clone().inner().autodiff().require_grad()
}

const HEAD_PARAMETERS: usize = 3;
const BLOCK_PARAMETERS: usize = 16;
const EMBEDDING_PARAMETERS: usize = 2;

/// Every parameter: segments from the last to the first, in each as `Gpt::block` takes them.
fn parameters(config: &Config) -> Vec<Parameter> {
    let Config { context, width, layers, .. } = *config;
    let normal = Initial::Normal(0.02);
    // Each residual projection adds to a sum of 2 * layers terms.
    let residual = Initial::Normal(0.02 / (2.0 * layers as f32).sqrt());
    let mut parameters = Vec::new();
    let mut add = |name: String, shape: &[usize], initial| {
        parameters.push(Parameter { name, shape: shape.to_vec(), initial });
    };
    add("head.weight".to_owned(), &[width, VOCABULARY], normal);
    add("head.norm.gain".to_owned(), &[width], Initial::Ones);
    add("head.norm.bias".to_owned(), &[width], Initial::Zeros);
    for block in (0..layers).rev() {
        for (part, rows, columns, initial) in [
            ("attention.query", width, width, normal),
            ("attention.key", width, width, normal),
            ("attention.value", width, width, normal),
            ("attention.output", width, width, residual),
            ("feed.up", width, 4 * width, normal),
            ("feed.down", 4 * width, width, residual),
        ] {
            add(format!("block.{block}.{part}.weight"), &[rows, columns], initial);
            add(format!("block.{block}.{part}.bias"), &[columns], Initial::Zeros);
        }
        for part in ["attention", "feed"] {
            add(format!("block.{block}.{part}.norm.gain"), &[width], Initial::Ones);
            add(format!("block.{block}.{part}.norm.bias"), &[width], Initial::Zeros);
        }
    }
    add("embedding.table".to_owned(), &[VOCABULARY, width], normal);
    add("embedding.positions".to_owned(), &[context, width], normal);
    parameters
}

fn tokens_and_targets(batch: &Batch, device: &Device) -> [Tensor<1, Int>; 2] {
    [0, 1].map(|shift| {
        let rows = batch.rows().map(|row| &row[shift..shift + batch.context()]);
        let bytes: Vec<i32> = rows.flatten().map(|byte| i32::from(*byte)).collect();
        let count = bytes.len();
        Tensor::from_data(TensorData::new(bytes, [count]), device)
    })
}

#[cfg(test)]
mod tests;
