//! Rounds: ranks train copies of a model on their own and exchange parameters every few steps.
//!
//! A round belongs to a fragment of the parameters. It begins after one step and ends after the same or
//! a later one, so that the exchange overlaps with the steps between; the rounds of different fragments
//! may overlap. The [`Timetable`], a pure function, gives the beginnings and ends of rounds; an
//! [`Averager`] carries them out.
//!
//! - **`local`, `diloco`, `sma`**: every rank keeps the common parameters. A round sends the difference
//!   between them and the rank's own, an outer optimiser makes a step with the average difference, and
//!   each rank draws its own parameters towards the result. Stich, "Local SGD Converges Fast and
//!   Communicates Little"; Douillard et al., "DiLoCo: Distributed Low-Communication Training of
//!   Language Models", algorithm 1, and "Streaming DiLoCo with overlapping communication", section 2;
//!   Koliousis et al., "CROSSBOW: Scaling Deep Learning with Small Batch Sizes on Multi-GPU Servers",
//!   section 3, without momentum of the mean.
//! - **`pair`**: each rank averages its parameters with those of one other rank, and no rank waits.
//!   Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent", with partners
//!   drawn from a common seed ([`partner`]).
//! - **`delayed`**: gradients are averaged in every step and applied some steps later ([`Delayed`]).
//!
//! Laws: a round of `sma` or `pair` keeps the mean of all ranks' parameters, up to rounding (`pair`:
//! once the round has ended on both sides); `local` equals `diloco` with SGD of rate 1 as outer
//! optimiser; `delayed:0` equals training by steps, bit for bit. If any rank has a number that is not
//! finite, a round changes neither the common parameters nor residuals.

mod averager;
mod delayed;
mod fragment;
mod mode;
mod pairs;
mod replica;
mod rows;
mod timetable;

pub use averager::{Averager, AveragerState};
pub use delayed::{Delayed, Due};
pub use mode::{DiLoCo, InvalidMode, Mode};
pub use pairs::partner;
pub use replica::{Replica, RoundRecord};
pub use rows::DelayedRows;
pub use timetable::{Action, Round, Timetable};
