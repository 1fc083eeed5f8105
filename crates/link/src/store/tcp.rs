//! The store of ranks on several hosts: a [`Server`] inside rank 0 or the launcher, and one
//! [`Client`] per rank. Everything after the handshake is sealed.

mod client;
mod server;

pub use client::Client;
pub use server::Server;
