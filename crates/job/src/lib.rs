//! The rank and world of this process in a job, and the rendezvous of the job's ranks.
//!
//! A launcher gives rank and world in environment variables; a person gives them in flags or arguments.
//! [`find`] makes a [`Place`] from both. [`Meeting`] then connects to the job's rendezvous store, or
//! opens it as rank 0, and makes links to all other ranks. Commands and bindings share this code, so a
//! job behaves the same however its ranks were started.
//!
//! ```
//! use std::thread;
//! use std::time::Duration;
//! use thinwire_job::{Overrides, Host, Meeting, Settings, find, open, process, token};
//!
//! // Somebody hosts the store; without this, rank 0 does.
//! let (store, coordinator) = open("127.0.0.1", 0, "secret")?;
//!
//! let ranks = [0, 1].map(|rank| {
//!     let overrides = Overrides {
//!         rank: Some(rank),
//!         world: Some(2),
//!         coordinator: Some(coordinator.clone()),
//!         host: Host::Launcher,
//!         token: Some("secret".to_owned()),
//!         ..Overrides::default()
//!     };
//!     thread::spawn(move || -> Result<String, thinwire_job::Error> {
//!         let place = find(&overrides, &process)?.expect("it was given");
//!         let token = token(&overrides, &place.coordinator, &process)?;
//!         let meeting = Meeting::new(&place, &token, &Settings::default())?;
//!         let mut link = meeting.link()?;
//!         link.finish(Duration::from_secs(5))?;
//!         Ok(format!("{} of {} has met the others", meeting.world().rank(), place.world))
//!     })
//! });
//! for (rank, thread) in ranks.into_iter().enumerate() {
//!     let said = thread.join().expect("no rank panics")?;
//!     assert_eq!(said, format!("rank {rank} of 2 has met the others"));
//! }
//! drop(store);
//! # Ok::<(), thinwire_job::Error>(())
//! ```
#![forbid(unsafe_code)]

mod address;
mod decline;
pub mod elastic;
mod environment;
mod error;
mod heartbeat;
mod identity;
mod interrupt;
mod meeting;
mod overrides;
mod place;
mod port;
mod rendezvous;
mod sharing;
mod slurm;
pub mod supervisor;

/// State machine that reads bytes from outside, without its sockets, for fuzz targets. It is not part of the
/// public interface.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::elastic::coordinator::new_coordinator as coordinator;
    pub use crate::elastic::envelope::check_reply;
}

pub use address::{PORT, is_loopback, resolved, seen_by_others};
pub use decline::decline;
pub use environment::{Variables, find, local_rank, local_ranks, process};
pub use error::{Error, Kind};
pub use heartbeat::{heartbeat_timeout, silence};
pub use interrupt::Interrupt;
pub use meeting::{Meeting, PrefixedStore, Settings};
pub use overrides::{Form, Overrides};
pub use place::{Host, Place, Source};
pub use port::{VARIABLE as PORT_VARIABLE, port};
pub use rendezvous::{
    TOKEN_BYTES_MIN, fresh_token, open, open_behind, secret, serve, serve_behind, token,
    unprotected, warning,
};
pub use sharing::shared_memory;
