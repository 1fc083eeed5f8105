//! Pipelines: the order in which stages run their passes, and the time that the passes take.
//!
//! An order is a value, a list of passes per stage: the executor runs it and [`simulate`] times it. With
//! several chunks per stage, a micro-batch goes around the stages several times: chunk c of the pipeline is
//! on stage c modulo the stages.
//!
//! | schedule | idle, in passes forward and backward of a stage | micro-batches kept by stage i |
//! |---|---|---|
//! | GPipe | p−1 | m |
//! | 1F1B | p−1 | min(m, p−i) |
//! | interleaved, v chunks | (p−1)/v | at most p + (p−1)/v |
//! | zero-bubble | (p−1) · (f + b − w)/(f + b + w) | min(m, p) |
//!
//! with p stages, m micro-batches, and f, b and w the times of the forward pass, the gradient of inputs and
//! the gradient of weights.

mod check;
mod deal;
mod gpipe;
mod interleaved;
mod one_f_one_b;
mod pass;
mod schedule;
mod simulate;
mod zero_bubble;

pub use check::{check, defers_weights};
pub use deal::deal;
pub use pass::{Kind, Pass};
pub use schedule::Schedule;
pub use simulate::{Run, Stage, Timeline, simulate};
