//! Snapshots of a job's tables in a folder, to go on from with any number of servers.
//!
//! A snapshot is a folder `snapshot-000012` with one file `shard-00003.safetensors` per shard and a
//! `manifest.json`, which comes last and holds the definition, the frontier, and length and checksum of every
//! file. Servers write into a folder of another name, which is renamed when it is whole.
//!
//! Laws: what is loaded is what was captured, bit for bit, whatever the number of shards, or there is an error
//! that names the file; a snapshot that is whole is never written to.

mod draft;
mod image;
mod load;
mod manifest;
mod shard_file;
mod task;

pub use draft::Draft;
pub use load::Snapshot;
pub use task::{Captured, Task};

#[cfg(test)]
mod tests;
