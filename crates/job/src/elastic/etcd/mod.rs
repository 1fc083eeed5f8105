//! The state of a coordinator in etcd, and which process leads.
//!
//! Two keys belong to a job: `/thinwire/JOB/leader` has the address of the coordinator and is bound to a
//! lease, `/thinwire/JOB/state` its state. The revision at which the leader's key was created is a fencing
//! token. Law: a state is written only in a transaction that finds that the key is still the writer's. A
//! coordinator that was stopped for longer than its lease can therefore save nothing, and so decide nothing.

mod answer;
mod client;
mod directory;
mod leadership;
#[cfg(feature = "etcd")]
mod transport;
#[cfg(not(feature = "etcd"))]
#[path = "unavailable.rs"]
mod transport;

pub use client::Failure;
pub use directory::{Directory, Leader, address, is_refused, locate};
pub use leadership::{Leadership, Novice, Upkeep};
