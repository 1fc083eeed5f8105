//! Laws of sampling.

mod blocks;
mod chances;
