//! Thread that sends the messages of one mailbox to a peer.
//!
//! The thread reconnects with growing pauses, and reports the peer as lost only when reconnecting fails.
//! Messages are not answered one by one, so the thread repeats its hello: the answer shows that the
//! connection is alive and that all earlier messages have arrived.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use thinwire_link::service::Connection;
use thinwire_link::{Error, Kind};
use thinwire_member::Id;

use super::Own;
use crate::mailbox::{Letter, Mailbox, entry_bytes};
use crate::message::Message;
use crate::wire::{FromServer, Peer, frames};
use crate::write::Entry;

/// Name of a peer in errors.
const NAME: &str = "the server";
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Longest time to connect.
const CONNECT: Duration = Duration::from_millis(500);
/// Longest wait before looking at the mailbox again.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// Time between two hellos.
const HELLO: Duration = Duration::from_secs(1);
/// Time without an answer, or without progress in sending, after which the connection counts as broken.
const SILENCE: Duration = Duration::from_secs(10);
/// Unsent bytes beyond which the thread waits.
const UNSENT_MAX: usize = 256 << 10;
/// Bytes of entries per message; a larger entry is sent alone.
const ENTRIES_BYTES_MAX: usize = 4 << 20;
/// Number of failures to connect after which the peer is reported as lost again.
const FAILURES: u32 = 8;

/// Sender of the messages in one mailbox.
pub struct Courier {
    own: Own,
    peer: Id,
    address: String,
    mailbox: Arc<Mailbox>,
}

/// Connection to the peer, which has welcomed this server.
struct Route<'a> {
    courier: &'a Courier,
    connection: Connection,
    /// Time of the last hello, if it is unanswered.
    asked: Option<Instant>,
    next_hello: Instant,
    /// Letters sent after the last hello.
    written: u64,
    /// Letters sent before the last hello; its answer shows that they have arrived.
    asked_for: u64,
}

impl Courier {
    /// Creates a sender to a peer at an address.
    pub fn new(own: Own, (peer, address): (Id, String), mailbox: Arc<Mailbox>) -> Courier {
        Courier { own, peer, address, mailbox }
    }

    /// Sends messages until the mailbox ends.
    pub fn run(self) {
        let (mut pause, mut failures) = (PAUSE_MIN, 0);
        while !self.mailbox.is_over() {
            match self.connect() {
                Ok(route) => {
                    (pause, failures) = (PAUSE_MIN, 0);
                    // An error ends only this connection; the loop opens the next one.
                    let _ = route.carry();
                    self.mailbox.begin(None);
                }
                Err(_) => {
                    if failures % FAILURES == 0 && !self.mailbox.is_over() {
                        (self.own.lost)(self.peer);
                    }
                    failures += 1;
                    pause = (2 * pause).min(PAUSE_MAX);
                }
            }
            if !self.mailbox.is_over() {
                thread::park_timeout(pause);
            }
        }
    }

    fn connect(&self) -> Result<Route<'_>, Error> {
        let mut connection = Connection::connect_to(NAME, &self.address, &self.own.token, CONNECT)?;
        connection.send(&self.hello())?;
        let deadline = Instant::now() + SILENCE;
        while !self.mailbox.is_over() && Instant::now() < deadline {
            if let Some(message) = connection.receive(WAIT_MAX)? {
                self.check(&message)?;
                self.mailbox.begin(Some(connection.waker()));
                let next_hello = Instant::now() + HELLO;
                return Ok(Route {
                    courier: self,
                    connection,
                    asked: None,
                    next_hello,
                    written: 0,
                    asked_for: 0,
                });
            }
        }
        Err(Error::new(Kind::Timeout, format!("{NAME} at {} does not answer", self.address)))
    }

    fn hello(&self) -> Vec<u8> {
        Peer::Hello { server: self.own.id, definition: self.own.definition }.to_bytes()
    }

    /// Checks that the peer has the expected id and has accepted this server.
    fn check(&self, message: &[u8]) -> Result<(), Error> {
        let (peer, address) = (self.peer, &self.address);
        match FromServer::parse(message)? {
            FromServer::Welcome { server } if server == peer => Ok(()),
            other => {
                let context = format!("{NAME} at {address} is not {peer}, it says {other:?}");
                Err(Error::new(Kind::Corrupt, context))
            }
        }
    }
}

impl Route<'_> {
    /// Sends messages until the mailbox ends or the connection fails.
    fn carry(mut self) -> Result<(), Error> {
        while !self.courier.mailbox.is_over() {
            while let Some(letter) = self.courier.mailbox.take() {
                self.deliver(letter)?;
            }
            // Unsent bytes have to leave first: the hello follows them.
            let is_queued = self.connection.unsent_bytes() > 0 && self.asked.is_none();
            self.wait(is_queued.then_some(0))?;
        }
        Ok(())
    }

    fn deliver(&mut self, letter: Letter) -> Result<(), Error> {
        for message in messages(letter) {
            for frame in frames(&message) {
                self.make_room()?;
                self.connection.send(&frame)?;
            }
        }
        self.written += 1;
        Ok(())
    }

    /// Waits until at most [`UNSENT_MAX`] bytes are unsent.
    fn make_room(&mut self) -> Result<(), Error> {
        let (mut least, mut since) = (usize::MAX, Instant::now());
        while self.connection.unsent_bytes() > UNSENT_MAX && !self.courier.mailbox.is_over() {
            if self.connection.unsent_bytes() < least {
                (least, since) = (self.connection.unsent_bytes(), Instant::now());
            }
            if since.elapsed() > SILENCE {
                return Err(Error::new(Kind::Timeout, format!("{NAME} takes no messages")));
            }
            self.wait(Some(UNSENT_MAX))?;
        }
        Ok(())
    }

    /// Waits for [`WAIT_MAX`], for a message, or until at most `unsent_max` bytes are unsent. Sends a hello
    /// when one is due or after letters, since only its answer shows that they have arrived.
    fn wait(&mut self, unsent_max: Option<usize>) -> Result<(), Error> {
        let now = Instant::now();
        if self.asked.is_some_and(|asked| now > asked + SILENCE) {
            return Err(Error::new(Kind::Timeout, format!("{NAME} does not answer")));
        }
        let is_due = now >= self.next_hello || self.written > 0;
        if self.asked.is_none() && is_due && self.connection.unsent_bytes() == 0 {
            self.connection.send(&self.courier.hello())?;
            (self.asked, self.next_hello) = (Some(now), now + HELLO);
            self.asked_for = std::mem::take(&mut self.written);
        }
        let received = match unsent_max {
            Some(most) => self.connection.receive_or_send(WAIT_MAX, most)?,
            None => self.connection.receive(WAIT_MAX)?,
        };
        if let Some(message) = received {
            self.courier.check(&message)?;
            self.asked = None;
            self.courier.mailbox.left(std::mem::take(&mut self.asked_for));
        }
        Ok(())
    }
}

/// Divides a letter into messages of bounded length where its entries allow; servers handle entries in
/// several messages like those in one.
fn messages(letter: Letter) -> impl Iterator<Item = Vec<u8>> {
    let Letter { shard, message, mut tables } = letter;
    let parts = match message {
        Message::Forward { view, after, entries, committed } => {
            let part = |(after, entries): (u64, &[Entry])| Message::Forward {
                view,
                after,
                entries: entries.to_vec(),
                committed,
            };
            divided(after, &entries).into_iter().map(part).collect()
        }
        other => vec![other],
    };
    // Only a snapshot has tables, and it is one message.
    parts.into_iter().map(move |message| {
        Peer::Message { shard, message, tables: std::mem::take(&mut tables) }.to_bytes()
    })
}

/// Divides entries after number `after` into parts, each with the number of the entry before it.
fn divided(mut after: u64, mut entries: &[Entry]) -> Vec<(u64, &[Entry])> {
    let mut parts = Vec::new();
    while parts.is_empty() || !entries.is_empty() {
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry_bytes(entry);
            bytes <= ENTRIES_BYTES_MAX
        };
        let count = entries.iter().take_while(fits).count().max(1).min(entries.len());
        let (part, rest) = entries.split_at(count);
        parts.push((after, part));
        (after, entries) = (after + count as u64, rest);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::{Part, Write};

    #[test]
    fn entries_are_divided_into_messages_and_none_is_missing() {
        let part = Part { table: 0, rows: vec![0], gradient: vec![1.0; 300_000].into() };
        let write = Arc::new(Write::Update { pushes: Vec::new(), parts: vec![part] });
        let entries = vec![Entry { view: 1, write }; 8];
        let forward = |after, entries| Message::Forward { view: 1, after, entries, committed: 4 };
        let sent = |message| {
            let letter = Letter { shard: 3, message, tables: Vec::new() };
            messages(letter).map(|bytes| Peer::parse(&bytes).unwrap()).collect::<Vec<_>>()
        };
        let message = |message| Peer::Message { shard: 3, message, tables: Vec::new() };
        let cut = |at: usize, count| forward(9 + at as u64, entries[at..at + count].to_vec());
        let expected = [cut(0, 3), cut(3, 3), cut(6, 2)].map(message);
        assert_eq!(sent(forward(9, entries.clone())), expected);
        assert_eq!(sent(forward(9, Vec::new())), [message(forward(9, Vec::new()))]);
    }
}
