//! The native trainer.
//!
//! [`spmd::GraphModel`] is any graph of crate `model` that reads text. A [`Trainer`] trains it on
//! ranks that have the whole model each, a [`spmd::Machine`] under any plan; both are one executor.
//! A [`Sampler`] deals the text of a [`Corpus`] to ranks, and [`checkpoint`] saves it all.
//!
//! ```
//! use thinwire_collective::Group;
//! use thinwire_train::spmd::GraphModel;
//! use thinwire_train::*;
//!
//! let text = b"she sells sea shells by the sea shore. ".repeat(50);
//! let world = thinwire_wire::World::alone();
//! let sampling = Sampling { context: 16, global_batch: 8, world, seed: 1 };
//! let mut sampler = Sampler::new(Corpus::from_text(&text)?, sampling)?;
//!
//! let config = Config { context: 16, width: 16, layers: 1, heads: 2 };
//! let model = GraphModel::new(&thinwire_model::named(&config.name(), 8, 16)?, None)?;
//! let group = Group::new(Box::new(thinwire_link::mem::alone()));
//!
//! let learning_rate = LearningRate { peak: 0.02, floor: 0.002, warmup_steps: 5, steps: 60 };
//! let options = Options { learning_rate, ..Options::default() };
//! let mut trainer = Trainer::new(&model, group, Default::default(), options, 1)?;
//! for _ in 0..60 {
//!     trainer.step(&sampler.next_batch())?;
//! }
//! assert!(trainer.loss(&[sampler.next_batch()])? < 2.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

pub mod checkpoint;
mod config;
mod corpus;
mod data;
mod error;
mod model;
mod optimizer;
pub mod spmd;
#[cfg(test)]
mod testing;
pub mod threads;
mod trainer;
mod vector;

pub use config::Config;
pub use corpus::Corpus;
pub use data::{Batch, Position, Sampler, Sampling, VOCABULARY, validation_batches};
pub use error::{Error, Kind};
pub use model::{Gradients, Parameter};
pub use optimizer::{AdamW, AdamWOptions, LearningRate, Pace, clip_scale, global_norm};
pub use trainer::{Options, StepReport, Trainer};
