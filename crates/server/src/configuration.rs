//! Configuration of a job's shards: what its tables are, and which servers have them.

mod definition;
mod hex;
mod request;
mod state;

pub use definition::{Definition, Layout, TableDefinition};
pub use request::ViewRequest;
pub use state::JobState;
