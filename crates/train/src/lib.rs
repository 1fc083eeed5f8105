//! The native trainer.
//!
//! An [`spmd::Executor`] trains a graph of crate `model`, either by a plan that cuts it, or as one of several
//! ranks that each have the whole model. [`spmd::GraphModel`] is a graph that reads text or images, with the
//! plan of such a rank. A [`Sampler`] divides the text of a [`Corpus`], or [`Images`], among ranks, and
//! [`checkpoint`] saves the training.
//!
//! ```
//! use thinwire_collective::Group;
//! use thinwire_train::spmd::{GraphModel, Executor, initial};
//! use thinwire_train::*;
//!
//! let text = b"she sells sea shells by the sea shore. ".repeat(50);
//! let world = thinwire_wire::World::alone();
//! let sampling = Sampling { context: 16, global_batch: 8, unit: 1, world, seed: 1 };
//! let mut sampler = Sampler::new(Corpus::from_text(&text)?, sampling)?;
//!
//! let config = Config { context: 16, width: 16, layers: 1, heads: 2 };
//! let model = GraphModel::new(&thinwire_model::named(&config.name(), 8, 16)?, None)?;
//! let (training, plan) = (model.training(), model.plan(1));
//! let group = Group::new(thinwire_link::mem::alone());
//! let start = initial(&training.graph, 1);
//! let mut executor = Executor::new(training, &plan, group, &start, Default::default())?;
//!
//! let rate = LearningRate { peak: 0.02, floor: 0.002, warmup_steps: 5, steps: 60 };
//! for step in 0..60 {
//!     let inputs = model.micro_batches(&sampler.next_batch());
//!     let pace = Pace { learning_rate: rate.at(step), gradient_scale: 1.0 };
//!     executor.step(&inputs, pace, &AdamWOptions::default())?;
//! }
//! assert!(executor.evaluate(&model.micro_batches(&sampler.next_batch()))? < 2.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod adam;
mod batch;
pub mod checkpoint;
mod config;
mod corpus;
mod data;
mod dataset;
mod error;
pub mod gnn;
pub mod images;
mod optimizer;
pub mod session;
pub mod spmd;
#[cfg(test)]
mod testing;
mod vector;

pub use adam::Adam;
pub use batch::{Batch, Windows};
pub use config::Config;
pub use corpus::Corpus;
pub use data::{
    Position, Sampler, Sampling, VOCABULARY, rows, validation_batches, whole_validation_batches,
};
pub use dataset::Dataset;
pub use error::{Error, Kind};
pub use images::Images;
pub use optimizer::{AdamW, Gradients, LearningRate, Pace, Parameter, clip_scale, global_norm};
pub use spmd::kernel::with_threads;
pub use thinwire_update::AdamWOptions;
