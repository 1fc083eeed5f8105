//! Laws of sampling.

mod blocks;
mod chances;
mod layers;
mod walks;
