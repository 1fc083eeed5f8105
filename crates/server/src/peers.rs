//! Connections of a server to the other servers, each with a thread that sends.

mod courier;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use thinwire_link::Token;
use thinwire_member::Id;

use crate::mailbox::Mailbox;
use courier::Courier;

/// Callback with the id of a peer that cannot be reached.
pub type Lost = Arc<dyn Fn(Id) + Send + Sync>;

/// Server as its peers see it, and how it reports lost peers.
#[derive(Clone)]
pub struct Own {
    /// Id of the server.
    pub id: Id,
    /// Fingerprint of the definition.
    pub definition: u64,
    /// The job's secret.
    pub token: Token,
    /// Called when a peer cannot be reached.
    pub lost: Lost,
}

/// Connections to the other servers; dropping this closes them.
pub struct Peers {
    own: Own,
    peers: BTreeMap<Id, Peer>,
    /// Threads of former peers that are still ending.
    ended: Vec<JoinHandle<()>>,
}

struct Peer {
    address: String,
    mailbox: Arc<Mailbox>,
    thread: JoinHandle<()>,
}

impl Peers {
    /// Creates a server without peers.
    pub fn new(own: Own) -> Peers {
        Peers { own, peers: BTreeMap::new(), ended: Vec::new() }
    }

    /// Connects to the servers at these addresses, and disconnects from all others. If the system refuses a
    /// thread for a peer, the next call tries again.
    pub fn renew(&mut self, addresses: &BTreeMap<Id, String>) {
        let stays = |id: &Id, peer: &Peer| addresses.get(id) == Some(&peer.address);
        let gone: Vec<Id> =
            self.peers.iter().filter(|(id, peer)| !stays(id, peer)).map(|(id, _)| *id).collect();
        gone.iter().for_each(|id| self.end(*id));
        self.ended.retain(|thread| !thread.is_finished());
        for (id, address) in addresses {
            if *id != self.own.id && !self.peers.contains_key(id) {
                self.begin(*id, address);
            }
        }
    }

    /// Returns the mailboxes of all peers.
    pub fn mailboxes(&self) -> BTreeMap<Id, Arc<Mailbox>> {
        self.peers.iter().map(|(id, peer)| (*id, Arc::clone(&peer.mailbox))).collect()
    }

    fn begin(&mut self, id: Id, address: &str) {
        let mailbox = Arc::new(Mailbox::default());
        let (own, address) = (self.own.clone(), address.to_owned());
        let courier = Courier::new(own, (id, address.clone()), Arc::clone(&mailbox));
        let thread = thread::Builder::new().name(format!("thinwire peer {id}"));
        if let Ok(thread) = thread.spawn(move || courier.run()) {
            self.peers.insert(id, Peer { address, mailbox, thread });
        }
    }

    fn end(&mut self, id: Id) {
        if let Some(peer) = self.peers.remove(&id) {
            peer.mailbox.end();
            peer.thread.thread().unpark();
            self.ended.push(peer.thread);
        }
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").field("ids", &self.peers.keys()).finish_non_exhaustive()
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.renew(&BTreeMap::new());
        // Each thread looks at its mailbox at least once a second.
        self.ended.drain(..).for_each(|thread| drop(thread.join()));
    }
}

#[cfg(test)]
pub mod tests {
    use thinwire_link::Waker;
    use thinwire_link::service::{Outbox, Server, Service};

    use super::*;

    struct Silent;

    impl Service for Silent {
        fn received(
            &mut self,
            _client: thinwire_link::service::ClientId,
            _message: &[u8],
            _now: std::time::Instant,
            _out: &mut Outbox,
        ) -> Result<(), thinwire_link::Error> {
            Ok(())
        }

        fn message_bytes_max(&self) -> usize {
            1000
        }
    }

    /// Returns the waker of a connection.
    pub fn waker() -> Waker {
        let token = Token::new("peers");
        let server = Server::bind("127.0.0.1:0".parse().unwrap(), &token, Silent).unwrap();
        let address = server.address().to_string();
        let timeout = std::time::Duration::from_secs(10);
        let connection = thinwire_link::service::Connection::connect(&address, &token, timeout);
        connection.unwrap().waker()
    }
}
