//! Operators, one file each.
//!
//! A file declares the axes of its operator; `tests/reference` defines the operator's meaning as
//! plain, slow code in f64. Operators that exist as gradients of others stand in the file of the
//! operator that they belong to; `backward/rules.rs` says which nodes the gradients of an operator
//! are.

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

/// The closed set of operators: the enum, and what is looked up by its cases.
macro_rules! operators {
    ($($(#[$doc:meta])* $case:ident = $name:literal,)*) => {
        /// An operator of a node.
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
    /// A product with a weight, and perhaps a bias.
    Linear = "linear",
    /// A product of two tensors over any axes.
    MatMul = "matmul",
    /// Rows of a table.
    Embedding = "embedding",
    /// The gradient of an embedding's table.
    EmbeddingBackward = "embedding_backward",
    /// Mean zero and variance one within a token, then gain and bias.
    LayerNorm = "layer_norm",
    /// The gradients of a layer norm.
    LayerNormBackward = "layer_norm_backward",
    /// Mean square one within a token, then gain.
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
    /// Pairs of features turned by their position.
    Rotary = "rotary",
    /// A function of every element.
    Activation = "activation",
    /// The gradient of an activation function.
    ActivationBackward = "activation_backward",
    /// Two tensors element by element, with broadcast.
    Arithmetic = "arithmetic",
    /// Every element times a number.
    Scale = "scale",
    /// The sum over some dimensions.
    Sum = "sum",
    /// Values repeated along some dimensions.
    Broadcast = "broadcast",
    /// One number everywhere.
    Fill = "fill",
    /// Numbers that are known and never trained.
    Constant = "constant",
    /// Elements kept, dimensions split or merged.
    Reshape = "reshape",
    /// Dimensions in another order.
    Transpose = "transpose",
    /// A dimension taken apart.
    Unpack = "unpack",
    /// A dimension put together.
    Pack = "pack",
    /// A tensor, unchanged, in the layout that the user asks for.
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
    /// The gradients of a batch norm.
    BatchNormBackward = "batch_norm_backward",
    /// The largest or the mean of every window.
    Pool = "pool",
    /// The gradient of a pool.
    PoolBackward = "pool_backward",
    /// The two terms of a token's cross-entropy.
    CrossEntropy = "cross_entropy",
    /// The gradient of its logits.
    CrossEntropyBackward = "cross_entropy_backward",
    /// Gates of a mixture of experts.
    Route = "route",
    /// The gradient of the gates.
    RouteBackward = "route_backward",
    /// Tokens brought to their experts.
    Dispatch = "dispatch",
    /// Tokens brought back.
    Combine = "combine",
    /// The gradient of its gates.
    CombineGates = "combine_gates",
}

impl Operator {
    /// Declares axes and operands for inputs of these shapes.
    ///
    /// # Errors
    /// If it cannot take them.
    pub fn declare(&self, inputs: &[&[usize]]) -> Result<Declaration, Error> {
        let named = |error: Error| error.at(self.name());
        let declaration = self.rule().declare(inputs).map_err(named)?;
        declaration.check(inputs).map_err(named)?;
        Ok(declaration)
    }
}
