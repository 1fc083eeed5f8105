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
mod sample;

use burn_tensor::module::linear;
use burn_tensor::{Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind};
use crate::{Batch, Initial, Model, Parameter, Sink};

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

    /// Forward without a graph, up to the head.
    fn trunk(&self, values: &[Vec<f32>], tokens: Tensor<1, Int>, context: usize) -> Tensor<2> {
        let leaves = |segment| self.leaves(segment, values, &self.device);
        let x = self.embed(tokens, &leaves(0), context);
        (1..=self.config.layers).fold(x, |x, block| self.block(x, &leaves(block), context))
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
        let x = self.trunk(values, tokens, batch.context());
        let head = self.leaves(self.config.layers + 1, values, &self.device);
        layers::cross_entropy(self.logits(x, &head), targets).into_scalar()
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

/// A parameter as a tensor.
enum Leaf {
    Matrix(Tensor<2>),
    Vector(Tensor<1>),
}

/// The parameters of one segment as tensors.
struct Leaves {
    /// The index of the first of them in the model.
    start: usize,
    tensors: Vec<Leaf>,
}

impl Leaves {
    fn new(start: usize, parameters: &[Parameter], values: &[Vec<f32>], device: &Device) -> Leaves {
        let leaf = |(parameter, values): (&Parameter, &Vec<f32>)| {
            let data = TensorData::new(values.clone(), parameter.shape.clone());
            if parameter.is_matrix() {
                Leaf::Matrix(tracked(Tensor::from_data(data, device)))
            } else {
                Leaf::Vector(tracked(Tensor::from_data(data, device)))
            }
        };
        Leaves { start, tensors: parameters.iter().zip(values).map(leaf).collect() }
    }

    fn hand_over(
        self,
        gradients: &mut burn_tensor::Gradients,
        sink: &mut Sink<'_>,
    ) -> Result<(), Error> {
        for (offset, leaf) in self.tensors.iter().enumerate() {
            let data = match leaf {
                Leaf::Matrix(tensor) => tensor.grad_remove(gradients).map(Tensor::into_data),
                Leaf::Vector(tensor) => tensor.grad_remove(gradients).map(Tensor::into_data),
            };
            let mut data = data.expect("every parameter of a segment is used by it");
            sink(self.start + offset, data.as_mut_slice().expect("gradients are f32"))?;
        }
        Ok(())
    }
}

fn tracked<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    if tensor.is_autodiff() { tensor.require_grad() } else { tensor }
}

fn matrix<'a>(leaves: &mut impl Iterator<Item = &'a Leaf>) -> Tensor<2> {
    match leaves.next() {
        Some(Leaf::Matrix(tensor)) => tensor.clone(),
        _ => unreachable!("the parameters of a segment are listed in another order"),
    }
}

fn vector<'a>(leaves: &mut impl Iterator<Item = &'a Leaf>) -> Tensor<1> {
    match leaves.next() {
        Some(Leaf::Vector(tensor)) => tensor.clone(),
        _ => unreachable!("the parameters of a segment are listed in another order"),
    }
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
mod tests {
    use super::*;
    use crate::model::initial_values;
    use crate::testing::{assert_differences_agree, batch, gradients};

    const TINY: Config = Config { context: 12, width: 16, layers: 2, heads: 2 };

    /// A tiny model away from its symmetric start.
    fn tiny() -> (Gpt, Vec<Vec<f32>>) {
        let gpt = Gpt::new(TINY).unwrap();
        let mut values = initial_values(gpt.parameters(), 7);
        let noise = initial_values(
            &gpt.parameters()
                .iter()
                .map(|p| Parameter { initial: Initial::Normal(0.2), ..p.clone() })
                .collect::<Vec<_>>(),
            8,
        );
        values.iter_mut().flatten().zip(noise.iter().flatten()).for_each(|(v, n)| *v += n);
        (gpt, values)
    }

    /// Backward through the whole graph at once, with nothing of ours but the linear layers:
    /// Burn's own attention, GELU and softmax.
    fn whole(gpt: &Gpt, values: &[Vec<f32>], batch: &Batch) -> (f32, Vec<Vec<f32>>) {
        use burn_tensor::activation::{gelu, softmax};
        let device = gpt.device.clone().autodiff();
        let Config { context, width, layers, heads } = gpt.config;
        let segments: Vec<Leaves> =
            (0..=layers + 1).map(|segment| gpt.leaves(segment, values, &device)).collect();
        let [tokens, targets] = tokens_and_targets(batch, &device);
        let mut x = gpt.embed(tokens, &segments[0], context);
        let mask =
            (0..context * context).map(|i| if i % context > i / context { -1e9 } else { 0.0_f32 });
        let mask: Tensor<4> =
            Tensor::from_data(TensorData::new(mask.collect(), [1, 1, context, context]), &device);
        for leaves in &segments[1..=layers] {
            let m = |i: usize| matrix(&mut leaves.tensors[i..].iter());
            let v = |i: usize| vector(&mut leaves.tensors[i..].iter());
            let apply = |x: &Tensor<2>, i: usize| x.clone().matmul(m(i)) + v(i + 1).unsqueeze();
            let h = layers::layer_norm(x.clone(), v(12), v(13));
            let split = |x: Tensor<2>| {
                let size = width / heads;
                x.reshape([batch.rows().len(), context, heads, size]).swap_dims(1, 2)
            };
            let scores = split(apply(&h, 0)).matmul(split(apply(&h, 2)).swap_dims(2, 3));
            let weights =
                softmax(scores.mul_scalar(((width / heads) as f32).powf(-0.5)) + mask.clone(), 3);
            let mixed = weights.matmul(split(apply(&h, 4))).swap_dims(1, 2);
            x = x.clone() + apply(&mixed.reshape(x.dims()), 6);
            let h = layers::layer_norm(x.clone(), v(14), v(15));
            x = x + apply(&gelu(apply(&h, 8)), 10);
        }
        let loss = layers::cross_entropy(gpt.logits(x, &segments[layers + 1]), targets);
        let mut graph = loss.backward();
        let mut gradients = Vec::new();
        for leaves in segments.into_iter().rev() {
            let push = &mut |_: usize, gradient: &mut [f32]| {
                gradients.push(gradient.to_vec());
                Ok(())
            };
            leaves.hand_over(&mut graph, push).unwrap();
        }
        (loss.into_scalar(), gradients)
    }

    #[test]
    fn segments_give_the_gradients_of_the_whole_graph() {
        let (gpt, values) = tiny();
        let batch = batch(3, TINY.context, 5);
        let (loss, found) = gradients(&gpt, &values, &batch);
        let (expected_loss, expected) = whole(&gpt, &values, &batch);
        assert!((loss - expected_loss).abs() < 1e-5, "{loss} and {expected_loss}");
        for ((parameter, found), expected) in gpt.parameters().iter().zip(&found).zip(&expected) {
            assert_eq!(found.len(), parameter.elements());
            for (found, expected) in found.iter().zip(expected) {
                let name = &parameter.name;
                assert!((found - expected).abs() < 1e-5, "{name}: {found} and {expected}");
            }
        }
    }

    #[test]
    fn gradients_equal_differences() {
        let (gpt, values) = tiny();
        assert_differences_agree(&gpt, &values, &batch(2, TINY.context, 6), 5e-3);
    }

    #[test]
    fn a_prediction_sees_no_later_byte() {
        let (gpt, values) = tiny();
        let logits = |text: &[u8]| {
            let [tokens, _] =
                tokens_and_targets(&Batch::new([text, b"."].concat(), 12), &gpt.device);
            let x = gpt.trunk(&values, tokens, 12);
            gpt.logits(x, &gpt.leaves(3, &values, &gpt.device))
                .into_data()
                .try_to_vec::<f32>()
                .unwrap()
        };
        let (one, other) = (logits(b"abcdefghijkl"), logits(b"abcdefghijkX"));
        assert_eq!(one[..11 * VOCABULARY], other[..11 * VOCABULARY]);
        assert_ne!(one[11 * VOCABULARY..], other[11 * VOCABULARY..]);
    }

    #[test]
    fn loss_is_the_same_with_and_without_gradients() {
        let (gpt, values) = tiny();
        let batch = batch(3, TINY.context, 5);
        let (loss, _) = gradients(&gpt, &values, &batch);
        assert!((loss - gpt.loss(&values, &batch)).abs() < 1e-5);
    }

    #[test]
    fn an_untrained_model_knows_nothing() {
        let gpt = Gpt::new(TINY).unwrap();
        let values = initial_values(gpt.parameters(), 1);
        let loss = gpt.loss(&values, &batch(4, TINY.context, 1));
        assert!((loss - (VOCABULARY as f32).ln()).abs() < 0.2, "{loss}");
        assert!(values != initial_values(gpt.parameters(), 2));
        assert!(values == initial_values(gpt.parameters(), 1));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for bad in [Config { width: 15, ..TINY }, Config { heads: 0, ..TINY }] {
            assert!(Gpt::new(bad).unwrap_err().hint().is_some());
        }
    }
}
