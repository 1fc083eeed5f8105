//! Parameter server: shards that replicate, fail over and move, and the servers that have them.
//!
//! The core is pure: no sockets, threads or clock. [`cut`] makes shards of tables, [`Placement`] gives them
//! servers, and [`View::next`] is the coordinator's decision about one of them. A [`Shard`] is the state
//! machine of one copy: it orders pushes, replicates them and holds the bound on staleness. [`Tables`] are
//! the copy's rows. The edge delivers events, performs actions in their order, and calls with a tick at
//! `deadline()`.
//!
//! Around it, [`Configuration`] decides beside the coordinator of an elastic job. A [`Server`] is a process
//! of that job: one thread drives its shards and answers clients, one per peer writes, and one hears the
//! coordinator. [`wire`] has the messages. Everything that they lose is repeated by the core. Within [`Limits`]
//! rows are kept on disk beyond a limit of memory, and no answer depends on it.
//!
//! # One push
//!
//! | | worker | primary | backups |
//! |--:|---|---|---|
//! | 1 | sends a push with the next number | lets it wait while its worker is too far ahead; in synchronous mode until all pushes of its step are there, whose sum is one write | |
//! | 2 | | appends the write to its log and forwards it | append, and say how far they have come |
//! | 3 | | applies it and acknowledges, once all have it | apply it with the next message |
//! | 4 | without an answer, sends it again, also to another primary | knows the numbers in its log | |
//!
//! # Laws
//!
//! 1. An acknowledged push is in the state of every later primary, as long as a replica of each view
//!    lives into the next one.
//! 2. A push is applied at most once.
//! 3. When a worker is answered it is at most as many steps ahead of the slowest as [`Consistency`]
//!    allows, and one more when its push is applied. Workers never wait for each other in a circle.
//! 4. When faults end and pushes stop, all replicas are equal, bit by bit.
//!
//! `tests/laws` holds them over schedules of faults.
//!
//! # Why they hold
//!
//! Every acknowledged push is on *all* replicas of the view, and the replicas of a view come from those of
//! the view before. A primary that is cut off waits in vain for a replica that has gone on to a later
//! view and refuses. A learner delays commits before it is reported as ready, so it lacks nothing once it
//! counts as a replica. This is PacificA (Lin et al., "PacificA: Replication in Log-Based Distributed
//! Storage Systems", MSR-TR-2008-25), with the coordinator of an elastic job as its configuration
//! manager. The interface is that of Li et al., "Scaling Distributed Machine Learning with the Parameter
//! Server" (OSDI 2014).
//!
//! ```
//! use std::time::Duration;
//! use thinwire_member::Id;
//! use thinwire_server::{Action, Consistency, Event, Options, Push, Shard, View, Workers};
//!
//! let (now, server, worker) = (Duration::ZERO, Id(1), Id(9));
//! let mut shard = Shard::new(server, Options::new(Consistency::Async));
//! shard.on(Event::View(View::found(1, &[server])), now);
//! shard.on(Event::Workers(Workers { version: 1, ids: vec![worker] }), now);
//!
//! let push = Push { client: worker, number: 1, step: 1, parts: Vec::new() };
//! let actions = shard.on(Event::Push(push.clone()), now);
//! let acknowledged = Action::Acknowledge { client: worker, number: 1, step: 1 };
//! assert!(matches!(actions[0], Action::Apply(_)));
//! assert_eq!(actions[1..], [acknowledged.clone()]);
//! assert_eq!(shard.on(Event::Push(push), now), [acknowledged], "applied once");
//! ```
#![forbid(unsafe_code)]

mod client;
mod clocks;
mod configuration;
mod consistency;
mod cut;
mod error;
mod exposed;
mod frontier;
mod hex;
mod log;
mod mailbox;
mod message;
mod peers;
mod placement;
mod reason;
mod reports;
mod server;
mod service;
mod shard;
mod snapshot;
mod staleness;
mod table;
mod values;
mod view;
pub mod wire;
mod write;

/// State machines and files that read bytes from outside, without sockets and disk, for fuzz targets; no part of
/// the interface.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::exposed::{decide, deliver, letter, manifest, shard_file, snapshot_number};
}

pub use client::{Caching, Client, Gradient, Pulling, Reader, take_snapshot};
pub use clocks::Clocks;
pub use configuration::{
    Configuration, Definition, JobState, Layout, SnapshotStage, SnapshotState, TableDefinition,
    ViewRequest,
};
pub use consistency::{Consistency, InvalidConsistency};
pub use cut::{Extent, Piece, cut};
pub use error::{Error, Kind};
pub use frontier::Frontier;
pub use message::Message;
pub use placement::{Placement, Share};
pub use reason::{Reason, Request};
pub use server::{Server, ServerOptions};
pub use service::{ANSWER_BYTES_MAX, Figures, Limits};
pub use shard::{Action, Event, Options, Order, Shard};
pub use snapshot::{Checkpoint, Origin, Snapshot};
pub use staleness::{STALENESS_MAX, Staleness};
pub use table::{Initial, InvalidInitial, MemoryLimit, Misfit, Table, TableOptions, Tables};
pub use thinwire_rows::{Format, Hits};
pub use values::Values;
pub use view::{Change, Lost, View};
pub use write::{Entry, Part, Pull, Push, PushName, Workers, Write};
