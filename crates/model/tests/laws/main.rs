//! The laws that hold for every operator.
//!
//! Samples of all operators, of random sizes: every strategy on every small mesh gives what one rank
//! gives; gradients are the slopes of the reference; work is shared without loss; the gradients of
//! an operator lie where its strategy says; conversions between layouts keep the tensor; and so all of
//! it holds for whole models, with a strategy for every node by itself.

mod conversions;
mod gradients;
mod programs;
#[path = "../reference/mod.rs"]
mod reference;
mod samples;
mod shards;
mod strategies;
