//! Laws of sampling.

mod blocks;
mod chances;
mod walks;
