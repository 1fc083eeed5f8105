//! The executor: runs any plan of any model, without autodiff.
//!
//! Crate `model` has derived the gradients as nodes, so a step is one list of nodes. A plan determines
//! where each node is computed, and crate `program` derives from the plan a list of instructions for one
//! rank, the program. So all transfers are known before anything runs. An [`Executor`] runs the program.
//!
//! Law: under every plan, a step equals a step of one rank, within the precision of f32.

mod async_exchanges;
mod checkpoint;
mod detached;
mod executor;
mod graph_model;
mod images;
pub mod kernel;
mod modality;
mod optimizer;
mod probe;
mod slots;
mod snapshot;
mod speed;
mod start;
pub(crate) mod strided;
mod text;
mod value;

use crate::error::{Error, Kind};

pub use detached::DetachedReplica;
pub use executor::{Agreed, Codecs, ExchangeOptions, Executor, Handover, Remote, Times, Went};
pub use graph_model::{GraphModel, Sampled};
pub use images::ImageInputs;
pub use modality::Modality;
pub use probe::Probe;
pub use snapshot::Snapshot;
pub use speed::{Chore, Speed, Timed};
pub use start::{Start, initial, part, zeros};
pub use text::{Inputs, Text};
pub use value::Value;

fn invalid(text: String) -> Error {
    Error::new(Kind::Invalid, text)
}
