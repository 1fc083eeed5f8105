//! Operators, one file each.
//!
//! A file says three things of its operator: what its axes are, what it means, and what its
//! gradients are. Gradients that are no operators of the list already stand in the same file.

mod activation;
mod arithmetic;
mod attention;
mod batch_norm;
mod broadcast;
mod conv2d;
mod cross_entropy;
mod dropout;
mod embedding;
mod epsilon;
mod experts;
mod fill;
mod layer_norm;
mod linear;
mod matmul;
mod pack;
mod place;
mod pool;
mod reshape;
mod rms_norm;
mod rotary;
mod route;
mod scale;
mod slide;
mod softmax;
mod sum;
mod transpose;

pub use activation::{Activation, ActivationBackward};
pub use arithmetic::Arithmetic;
pub use attention::{Attention, AttentionBackward};
pub use batch_norm::{BatchNorm, BatchNormBackward, Moments, MomentsBackward};
pub use broadcast::Broadcast;
pub use conv2d::{Conv2d, Conv2dInput, Conv2dWeight};
pub use cross_entropy::{CrossEntropy, CrossEntropyBackward};
pub use dropout::Dropout;
pub use embedding::{Embedding, EmbeddingBackward};
pub use epsilon::Epsilon;
pub use experts::{Combine, CombineGates, Dispatch};
pub use fill::Fill;
pub use layer_norm::{LayerNorm, LayerNormBackward};
pub use linear::Linear;
pub use matmul::MatMul;
pub use pack::{Pack, Unpack};
pub use place::Place;
pub use pool::{Pool, PoolBackward, PoolKind};
pub use reshape::Reshape;
pub use rms_norm::{RmsNorm, RmsNormBackward};
pub use rotary::Rotary;
pub use route::{Route, RouteBackward};
pub use scale::Scale;
pub use softmax::{Softmax, SoftmaxBackward};
pub use sum::{Sum, Summed};
pub use transpose::Transpose;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::axis::Declaration;
use crate::backward::Gradients;
use crate::error::{Error, Kind};
use crate::region::Region;

/// What an operator's file says.
pub(crate) trait Rule {
    /// Its axes and operands, for inputs of these shapes.
    fn declare(&self, inputs: &[&[usize]]) -> Result<Declaration, Error>;

    /// Its meaning, on a part of its axes: plain, slow, in f64.
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array>;

    /// Adds the nodes that compute the gradients of its inputs. Gradients themselves need none.
    fn gradients(&self, node: &mut Gradients<'_>) -> Result<(), Error> {
        Err(Error::new(Kind::Gradient, format!("{} has no gradient", node.name())))
    }
}

/// The closed set of operators: the enum, and what is looked up by its cases.
macro_rules! operators {
    ($($(#[$doc:meta])* $case:ident = $name:literal,)*) => {
        /// What a node does.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Operator {
            $($(#[$doc])* #[serde(rename = $name)] $case($case),)*
        }

        impl Operator {
            /// The names of all operators.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// Its name.
            pub fn name(&self) -> &'static str {
                match self { $(Operator::$case(_) => $name,)* }
            }

            fn rule(&self) -> &dyn Rule {
                match self { $(Operator::$case(operator) => operator,)* }
            }
        }

        $(impl From<$case> for Operator {
            fn from(operator: $case) -> Operator {
                Operator::$case(operator)
            }
        })*
    };
}

operators! {
    /// A product with a weight, and perhaps a bias.
    Linear = "linear",
    /// A product of two tensors over any axes.
    MatMul = "matmul",
    /// Rows of a table.
    Embedding = "embedding",
    /// Its table's gradient.
    EmbeddingBackward = "embedding_backward",
    /// Mean zero and variance one within a token, then gain and bias.
    LayerNorm = "layer_norm",
    /// Its gradients.
    LayerNormBackward = "layer_norm_backward",
    /// Mean square one within a token, then gain.
    RmsNorm = "rms_norm",
    /// Its gradients.
    RmsNormBackward = "rms_norm_backward",
    /// Exponentials that sum to one.
    Softmax = "softmax",
    /// Its gradient.
    SoftmaxBackward = "softmax_backward",
    /// Every query's mean of the values, weighted by its keys.
    Attention = "attention",
    /// Its gradients.
    AttentionBackward = "attention_backward",
    /// Pairs of features turned by their position.
    Rotary = "rotary",
    /// A function of every element.
    Activation = "activation",
    /// Its gradient.
    ActivationBackward = "activation_backward",
    /// Two tensors element by element, with broadcast.
    Arithmetic = "arithmetic",
    /// Every element times a number.
    Scale = "scale",
    /// The sum over some dimensions.
    Sum = "sum",
    /// The same values along some dimensions.
    Broadcast = "broadcast",
    /// The same number everywhere.
    Fill = "fill",
    /// The same elements in dimensions that are split or merged.
    Reshape = "reshape",
    /// Dimensions in another order.
    Transpose = "transpose",
    /// A dimension taken apart.
    Unpack = "unpack",
    /// A dimension put together.
    Pack = "pack",
    /// The same tensor, where the user wants it.
    Place = "place",
    /// Some elements zero, at random.
    Dropout = "dropout",
    /// A convolution of images.
    Conv2d = "conv2d",
    /// The gradient of its images.
    Conv2dInput = "conv2d_input",
    /// The gradient of its weight.
    Conv2dWeight = "conv2d_weight",
    /// Sums and squares of every channel.
    Moments = "moments",
    /// Their gradient.
    MomentsBackward = "moments_backward",
    /// Mean zero and variance one within a channel, then gain and bias.
    BatchNorm = "batch_norm",
    /// Its gradients.
    BatchNormBackward = "batch_norm_backward",
    /// The largest or the mean of every window.
    Pool = "pool",
    /// Its gradient.
    PoolBackward = "pool_backward",
    /// The two terms of a token's cross-entropy.
    CrossEntropy = "cross_entropy",
    /// The gradient of its logits.
    CrossEntropyBackward = "cross_entropy_backward",
    /// Which experts a token goes to.
    Route = "route",
    /// Its gradient.
    RouteBackward = "route_backward",
    /// Tokens brought to their experts.
    Dispatch = "dispatch",
    /// Tokens brought back.
    Combine = "combine",
    /// The gradient of its gates.
    CombineGates = "combine_gates",
}

impl Operator {
    /// What it does to inputs of these shapes.
    ///
    /// # Errors
    /// If it cannot take them.
    pub fn declare(&self, inputs: &[&[usize]]) -> Result<Declaration, Error> {
        let named = |error: Error| error.at(self.name());
        let declaration = self.rule().declare(inputs).map_err(named)?;
        declaration.check(inputs).map_err(named)?;
        Ok(declaration)
    }

    /// Its meaning, on a part of its axes: plain, slow, in f64. Inputs are local, and so is what
    /// comes out.
    pub fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        self.rule().evaluate(inputs, region)
    }

    /// Adds the nodes that compute the gradients of its inputs.
    pub(crate) fn gradients(&self, node: &mut Gradients<'_>) -> Result<(), Error> {
        self.rule().gradients(node)
    }
}

/// What single precision has, endless values aside.
const SINGLE: RangeInclusive<f64> = -(f32::MAX as f64)..=f32::MAX as f64;

/// Refuses a number that an operator is told and cannot mean anything by.
fn check_number(name: &str, found: f64, expected: RangeInclusive<f64>) -> Result<(), Error> {
    if expected.contains(&found) {
        return Ok(());
    }
    let (least, most) = expected.into_inner();
    let message = format!("{name} is {found:?}, expected {least:?} to {most:?}");
    Err(Error::new(Kind::Operands, message))
}

/// Exactly N inputs.
fn inputs<'a, const N: usize>(inputs: &[&'a [usize]]) -> Result<[&'a [usize]; N], Error> {
    inputs.try_into().map_err(|_| {
        Error::new(Kind::Operands, format!("has {} inputs, expected {N}", inputs.len()))
    })
}

/// A shape's last dimension and those before it.
fn split_last<'a>(name: &str, shape: &'a [usize]) -> Result<(usize, &'a [usize]), Error> {
    let none =
        || Error::new(Kind::Operands, format!("{name} has no dimension, expected one or more"));
    shape.split_last().map(|(last, leading)| (*last, leading)).ok_or_else(none)
}

/// A shape of exactly N dimensions.
fn dims<const N: usize>(name: &str, shape: &[usize]) -> Result<[usize; N], Error> {
    shape.try_into().map_err(|_| {
        let message = format!("{name} has {} dimensions {shape:?}, expected {N}", shape.len());
        Error::new(Kind::Operands, message)
    })
}

/// How often `part` goes into `length`.
fn quotient(name: &str, length: usize, part: usize) -> Result<usize, Error> {
    match length.checked_rem(part) {
        Some(0) => Ok(length / part),
        _ => {
            let message = format!("{name} is {length} long, expected a multiple of {part}");
            Err(Error::new(Kind::Operands, message))
        }
    }
}
