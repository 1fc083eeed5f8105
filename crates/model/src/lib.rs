//! A model as a graph of operators, in which an operator is described by its axes.
//!
//! A [`Graph`] has tensors of concrete sizes, for one micro-batch, and the nodes that compute them. The
//! [`Declaration`] of an [`Operator`] for inputs of known shapes has the axes that it runs over and, for each
//! operand, the axis of every dimension. From these follow the shapes of the outputs, the flops, every
//! [`Strategy`] to divide the work over a mesh, the [`Layout`] of every operand under it and, with
//! [`conversion`], the collectives between layouts. Gradients are operators too. There is no I/O, no threads,
//! and no clock.
//!
//! ```
//! use thinwire_model::{Element, Graph, Initial, Linear, Operator, Role, conversion};
//!
//! let mut graph = Graph::default();
//! let x = graph.source("x", [8, 32], Element::Float, Role::Input);
//! let weight = Role::Parameter(Initial::Normal(0.02));
//! let weight = graph.source("up.weight", [32, 64], Element::Float, weight);
//! let up = graph.apply("up", Operator::Linear(Linear::plain()), &[x, weight])?;
//!
//! // On two ranks, rows of the weight can be cut: then what comes out is partial.
//! let declaration = graph.declaration(&graph.nodes[0]);
//! let strategies = declaration.strategies(&[2]);
//! let texts: Vec<_> = strategies.iter().map(|cuts| declaration.describe(cuts)).collect();
//! assert_eq!(texts, ["-", "b", "k", "n"]);
//! let partial = declaration.output_sides(0, &strategies[2]).value;
//! let sharded = declaration.output_sides(0, &strategies[1]).value;
//! assert_eq!((partial.to_string(), sharded.to_string()), ("(P)".into(), "(S0)".into()));
//!
//! let steps = conversion(&graph.tensors[up[0]].shape, &[2], &partial, &sharded)?;
//! assert_eq!(steps[0].sent(2), 8.0 * 64.0 / 2.0); // a reduce-scatter
//! # Ok::<(), thinwire_model::Error>(())
//! ```
#![forbid(unsafe_code)]

mod array;
mod axis;
mod backward;
mod builder;
mod class;
mod conversion;
mod divide;
mod error;
mod file;
mod graph;
mod layout;
mod loss;
mod name;
mod operator;
mod region;
mod rewrite;
mod strategy;
mod summary;
mod trainable;

pub use array::Array;
pub use axis::{Axes, Axis, Declaration, Dim, Operand, Split};
pub use backward::{Origin, Training, backward};
pub use builder::{
    AttentionKind, Bert, Bytes, Composer, Gpt, Llama, Mlp, Moe, NAMES, Resnet, SPELLED, Vgg, gpt,
    named, usual_sequence,
};
pub use class::{Class, classes, fingerprint};
pub use conversion::{Collective, Phase, Step, conversion, phases};
pub use divide::divide;
pub use error::{Error, Kind};
pub use file::{ModelFile, check_keys};
pub use graph::{Block, Element, Graph, Initial, Node, NodeId, Role, Tensor, TensorId};
pub use layout::{Layout, Placement, Reduction};
pub use loss::{cross_entropy, learn};
pub use name::{check_distinct, check_name, matches};
pub use operator::{
    Activation, ActivationBackward, Arithmetic, Attention, AttentionBackward, BatchNorm,
    BatchNormBackward, Broadcast, Combine, CombineGates, Constant, Conv2d, Conv2dInput,
    Conv2dWeight, CrossEntropy, CrossEntropyBackward, Dispatch, Dropout, Embedding,
    EmbeddingBackward, Epsilon, Fill, LayerNorm, LayerNormBackward, Linear, MatMul, Moments,
    MomentsBackward, Operator, Pack, Place, Pool, PoolBackward, PoolKind, Reshape, RmsNorm,
    RmsNormBackward, Rotary, Route, RouteBackward, Scale, Softmax, SoftmaxBackward, Sum, Summed,
    Transpose, Unpack,
};
pub use region::{Part, Region};
pub use rewrite::simplify;
pub use strategy::{Cut, Sides, Strategy};
pub use summary::{Summary, summary};
pub use trainable::check_trainable;
