//! The executor: any plan of any model, without autodiff.
//!
//! `model` has derived the gradients as nodes, so a step is one list of nodes. A [`Plan`] says where
//! each works. [`program`] makes of it what one rank does, as a value: what is sent is known before
//! anything runs. A [`Machine`] runs it.
//!
//! Law: under every plan a step is what it is on one rank, within the precision of f32.

mod assignment;
mod carriage;
mod derive;
mod derived;
mod file;
mod frozen;
pub mod kernel;
mod leg;
mod liveness;
mod machine;
mod mesh;
mod optimizer;
pub mod order;
mod plan;
mod probe;
mod program;
mod reform;
mod residuals;
mod slots;
mod speed;
mod start;
mod strided;
mod text;
mod transfer;
mod units;
mod value;
mod wires;

pub use carriage::Carriage;
pub use derive::program;
pub use derived::{Derived, Sampled};
pub use leg::Leg;
pub use machine::{Agreed, Inputs, Machine, Times, Went};
pub use mesh::Mesh;
pub use order::{Pass, Turn};
pub use plan::{BlockPlan, MeshDim, Plan, Sharding, Share};
pub use probe::Probe;
pub use program::{Convert, Held, Instruction, Message, Owner, Parameter, Program, Slot};
pub use reform::Reform;
pub use speed::{Chore, Speed, Timed};
pub use start::{Start, initial};
pub use text::Text;
pub use transfer::Transfer;
pub use value::Value;
