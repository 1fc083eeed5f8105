//! The native trainer.
//!
//! A [`Model`] computes gradients from flat parameters and hands each over as soon as it is
//! complete; an [`Exchange`] averages them between ranks meanwhile; the [`Trainer`] clips and steps
//! AdamW. [`spmd::Derived`] is any graph of crate `model`, [`Mlp`] a tiny model by hand. A [`Sampler`]
//! deals the text of a [`Corpus`] to ranks, and [`checkpoint`] freezes it all.
//!
//! ```
//! use thinwire_train::*;
//!
//! let text = b"she sells sea shells by the sea shore. ".repeat(50);
//! let world = thinwire_wire::World::alone();
//! let sampling = Sampling { context: 16, global_batch: 8, world, seed: 1 };
//! let mut sampler = Sampler::new(Corpus::from_text(&text)?, sampling)?;
//!
//! let learning_rate = LearningRate { peak: 0.01, floor: 0.001, warmup_steps: 5, steps: 60 };
//! let options = Options { learning_rate, ..Options::default() };
//! let mut trainer = Trainer::new(Mlp::new(16), Alone::new(), options, 1);
//! for _ in 0..60 {
//!     trainer.step(&sampler.next_batch())?;
//! }
//! assert!(trainer.loss(&[sampler.next_batch()]) < 2.0);
//! # Ok::<(), Error>(())
//! ```
#![deny(unsafe_code)]

pub mod checkpoint;
mod config;
mod corpus;
mod data;
mod error;
mod exchange;
mod mlp;
mod model;
mod optimizer;
pub mod spmd;
mod synchronized;
#[cfg(test)]
mod testing;
pub mod threads;
mod trainer;
mod vector;

pub use config::Config;
pub use corpus::Corpus;
pub use data::{Batch, Position, Sampler, Sampling, VOCABULARY, validation_batches};
pub use error::{Error, Kind};
pub use exchange::{Alone, Exchange, Failure, Outcome};
pub use mlp::Mlp;
pub use model::{Initial, Model, Parameter, Sink, initial_values};
pub use optimizer::{AdamW, AdamWOptions, LearningRate, Pace, clip_scale, global_norm};
pub use synchronized::parameters as exchanged_parameters;
pub use trainer::{Gradients, Options, StepReport, Trainer};
