//! Operators, one file each.
//!
//! A file declares the axes of its operator; `tests/reference` defines the operator's meaning by simple, slow
//! code in f64. Operators that exist only as gradients of another operator are in that operator's file;
//! `backward/rules.rs` has the nodes that compute the gradients of each operator.

mod activation;
mod arithmetic;
mod attention;
mod batch_norm;
mod broadcast;
mod constant;
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
mod operand;
mod pack;
mod place;
mod pool;
mod reshape;
mod rms_norm;
mod rotary;
mod route;
mod rule;
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
pub use constant::Constant;
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

use rule::Rule;
use serde::{Deserialize, Serialize};

use crate::{Declaration, Error};

/// Defines the closed set of operators: the enum, and functions that depend on its cases.
macro_rules! operators {
    ($($(#[$doc:meta])* $case:ident = $name:literal,)*) => {
        /// The operator of a node.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Operator {
            $($(#[$doc])* #[serde(rename = $name)] $case($case),)*
        }

        impl Operator {
            /// The names of all operators.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// Returns the name that files use.
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
    /// A product with a weight, with or without a bias.
    Linear = "linear",
    /// A product of two tensors over any axes.
    MatMul = "matmul",
    /// Rows of a table.
    Embedding = "embedding",
    /// The gradient of an embedding's table.
    EmbeddingBackward = "embedding_backward",
    /// Normalises each token to mean zero and variance one, then applies gain and bias.
    LayerNorm = "layer_norm",
    /// The gradients of a layer norm.
    LayerNormBackward = "layer_norm_backward",
    /// Normalises each token to mean square one, then applies the gain.
    RmsNorm = "rms_norm",
    /// The gradients of an RMS norm.
    RmsNormBackward = "rms_norm_backward",
    /// Exponentials that sum to one.
    Softmax = "softmax",
    /// The gradient of a softmax.
    SoftmaxBackward = "softmax_backward",
    /// Every query's mean of the values, weighted by its keys.
    Attention = "attention",
    /// The gradients of attention.
    AttentionBackward = "attention_backward",
    /// Pairs of features rotated by an angle that depends on their position.
    Rotary = "rotary",
    /// A function of every element.
    Activation = "activation",
    /// The gradient of an activation function.
    ActivationBackward = "activation_backward",
    /// An operation on corresponding elements of two tensors, with broadcast.
    Arithmetic = "arithmetic",
    /// Every element times a number.
    Scale = "scale",
    /// The sum over some dimensions.
    Sum = "sum",
    /// Values repeated along some dimensions.
    Broadcast = "broadcast",
    /// A tensor with one value everywhere.
    Fill = "fill",
    /// Constants that are never trained.
    Constant = "constant",
    /// The same elements with dimensions split or merged.
    Reshape = "reshape",
    /// Dimensions in another order.
    Transpose = "transpose",
    /// The sections of a dimension, each as a tensor.
    Unpack = "unpack",
    /// Sections of a dimension, joined into one tensor.
    Pack = "pack",
    /// The same tensor in a layout that the user asks for.
    Place = "place",
    /// Sets some elements to zero, at random.
    Dropout = "dropout",
    /// A convolution of images.
    Conv2d = "conv2d",
    /// The gradient of a convolution's images.
    Conv2dInput = "conv2d_input",
    /// The gradient of a convolution's weight.
    Conv2dWeight = "conv2d_weight",
    /// The sum and the sum of squares of every channel.
    Moments = "moments",
    /// The gradient of the moments of channels.
    MomentsBackward = "moments_backward",
    /// Normalises each channel to mean zero and variance one, then applies gain and bias.
    BatchNorm = "batch_norm",
    /// The gradients of a batch norm.
    BatchNormBackward = "batch_norm_backward",
    /// The largest or the mean of every window.
    Pool = "pool",
    /// The gradient of a pool.
    PoolBackward = "pool_backward",
    /// The two terms of a token's cross-entropy.
    CrossEntropy = "cross_entropy",
    /// The gradient of a cross-entropy's logits.
    CrossEntropyBackward = "cross_entropy_backward",
    /// Gates of a mixture of experts.
    Route = "route",
    /// The gradient of the gates.
    RouteBackward = "route_backward",
    /// Tokens moved to their experts.
    Dispatch = "dispatch",
    /// Tokens moved back from their experts.
    Combine = "combine",
    /// The gradient of the gates by which tokens are moved back.
    CombineGates = "combine_gates",
}

impl Operator {
    /// Declares axes and operands for inputs of these shapes.
    ///
    /// # Errors
    /// If it cannot take such inputs.
    pub fn declare(&self, inputs: &[&[usize]]) -> Result<Declaration, Error> {
        let named = |error: Error| error.at(self.name());
        let declaration = self.rule().declare(inputs).map_err(named)?;
        declaration.check(inputs).map_err(named)?;
        Ok(declaration)
    }
}
