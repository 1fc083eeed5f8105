//! Sockets of an endpoint that connect to other nodes, without blocking its thread.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use crate::Waker;
use crate::endpoint::ClientId;

/// Addresses of a host, or the error with which the search for them has failed.
pub type Resolved = io::Result<VecDeque<SocketAddr>>;

/// Function that returns the addresses of the node that a text names; it may block.
pub type Resolve = fn(&str) -> io::Result<Vec<SocketAddr>>;

/// Returns the addresses to which the operating system resolves `host:port`.
pub fn system_addresses(name: &str) -> io::Result<Vec<SocketAddr>> {
    name.to_socket_addrs().map(Iterator::collect)
}

/// Resolver of names. Resolution may take long, so it has a thread of its own from the first name on.
#[derive(Debug)]
pub struct Resolver {
    resolve: Resolve,
    waker: Waker,
    /// Names for the thread, if it runs.
    names: Option<Sender<(ClientId, String)>>,
    sender: Sender<(ClientId, Resolved)>,
    resolved: Receiver<(ClientId, Resolved)>,
}

impl Resolver {
    /// Returns a resolver that calls `resolve`, and uses `waker` when a name is resolved.
    pub fn new(resolve: Resolve, waker: Waker) -> Resolver {
        let (sender, resolved) = channel();
        Resolver { resolve, waker, names: None, sender, resolved }
    }

    /// Begins to resolve a name. [`Resolver::take`] returns the addresses once they are known: at once if
    /// the name is an address and a port.
    pub fn resolve(&mut self, id: ClientId, address: String) {
        if let Ok(address) = address.parse() {
            return self.put(id, Ok(VecDeque::from([address])));
        }
        if self.names.is_none() {
            self.names = self.start();
        }
        // A thread that could not be started is tried again with the next attempt.
        if self.names.as_ref().is_none_or(|names| names.send((id, address)).is_err()) {
            self.put(id, Err(io::ErrorKind::Other.into()));
        }
    }

    /// Returns the addresses of a name, if one was resolved.
    pub fn take(&self) -> Option<(ClientId, Resolved)> {
        self.resolved.try_recv().ok()
    }

    fn put(&self, id: ClientId, resolved: Resolved) {
        // Both ends are here.
        let _ = self.sender.send((id, resolved));
    }

    fn start(&self) -> Option<Sender<(ClientId, String)>> {
        let (names, named) = channel::<(ClientId, String)>();
        let (resolve, resolved, waker) = (self.resolve, self.sender.clone(), self.waker.clone());
        let run = move || {
            for (id, name) in named {
                // The server may have ended.
                let _ = resolved.send((id, resolve(&name).map(VecDeque::from)));
                waker.wake();
            }
        };
        let thread = thread::Builder::new().name("thinwire names".to_owned());
        thread.spawn(run).ok().map(|_| names)
    }
}
