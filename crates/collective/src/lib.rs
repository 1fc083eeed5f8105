//! Runs schedules over links: all-reduce, reduce-scatter, all-gather, broadcast, barrier.
//!
//! A [`Program`] is a schedule bound to a codec. A [`Run`] is one execution of it on one buffer. A
//! [`Group`] drives any number of runs over one link, in one thread and without blocking: it moves the
//! bytes that sockets take and give. In between it encodes and merges, lowest task first, so the
//! partitions of a tensor pipeline through encode, wire and decode. The functions of [`operations`] are
//! plain blocking calls on top of it. A [`Driver`] gives a group a thread of its own.
//!
//! Law: after an all-reduce every rank holds the same bits, whatever the codec, because every rank
//! decodes the same bytes; and messages are matched by tag, never by arrival order.
//!
//! ```
//! use thinwire_collective::{Group, Options, all_reduce};
//!
//! let sums: Vec<f32> = std::thread::scope(|scope| {
//!     let ranks = thinwire_link::mem::mesh(2).into_iter().map(|link| {
//!         scope.spawn(move || {
//!             let mut group = Group::new(link);
//!             let mut values = [1.5, 2.0, group.world().rank().0 as f32];
//!             all_reduce(&mut group, &mut values, &Options::default()).unwrap();
//!             values[2]
//!         })
//!     });
//!     ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
//! });
//! assert_eq!(sums, [1.0, 1.0]);
//! ```
#![forbid(unsafe_code)]

mod buffer;
mod driver;
mod error;
mod group;
mod inbox;
pub mod operations;
mod program;
mod replay;
mod run;
pub mod start;

pub use buffer::{Buffer, Element, Number};
pub use driver::{Driver, FailedRun, Next, Stop, Then, Wait};
pub use error::{Error, Kind};
pub use group::Group;
pub use operations::{
    all_gather, all_gather_bytes, all_reduce, all_reduce_many, all_to_all, barrier, broadcast,
    broadcast_bytes, hand_over, reduce_scatter,
};
pub use program::Program;
#[doc(hidden)]
pub use replay::{Replay, replay};
pub use run::{Address, Asked, Check, Run, Times};
pub use start::Options;
