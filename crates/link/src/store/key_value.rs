//! A store as a service.
//!
//! Law: a client's requests are answered in their order, each once; one for a key that nobody has
//! written waits for the key or for the end of its time, and holds up this client alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::Error;
use crate::service::{ClientId, Outbox, Service};
use crate::store;
use crate::store::message::{self, KINDS_END, MESSAGE_BYTES_MAX, Request};
use crate::store::values::Values;

/// State machine that answers the requests of [`super::tcp::Client`]s.
///
/// Another service can have one within, on its own port: it passes on every message that
/// [`KeyValueService::is_request`] recognises by its first byte, `closed`, `deadline` and `tick`, and
/// allows messages of at least the length that this one does.
#[derive(Debug, Default)]
pub struct KeyValueService {
    values: Values,
    /// Clients whose answer has to wait. The server holds their further requests.
    waiting: BTreeMap<ClientId, Waiting>,
}

/// A request for a value that has not been written yet.
#[derive(Debug)]
struct Waiting {
    key: String,
    wait: Duration,
    deadline: Instant,
}

impl KeyValueService {
    /// Returns an empty store.
    pub fn new() -> KeyValueService {
        KeyValueService::default()
    }

    /// Whether a message is for a store, by its first byte: kinds below 16 are the store's.
    pub fn is_request(message: &[u8]) -> bool {
        message.first().is_some_and(|kind| *kind < KINDS_END)
    }

    /// Writes a value under a key that nobody has written yet, and answers who waits for it.
    ///
    /// # Errors
    /// As [`super::Store::set`].
    pub fn set(&mut self, key: &str, value: &[u8], out: &mut Outbox) -> Result<(), Error> {
        self.values.set(key, value)?;
        for (client, _) in self.waiting.extract_if(.., |_, waiting| waiting.key == key) {
            out.send(client, &message::reply_to_bytes(Ok(value)));
            out.release(client);
        }
        Ok(())
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.values.get(key)
    }

    /// Removes all keys that begin with `prefix` and a slash; returns their number. Who waits for one
    /// of them goes on waiting.
    pub fn remove_under(&mut self, prefix: &str) -> usize {
        self.values.remove_under(prefix)
    }

    fn answer_get(&mut self, client: ClientId, waiting: Waiting, out: &mut Outbox) {
        match self.values.get(&waiting.key) {
            Some(value) => out.send(client, &message::reply_to_bytes(Ok(value))),
            None if waiting.wait.is_zero() => miss(client, &waiting, out),
            None => {
                out.hold(client);
                self.waiting.insert(client, waiting);
            }
        }
    }
}

impl Service for KeyValueService {
    fn received(
        &mut self,
        client: ClientId,
        message: &[u8],
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        match Request::parse(message)? {
            Request::Set { key, value } => {
                let done = self.set(&key, &value, out);
                let reply = message::reply_to_bytes(done.as_ref().map(|()| &[][..]));
                out.send(client, &reply);
            }
            Request::Get { key, wait } => {
                self.answer_get(client, Waiting { key, wait, deadline: now + wait }, out);
            }
        }
        Ok(())
    }

    fn closed(&mut self, client: ClientId, _now: Instant, _out: &mut Outbox) {
        self.waiting.remove(&client);
    }

    fn deadline(&self) -> Option<Instant> {
        self.waiting.values().map(|waiting| waiting.deadline).min()
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox) {
        for (client, waiting) in self.waiting.extract_if(.., |_, waiting| now >= waiting.deadline) {
            miss(client, &waiting, out);
            out.release(client);
        }
    }

    fn message_bytes_max(&self) -> usize {
        MESSAGE_BYTES_MAX
    }
}

/// Answers that a value is missing: its writer may have been refused, or never got through.
fn miss(client: ClientId, waiting: &Waiting, out: &mut Outbox) {
    let missing = out.explain(store::missing(&waiting.key, waiting.wait));
    out.send(client, &message::reply_to_bytes(Err(&missing)));
}
