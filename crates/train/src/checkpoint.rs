//! Training frozen in files, to continue bit for bit.
//!
//! A checkpoint is a folder `step-000123`, in a folder or in a bucket of an object store: `manifest.json`, `model.safetensors` (the parameters, as
//! any tool reads them), `optimizer.safetensors`, and one `exchange-RANK.safetensors` per rank with
//! what the exchange carries over between steps. Under a plan for the whole model it has one
//! `shard-RANK.safetensors` per rank instead. It is written under another name and renamed when
//! it is whole (in a bucket, its manifest comes last): rank 0 calls [`Draft::create`], the others [`Draft::open`] once it has; every rank
//! writes its exchange, rank 0 also model and optimiser; when all have, rank 0 commits. The
//! manifest holds length and checksum of each file. Laws: what is loaded is what was saved, bit for
//! bit, or there is an error that names the file; two saves of one state are equal byte by byte.

mod files;
mod load;
mod manifest;
mod shards;

pub use files::{Tensors, commit, part_name, seal, write_exchange, write_shard, write_whole};
pub(crate) use load::tensors_of;
pub use load::{Checkpoint, resolve};
pub use manifest::Progress;
pub use shards::Wanted;
pub use thinwire_checkpoint::{Draft, latest};

#[cfg(test)]
mod tests;
