//! Collective operations as values: the tasks of each rank, and the cost of running them.
//!
//! A [`Schedule`] is one rank's share of a collective operation: a DAG of [`Task`]s over five
//! primitives: encode, decode, merge, send and recv. It is a pure function of an [`Algorithm`], a
//! [`World`] and a [`Shape`], and everything else reads it: `collective` runs it over links, [`cost`]
//! predicts its time, [`simulate`] proves that it sums, [`verify`] proves that its dependencies are
//! complete, and its `Display` draws it. There is no I/O, no threads, no clock.
//!
//! ```
//! use thinwire_schedule::{Algorithm, Shape, all_reduce, simulate::{self, Encoding}, verify};
//! use thinwire_wire::World;
//!
//! let shape = Shape { length: 10, block: 1, partitions: 1 };
//! let schedules: Vec<_> = (0..2)
//!     .map(|rank| all_reduce(Algorithm::TwoShot, World::new(rank, 2).unwrap(), &shape))
//!     .collect();
//! assert_eq!(
//!     schedules[0].to_string(),
//!     "  0  encode  values[5..10] -> slot 0
//!   1  send    slot 0 -> rank 1 message 1       after 0
//!   2  recv    slot 1 <- rank 1 message 3
//!   3  recv    slot 2 <- rank 1 message 0
//!   4  merge   slot 2 -> values[0..5]           after 3
//!   5  encode  values[0..5] -> slot 3           after 4
//!   6  send    slot 3 -> rank 1 message 2       after 5
//!   7  decode  slot 1 -> values[5..10]          after 2 1, result
//!   8  decode  slot 3 -> values[0..5]           after 5, result
//! "
//! );
//!
//! let mut values = vec![vec![1.0; 10], vec![2.0; 10]];
//! verify(&schedules).unwrap();
//! simulate::run(&schedules, &mut values, Encoding::InPlace, 0).unwrap();
//! assert_eq!(values, vec![vec![3.0; 10]; 2]);
//! ```
//!
//! [`World`]: thinwire_wire::World
#![forbid(unsafe_code)]

mod algorithm;
mod all_gather;
mod broadcast;
mod builder;
pub mod closed_form;
mod cost;
mod draw;
mod estimate;
mod exchange;
mod gather;
mod halving;
mod hand_over;
mod hierarchical;
mod load;
mod packing;
mod preferred;
mod reduce_scatter;
mod ring;
mod ring_gather;
mod schedule;
mod shape;
pub mod simulate;
mod summation;
mod trees;
mod two_shot;
mod verify;

pub use algorithm::{Algorithm, UnknownAlgorithm, all_reduce};
pub use all_gather::all_gather;
pub use broadcast::broadcast;
pub use cost::{Cost, Levels, Speeds, cost, cost_in_units, cost_of, cost_of_trees};
pub use estimate::estimate;
pub use exchange::{all_to_all, recv, send};
pub use hand_over::{hand_over, hand_over_partitions};
pub use load::load_of;
pub use packing::Rates;
pub use preferred::{carries, partitions, preferred};
pub use reduce_scatter::reduce_scatter;
pub use schedule::{Operation, Schedule, Slot, Task};
pub use shape::Shape;
pub use summation::Summation;
pub use trees::Trees;
pub use verify::{Law, Violation, verify};
