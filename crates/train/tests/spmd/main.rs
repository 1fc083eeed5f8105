//! Under every plan a step is what it is on one rank.

mod activations;
mod checkpoint;
mod codecs;
mod files;
mod golden;
mod kernels;
mod laws;
mod mixtures;
mod models;
mod plans;
mod policies;
mod ranks;
#[path = "../../../model/tests/reference/mod.rs"]
mod reference;
#[path = "../../../model/tests/laws/samples.rs"]
mod samples;
#[path = "../../../model/tests/laws/shards.rs"]
#[expect(dead_code, reason = "here tensors are only cut")]
mod shards;
mod texts;
mod transfers;
mod uneven;
