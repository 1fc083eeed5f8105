//! Parameter server: sharded, replicated tables of rows, and the servers and clients of a job.
//!
//! The core uses no sockets, threads or clock. [`cut`] divides tables into shards, [`Placement`] assigns
//! shards to servers, and [`View::next`] decides the servers of one shard. A [`Shard`] is the state
//! machine of one copy of a shard: it orders pushes, replicates them and enforces the bound on
//! staleness. [`Tables`] stores the rows of the copy. The caller delivers events, performs the returned
//! actions in order, and sends a tick at `deadline()`.
//!
//! Around the core, [`Configuration`] runs in the process of an elastic job's coordinator and decides views.
//! A [`Server`] is a process of that job. One of its threads drives its shards and has all its connections,
//! to clients, peers and the coordinator; one is its membership; and one writes snapshots. [`wire`] defines
//! the messages; the core repeats lost ones. Rows beyond the memory limit in [`Limits`] are kept on disk,
//! which changes no answer.
//!
//! # One push
//!
//! | | worker | primary | backups |
//! |--:|---|---|---|
//! | 1 | sends a push with the next number | holds it while its worker is too far ahead, or under `sync` until all pushes of its step have arrived; their sum is one write | |
//! | 2 | | appends the write to its log and forwards it | append it and report their last entry |
//! | 3 | | applies and acknowledges it once all replicas have it | apply it with the next message |
//! | 4 | without an answer, sends it again, possibly to a new primary | recognises its number in the log | |
//!
//! # Laws
//!
//! 1. An acknowledged push is in the state of every later primary, as long as a replica of each view
//!    survives into the next one.
//! 2. A push is applied at most once.
//! 3. When a worker gets an answer, its lead over the slowest worker is at most what [`Consistency`]
//!    allows; when its push is applied, the lead is at most one step more. Workers never wait for each other
//!    in a circle.
//! 4. When faults end and pushes stop, all replicas are equal, bit by bit.
//!
//! `tests/laws` checks them over schedules of faults.
//!
//! # Why they hold
//!
//! Every acknowledged push is on *all* replicas of the view, and the replicas of a view come from those of
//! the previous view. A primary that was cut off cannot commit: it waits for a replica that has entered a
//! later view and refuses its messages. Commits wait for a learner before it is reported as ready, so it
//! lacks nothing when it becomes a replica. This is PacificA (Lin et al., "PacificA: Replication in
//! Log-Based Distributed Storage Systems", MSR-TR-2008-25), with the coordinator of an elastic job as its
//! configuration manager. The interface is that of Li et al., "Scaling Distributed Machine Learning with
//! the Parameter Server" (OSDI 2014).
//!
//! ```
//! use std::time::Duration;
//! use thinwire_member::Id;
//! use thinwire_server::{Action, Consistency, Event, Options, Pace, Push, Shard, View, Workers};
//!
//! let (now, server, worker) = (Duration::ZERO, Id(1), Id(9));
//! let mut shard = Shard::new(server, Options::new(Consistency::Async));
//! shard.on(Event::View(View::found(1, &[server])), now);
//! shard.on(Event::Workers(Workers { version: 1, ids: vec![worker] }), now);
//!
//! let push = Push { client: worker, number: 1, step: 1, parts: Vec::new() };
//! let actions = shard.on(Event::Push(push.clone()), now);
//! let pace = Pace { step: 1, pushing: 1 };
//! let acknowledged = Action::Acknowledge { client: worker, number: 1, pace };
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
mod frontier;
#[doc(hidden)]
pub mod fuzzing;
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
mod table;
mod values;
mod view;
pub mod wire;
mod write;

pub use client::{Caching, Client, Gradient, Pulling, Reader, take_snapshot};
pub use clocks::{Clocks, Pace, STALENESS_MAX, Staleness};
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
pub use reason::{Reason, Request, Slowest};
pub use server::{Server, ServerOptions};
pub use service::{ANSWER_BYTES_MAX, Limits, Stats};
pub use shard::{Action, Event, Options, Order, Shard};
pub use snapshot::{Checkpoint, Origin, Snapshot};
pub use table::{Initial, InvalidInitial, MemoryLimit, SchemaError, Table, TableOptions, Tables};
pub use thinwire_rows::{Format, Hits};
pub use values::Values;
pub use view::{Change, Lost, View};
pub use write::{Entry, Part, Pull, Push, PushName, Workers, Write};
