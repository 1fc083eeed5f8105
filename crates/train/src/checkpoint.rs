//! State of a training in files, from which it continues bit for bit.
//!
//! A checkpoint is a folder `step-000123`, in a folder or in a bucket of an object store. It contains
//! `manifest.json`, `model.safetensors` (the parameters, in a form that any tool reads),
//! `optimizer.safetensors`, and one `exchange-RANK.safetensors` per rank with the state that the rank's
//! exchange keeps between steps. Under a plan for the whole model, it has one `shard-RANK.safetensors` per
//! rank instead of model and optimiser. It is written under another name and renamed when it is complete (in
//! a bucket, its manifest is written last). First rank 0 calls [`Draft::create`]; then the others call
//! [`Draft::open`]. Every rank writes its exchange, and rank 0 also model and optimiser; when all have done
//! so, rank 0 commits. The manifest has the length and checksum of each file. Laws: loading gives the saved
//! state, bit for bit, or an error that names the file; two checkpoints of the same state are equal byte by
//! byte.

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
