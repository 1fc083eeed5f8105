//! The reference: a byte-level GPT by Burn's autodiff, run as a chain of segments.
//!
//! "Language Models are Unsupervised Multitask Learners" (Radford et al.), section 2.3: layer
//! norm before each part, GELU, learned positions, residual projections initialised smaller.
//! Embedding, each half of each block, and head with loss are a **segment** each: forward cuts the graph in
//! front of each, so that backward runs segment by segment from the last, and a segment's
//! gradients leave while those before it are still computed. The head has its own weights and
//! does not share the embedding's: those would be complete only when backward ends, and at 256
//! symbols sharing saves next to nothing.
//!
//! Tests hold what is derived from the graph of the same model equal to it. Law: the gradients equal
//! those of the uncut graph.

mod kernel;
mod layers;
mod leaves;

use burn_tensor::module::linear;
use burn_tensor::{Device, Int, Tensor, TensorData};

use crate::error::Error;
use crate::{Batch, Config, Initial, Model, Parameter, Sink, VOCABULARY};
use leaves::{Leaves, matrix, vector};

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
    /// If a size is zero or too large, or heads do not divide the width.
    pub fn new(config: Config) -> Result<Gpt, Error> {
        config.check()?;
        Ok(Gpt { config, parameters: parameters(&config), device: Device::flex() })
    }

    /// The number of the last segment, the head: 0 is the embedding, between them are the
    /// attention and the feed-forward half of every block.
    fn head(&self) -> usize {
        2 * self.config.layers + 1
    }

    /// The parameters of a segment as tensors.
    fn leaves(&self, segment: usize, values: &[Vec<f32>], device: &Device) -> Leaves {
        let range = if segment == self.head() {
            0..HEAD_PARAMETERS
        } else if segment == 0 {
            self.parameters.len() - EMBEDDING_PARAMETERS..self.parameters.len()
        } else {
            let halves_after = self.head() - 1 - segment;
            let blocks =
                HEAD_PARAMETERS + halves_after / 2 * (FEED_PARAMETERS + ATTENTION_PARAMETERS);
            match is_attention(segment) {
                true => blocks + FEED_PARAMETERS..blocks + FEED_PARAMETERS + ATTENTION_PARAMETERS,
                false => blocks..blocks + FEED_PARAMETERS,
            }
        };
        Leaves::new(range.start, &self.parameters[range.clone()], &values[range], device)
    }

    /// Half a block: what it adds to its input, and the input.
    fn half(&self, segment: usize, x: Tensor<2>, leaves: &Leaves, context: usize) -> Tensor<2> {
        match is_attention(segment) {
            true => self.attend(x, leaves, context),
            false => feed(x, leaves),
        }
    }

    fn attend(&self, x: Tensor<2>, leaves: &Leaves, context: usize) -> Tensor<2> {
        let mut next = leaves.tensors.iter();
        let mut affine = || (matrix(&mut next), Some(vector(&mut next)));
        let [query, key, value, output] = [affine(), affine(), affine(), affine()];
        let (gain, bias) = (vector(&mut next), vector(&mut next));
        let h = layers::layer_norm(x.clone(), gain, bias);
        let parts = [query, key, value].map(|(w, b)| linear(h.clone(), w, b));
        x + linear(layers::attention(parts, context, self.config.heads), output.0, output.1)
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
        let segments = 0..=self.head();
        segments.map(|segment| self.leaves(segment, values, &self.device)).collect()
    }

    /// Forward up to the head.
    fn trunk(&self, segments: &[Leaves], tokens: Tensor<1, Int>, context: usize) -> Tensor<2> {
        let x = self.embed(tokens, &segments[0], context);
        (1..self.head()).fold(x, |x, segment| self.half(segment, x, &segments[segment], context))
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
        let (context, head) = (batch.context(), self.head());
        let [tokens, targets] = tokens_and_targets(batch, &device);

        let leaves = self.leaves(0, values, &device);
        let output = self.embed(tokens, &leaves, context);
        let mut segments = vec![Segment { input: None, output, leaves }];
        for segment in 1..head {
            let input = cut(&segments[segment - 1].output);
            let leaves = self.leaves(segment, values, &device);
            let output = self.half(segment, input.clone(), &leaves, context);
            segments.push(Segment { input: Some(input), output, leaves });
        }
        let input = cut(&segments[head - 1].output);
        let leaves = self.leaves(head, values, &device);
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
        let head = &segments[self.head()];
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

fn is_attention(segment: usize) -> bool {
    segment % 2 == 1
}

/// The feed-forward half of a block.
fn feed(x: Tensor<2>, leaves: &Leaves) -> Tensor<2> {
    let mut next = leaves.tensors.iter();
    let mut affine = || (matrix(&mut next), Some(vector(&mut next)));
    let [up, down] = [affine(), affine()];
    let (gain, bias) = (vector(&mut next), vector(&mut next));
    let h = layers::layer_norm(x.clone(), gain, bias);
    x + linear(layers::gelu(linear(h, up.0, up.1)), down.0, down.1)
}

/// The same activations as the start of a graph.
fn cut(output: &Tensor<2>) -> Tensor<2> {
    output.clone().inner().autodiff().require_grad()
}

const HEAD_PARAMETERS: usize = 3;
const FEED_PARAMETERS: usize = 6;
const ATTENTION_PARAMETERS: usize = 10;
const EMBEDDING_PARAMETERS: usize = 2;

/// Every parameter: segments from the last to the first, in each as its forward takes them.
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
        let feed = [("up", width, 4 * width, normal), ("down", 4 * width, width, residual)];
        let square = |part, initial| (part, width, width, initial);
        let [query, key, value] = ["query", "key", "value"].map(|part| square(part, normal));
        let attention = [query, key, value, square("output", residual)];
        for (half, parts) in [("feed", &feed[..]), ("attention", &attention[..])] {
            for (part, rows, columns, initial) in parts {
                let name = format!("block.{block}.{half}.{part}");
                add(format!("{name}.weight"), &[*rows, *columns], *initial);
                add(format!("{name}.bias"), &[*columns], Initial::Zeros);
            }
            add(format!("block.{block}.{half}.norm.gain"), &[width], Initial::Ones);
            add(format!("block.{block}.{half}.norm.bias"), &[width], Initial::Zeros);
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
