//! The native trainer.
#![forbid(unsafe_code)]

mod corpus;
mod data;
mod error;
mod exchange;
mod gpt;
mod mlp;
mod model;
mod optimizer;
mod synchronized;
#[cfg(test)]
mod testing;
pub mod threads;
mod trainer;

pub use corpus::Corpus;
pub use data::{Batch, Position, Sampler, Sampling, validation_batches};
pub use error::{Error, Kind};
pub use exchange::{Alone, Exchange, Failure, Outcome};
pub use gpt::{Config, Gpt, Sampled, VOCABULARY};
pub use mlp::Mlp;
pub use model::{Initial, Model, Parameter, Sink, initial_values};
pub use optimizer::{AdamW, AdamWOptions, LearningRate, Pace, clip_scale, global_norm};
pub use synchronized::parameters as exchanged_parameters;
pub use trainer::{Gradients, Options, StepReport, Trainer};
