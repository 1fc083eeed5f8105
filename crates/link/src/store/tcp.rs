//! The store of ranks on several hosts: a [`Server`] inside rank 0 or the launcher, and one
//! [`Client`] per rank. Everything after the handshake is sealed.

mod client;
pub(crate) mod message;
mod server;
pub(crate) mod visitor;

pub use client::Client;
pub use server::Server;
pub(crate) use server::listen;
