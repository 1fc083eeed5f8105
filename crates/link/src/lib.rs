//! Bytes between two ranks.
//!
//! A [`Link`] holds all connections of one rank. One thread drives it, and it blocks only in
//! [`Link::wait`]. It asks its [`Port`], the engine above, for the bytes to send and for the place to
//! receive into, so that payloads are never copied on their way. [`tcp`] connects ranks by a full mesh
//! of authenticated connections; ranks find each other through a rendezvous [`store`]. [`mem`] is the
//! same link between threads of one process. Data between ranks of one host goes through memory that
//! they share. The store is one of the [nodes](endpoint::Node) that clients reach over the same
//! handshake.
//!
//! ```
//! use std::time::Duration;
//! use thinwire_link::{Error, Link, Place, Port, mem};
//! use thinwire_wire::{Header, Kind, Rank, Tag};
//!
//! /// Sends one message and receives one.
//! struct Letters { sent: Vec<u8>, received: Vec<u8>, arrived: bool }
//!
//! impl Port for Letters {
//!     fn outgoing(&self, _to: Rank, _tag: &Tag) -> &[u8] { &self.sent }
//!     fn sent(&mut self, _to: Rank, _tag: &Tag) {}
//!     fn incoming(&mut self, _from: Rank, header: &Header) -> Result<Place<'_>, Error> {
//!         self.received.resize(header.length as usize, 0);
//!         Ok(Place::Here(&mut self.received))
//!     }
//!     fn received(&mut self, _from: Rank, _header: &Header) -> Result<(), Error> {
//!         self.arrived = true;
//!         Ok(())
//!     }
//! }
//!
//! let ranks = mem::mesh(2).into_iter().map(|mut link| {
//!     std::thread::spawn(move || -> Result<Vec<u8>, Error> {
//!         let me = link.world().rank();
//!         let sent = format!("hello from {me}").into_bytes();
//!         let tag = Tag { step: 0, tensor: 0, message: 0 };
//!         link.send(link.world().after(1), Header::new(Kind::Data, 0, tag, sent.len()));
//!         let mut port = Letters { sent, received: Vec::new(), arrived: false };
//!         while !port.arrived {
//!             if !link.progress(&mut port)? {
//!                 link.wait(Duration::from_secs(5))?;
//!             }
//!         }
//!         link.finish(Duration::from_secs(5))?;
//!         Ok(port.received)
//!     })
//! });
//! let texts: Vec<_> = ranks.collect::<Vec<_>>().into_iter()
//!     .map(|rank| String::from_utf8(rank.join().unwrap().unwrap()).unwrap())
//!     .collect();
//! assert_eq!(texts, ["hello from rank 1", "hello from rank 0"]);
//! ```
#![deny(unsafe_code)]

mod backoff;
mod bandwidth;
mod deadline;
pub mod descriptors;
mod duplex;
pub mod durable;
pub mod endpoint;
mod error;
pub mod forks;
mod gate;
mod limiter;
pub mod mem;
mod poison;
mod port;
mod secure;
mod shared_port;
mod shm;
pub mod store;
pub mod tcp;
mod unauthenticated_peers;
mod warning;

pub use backoff::Backoff;
pub use bandwidth::{Bandwidth, InvalidBandwidth};
pub use deadline::Deadline;
pub use error::{Error, Kind, unreadable};
pub use limiter::Limiter;
pub use port::{Counters, Place, Port};
pub use secure::Token;
pub use tcp::{Link, Waker};
pub use warning::log_warnings_by;

/// State machines that read bytes from outside, without their sockets, for fuzz targets; not part of
/// the public interface.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::endpoint::dispatcher::{Dispatcher, TURN_MESSAGES_MAX};
    pub use crate::endpoint::messages::Messages;
    pub use crate::secure::{Handshake, Preamble, Role, Session};
    pub use crate::shared_port::address::{Address, Key, PREFACE_BYTES};
    pub use crate::store::message::{MESSAGE_BYTES_MAX, Request, parse_reply};
}
