//! Rows by id: sources, de-duplication, and a cache with its policies.
//!
//! The crate serves both embedding rows, which change on a server, and frozen features of vertices. A batch
//! has ids in any order and with repetitions. Rows in a [`Cache`] are copied from there; the others are
//! requested from a [`Source`], once each and in ascending order. Rows are bytes in a [`Format`]. There are
//! no sockets, threads or clock; only [`Frozen`] reads files.
//!
//! | | |
//! |---|---|
//! | [`Unique`] | rows of a batch, each once; scatter of their values, sums of their gradients |
//! | [`Cache`], [`Lookup`] | rows kept in bounded memory; a batch on its way through |
//! | [`Policy`] | decision which rows are kept: [`Lru`], [`Sieve`], [`Foreseen`] |
//! | [`belady`], [`by_frequency`] | bounds on the hits of a [`Trace`] |
//!
//! The laws of the cache are in `cache.rs`; `tests/laws` checks them for every policy.
//!
//! ```
//! use thinwire_rows::{Cache, Frozen, Lookup, SLOT_BYTES, Sieve};
//!
//! let features = Frozen::in_memory(vec![10, 11, 20, 21, 30, 31], 2)?;
//! let mut cache = Cache::new(2, 2 * (2 + SLOT_BYTES as u64), Sieve::new);
//! let (mut lookup, mut out) = (Lookup::new(), [0; 6]);
//! cache.read(&features, &[2, 0, 2], &mut lookup, &mut out)?;
//! assert_eq!(out, [30, 31, 10, 11, 30, 31]);
//! cache.read(&features, &[0, 1, 2], &mut lookup, &mut out)?;
//! assert_eq!(out, [10, 11, 20, 21, 30, 31]);
//! assert_eq!((cache.hits().hits, cache.hits().misses), (2, 3));
//! # Ok::<(), thinwire_rows::Error>(())
//! ```
#![forbid(unsafe_code)]

mod cache;
mod error;
mod format;
mod frozen;
mod index;
mod lookup;
mod mix;
mod policy;
mod slots;
mod sort;
mod source;
mod trace;
mod unique;

pub use cache::{Cache, Hits, SLOT_BYTES};
pub use error::{Error, Kind};
pub use format::Format;
pub use frozen::Frozen;
pub use lookup::Lookup;
pub use policy::{Foreseen, Lru, Policy, Sieve};
pub use source::Source;
pub use trace::{Start, Trace, belady, by_frequency};
pub use unique::Unique;
