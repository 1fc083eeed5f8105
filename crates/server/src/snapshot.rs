//! Snapshots of a job's tables in a folder, which any number of servers can restore.
//!
//! A snapshot is a folder `snapshot-000012` with one file `shard-00003.safetensors` per shard and a
//! `manifest.json`, which is written last and holds the definition, the frontier, and length and checksum of every
//! file. Servers write a draft, a folder of another name, which is renamed when it is complete.
//!
//! Laws: the loaded tables equal the captured ones bit for bit, whatever the number of shards, or an error names
//! the file; a complete snapshot is never written to.
//!
//! A job may also begin with the values of a [`Checkpoint`], a plain safetensors file: both are an [`Origin`].

mod checkpoint;
mod draft;
mod image;
mod load;
mod manifest;
mod origin;
mod shard_file;
mod task;
mod tensor_file;

pub use checkpoint::Checkpoint;
pub use draft::Draft;
pub(crate) use image::Image;
pub use load::Snapshot;
pub(crate) use load::{number_of, snapshot_folder};
pub(crate) use manifest::Manifest;
pub use origin::Origin;
pub(crate) use shard_file::Contents;
pub use task::{Captured, Task};

#[cfg(test)]
mod tests;
