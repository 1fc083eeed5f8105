//! Queue of messages to one peer.
//!
//! The primary repeats lost messages. So a full mailbox drops new messages, and a mailbox without a
//! connection drops all messages. Entries and snapshots that are already under way are not queued again,
//! so that repetitions do not slow down a slow connection further. Law: at most [`BYTES_MAX`] bytes plus
//! one message are queued.

use std::collections::{BTreeMap, VecDeque};

use crate::message::Message;
use crate::write::{Entry, Write};

/// Queued bytes at which new messages are dropped.
const BYTES_MAX: usize = 64 << 20;
/// Number of queued messages at which new ones are dropped.
const MESSAGES_MAX: usize = 4096;
/// Largest size in bytes of a message without its entries and tables.
const MESSAGE_BYTES: usize = 64;

/// Message to a server with another copy of the shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Outbound {
    /// Number of the shard.
    pub shard: u32,
    /// The message.
    pub message: Message,
    /// Tables of the shard; empty except with a snapshot.
    pub tables: Vec<u8>,
}

/// Queue of messages to one peer.
#[derive(Debug, Default)]
pub struct Mailbox {
    messages: VecDeque<Outbound>,
    /// Bytes of the queued messages.
    bytes: usize,
    /// Whether there is a connection.
    is_open: bool,
    /// Number of messages put in on this connection, and how many of them are known to have arrived.
    put: u64,
    left: u64,
    /// Entries and snapshots under way to the peer, by shard.
    flights: BTreeMap<u32, Flight>,
}

/// Last entry, or snapshot, of a shard that was put in, and the number of its message.
#[derive(Clone, Copy, Debug)]
struct Flight {
    view: u64,
    last: u64,
    committed: u64,
    is_snapshot: bool,
    message: u64,
}

impl Mailbox {
    /// Adds a message if there is room and a connection. Returns whether it was added. `tables` is
    /// called to serialise the tables of a snapshot.
    ///
    /// # Errors
    /// Returns the error of `tables`; nothing is put in.
    pub fn put<E>(
        &mut self,
        shard: u32,
        message: Message,
        tables: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<bool, E> {
        if !self.is_open || self.bytes >= BYTES_MAX || self.messages.len() >= MESSAGES_MAX {
            return Ok(false);
        }
        let Some(message) = self.without_repetition(shard, message) else { return Ok(false) };
        let is_snapshot = matches!(message, Message::Snapshot { .. });
        let tables = if is_snapshot { tables()? } else { Vec::new() };
        self.append(Outbound { shard, message, tables });
        Ok(true)
    }

    /// Takes the next message out.
    pub fn take(&mut self) -> Option<Outbound> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.bytes();
        Some(message)
    }

    /// Counts this many taken messages as arrived.
    pub fn left(&mut self, messages: u64) {
        self.left += messages;
    }

    /// Starts over on a new connection, empty.
    pub fn open(&mut self) {
        *self = Mailbox { is_open: true, ..Mailbox::default() };
    }

    /// Empties the mailbox, and drops new messages until it is opened.
    pub fn close(&mut self) {
        *self = Mailbox::default();
    }

    /// Returns whether there is a connection.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns the message without the part that is already under way, or `None` if nothing is left.
    fn without_repetition(&self, shard: u32, message: Message) -> Option<Message> {
        let flight = self.flights.get(&shard).filter(|flight| flight.message > self.left);
        let Some(flight) = flight else { return Some(message) };
        match message {
            Message::Snapshot { view, .. } if flight.is_snapshot && flight.view == view => None,
            Message::Forward { view, after, mut entries, committed }
                if !flight.is_snapshot && flight.view == view && after < flight.last =>
            {
                let known = (flight.last - after).min(entries.len() as u64);
                entries.drain(..known as usize);
                let is_event = !entries.is_empty() || committed > flight.committed;
                let after = after + known;
                is_event.then_some(Message::Forward { view, after, entries, committed })
            }
            other => Some(other),
        }
    }

    fn append(&mut self, message: Outbound) {
        self.put += 1;
        let number = self.put;
        if let Some(flight) = message.flight(number) {
            self.flights.insert(message.shard, flight);
        }
        self.bytes += message.bytes();
        self.messages.push_back(message);
    }
}

impl Outbound {
    fn flight(&self, message: u64) -> Option<Flight> {
        match &self.message {
            Message::Forward { view, after, entries, committed } => Some(Flight {
                view: *view,
                last: after + entries.len() as u64,
                committed: *committed,
                is_snapshot: false,
                message,
            }),
            Message::Snapshot { view, last, .. } => Some(Flight {
                view: *view,
                last: *last,
                // A snapshot is of committed entries only.
                committed: *last,
                is_snapshot: true,
                message,
            }),
            // Too small for a repetition to cost anything.
            Message::Have { .. } | Message::Superseded { .. } => None,
        }
    }

    /// Returns the approximate size of the message in bytes.
    fn bytes(&self) -> usize {
        let entries = match &self.message {
            Message::Forward { entries, .. } => entries.iter().map(entry_bytes).sum(),
            _ => 0,
        };
        MESSAGE_BYTES + entries + self.tables.len()
    }
}

/// Returns the approximate size of an entry in bytes.
pub fn entry_bytes(entry: &Entry) -> usize {
    match &*entry.write {
        Write::Update { pushes, parts } => {
            let values = parts.iter().map(|part| 8 * part.rows.len() + part.gradient.bytes().len());
            MESSAGE_BYTES + 24 * pushes.len() + values.sum::<usize>()
        }
        Write::Workers(workers) => MESSAGE_BYTES + 8 * workers.ids.len(),
    }
}

#[cfg(test)]
impl Mailbox {
    /// Takes all messages out and counts them as arrived.
    pub fn drain(&mut self) -> Vec<Outbound> {
        let messages: Vec<Outbound> = std::iter::from_fn(|| self.take()).collect();
        self.left(messages.len() as u64);
        messages
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use super::*;
    use crate::clocks::Clocks;
    use crate::write::Workers;

    fn forward(after: u64, count: usize, committed: u64) -> Message {
        let entry = Entry { view: 1, write: Arc::new(Write::Workers(Workers::default())) };
        Message::Forward { view: 1, after, entries: vec![entry; count], committed }
    }

    fn open() -> Mailbox {
        let mut mailbox = Mailbox::default();
        mailbox.open();
        mailbox
    }

    fn put(mailbox: &mut Mailbox, message: Message) {
        mailbox.put(0, message, || Ok::<_, Infallible>(vec![0; 9])).unwrap();
    }

    fn messages(mailbox: &mut Mailbox) -> Vec<Message> {
        mailbox.drain().into_iter().map(|message| message.message).collect()
    }

    #[test]
    fn without_a_connection_everything_is_dropped() {
        let mut mailbox = Mailbox::default();
        put(&mut mailbox, forward(0, 1, 0));
        assert_eq!(mailbox.take(), None);
        let mut mailbox = open();
        put(&mut mailbox, forward(0, 1, 0));
        mailbox.close();
        assert_eq!(mailbox.take(), None);
    }

    #[test]
    fn what_is_under_way_is_not_repeated() {
        let mut mailbox = open();
        put(&mut mailbox, forward(0, 2, 0));
        put(&mut mailbox, forward(0, 2, 0));
        put(&mut mailbox, forward(0, 3, 0));
        put(&mut mailbox, forward(0, 3, 1));
        assert_eq!(messages(&mut mailbox), [forward(0, 2, 0), forward(2, 1, 0), forward(3, 0, 1)]);
        put(&mut mailbox, forward(0, 3, 1));
        assert_eq!(messages(&mut mailbox), [forward(0, 3, 1)], "it may be lost");
    }

    #[test]
    fn one_snapshot_of_a_shard_is_under_way() {
        let mut mailbox = open();
        let snapshot = |last| Message::Snapshot { view: 1, last, clocks: Clocks::default() };
        put(&mut mailbox, snapshot(4));
        put(&mut mailbox, snapshot(5));
        put(&mut mailbox, forward(4, 1, 0));
        assert_eq!(messages(&mut mailbox), [snapshot(4), forward(4, 1, 0)]);
        put(&mut mailbox, snapshot(5));
        assert_eq!(mailbox.drain()[0].tables, [0; 9]);
    }

    #[test]
    fn a_snapshot_without_its_tables_is_not_sent() {
        let mut mailbox = open();
        let snapshot = Message::Snapshot { view: 1, last: 1, clocks: Clocks::default() };
        assert_eq!(mailbox.put(0, snapshot, || Err("full")), Err("full"));
        assert_eq!(mailbox.take(), None);
    }

    #[test]
    fn a_full_mailbox_drops_what_comes() {
        let mut mailbox = open();
        (0..2 * MESSAGES_MAX).for_each(|_| put(&mut mailbox, Message::Superseded { view: 1 }));
        assert_eq!(mailbox.drain().len(), MESSAGES_MAX);
        for shard in 0..3 {
            let message = Message::Snapshot { view: 1, last: 1, clocks: Clocks::default() };
            mailbox.put(shard, message, || Ok::<_, Infallible>(vec![0; BYTES_MAX])).unwrap();
        }
        assert_eq!(mailbox.drain().len(), 1);
        put(&mut mailbox, forward(0, 1, 0));
        assert_eq!(mailbox.drain().len(), 1, "room again");
    }
}
