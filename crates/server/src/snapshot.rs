//! Snapshots of a job's tables in a folder or a bucket, which any number of servers can restore.
//!
//! A snapshot is a folder such as `snapshot-000012` with one file `shard-00003.safetensors` per shard and a
//! `manifest.json`. The manifest is written last, and contains the definition, the frontier, and the length
//! and checksum of every file. Servers write to a draft, a folder with another name that is renamed once it
//! is complete; in a bucket the manifest names the folder of the files.
//!
//! Laws: loaded tables equal the captured ones bit for bit, whatever the number of shards, or an error names
//! the damaged file; a complete snapshot is never modified.
//!
//! A job can also begin with a [`Checkpoint`], a plain safetensors file; both are an [`Origin`].

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
pub(crate) use manifest::Manifest;
pub use origin::Origin;
pub(crate) use shard_file::Contents;
pub use task::{Captured, Task};

#[cfg(test)]
mod tests;
