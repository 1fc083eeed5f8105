//! Builders of models, one file per family.

pub mod gpt;

pub use gpt::Gpt;
