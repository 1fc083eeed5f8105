//! A training step as a value.
//!
//! A [`Plan`] determines on which ranks every operator of a model is computed, and when. From it, [`program`]
//! derives the [`Program`] of one rank: the instructions of a step with every collective and message, before
//! anything runs. The planner and the report count the program's bytes, and the executor of crate
//! `train` runs the program. There is no I/O, no threads, and no clock.
//!
//! ```
//! use thinwire_model::{backward, named};
//! use thinwire_program::{Plan, program};
//! use thinwire_wire::Rank;
//!
//! let graph = named("mlp", 4, 1).unwrap();
//! let training = backward(&graph).unwrap();
//! let program = program(&training, &Plan::alone(&graph), Rank(0)).unwrap();
//! assert_eq!(program.sent_bytes(), 0, "one rank has nobody to send anything to");
//! ```
#![forbid(unsafe_code)]

pub mod bytes;
mod coding;
mod collective;
mod derive;
mod error;
pub mod file;
mod layout;
pub mod pipeline;
mod plan;
mod program;

pub use bytes::StepBytes;
pub use coding::Coding;
pub use collective::{Encoding, Phase, Rearrange, Transfer, Transport, summation};
pub use derive::{derive, insert_frees, program};
pub use error::{Error, Kind as ErrorKind};
pub use file::PlanFile;
pub use layout::{Assignment, End, MESH_DIMENSIONS, Mesh, mesh_dimension, parts_of};
pub use plan::{BlockPlan, MeshDim, Plan, Sharding, Share, counted, devices};
pub use program::{Convert, Held, Instruction, Message, Owner, Parameter, Program, Slot, freed};
