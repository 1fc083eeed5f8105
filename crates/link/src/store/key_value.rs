//! A store as a node.
//!
//! Law: a client's requests are answered in order, each once. A request for a key without a value waits
//! for the key or for the end of its time, and delays only this client.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::Error;
use crate::endpoint::{ClientId, Node, Outbox};
use crate::store;
use crate::store::message::{self, KINDS_END, MESSAGE_BYTES_MAX, Request};
use crate::store::values::Values;

/// State machine that answers the requests of [`super::tcp::Client`]s.
///
/// Another node can contain one and serve it on its own port. That node passes on every message that
/// [`KeyValueService::is_request`] recognises by its first byte, and the calls `closed`, `deadline` and
/// `tick`. It must allow messages that are as long as those that this service allows.
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

    /// Returns a store that has a value from the start.
    ///
    /// # Errors
    /// As [`super::Store::set`].
    pub fn with(key: &str, value: &[u8]) -> Result<KeyValueService, Error> {
        let mut service = KeyValueService::default();
        service.values.set(key, value)?;
        Ok(service)
    }

    /// Returns whether a message is for a store: its first byte is then below 16.
    pub fn is_request(message: &[u8]) -> bool {
        message.first().is_some_and(|kind| *kind < KINDS_END)
    }

    /// Writes a value under a key that has none yet, and answers the clients that wait for it.
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

    /// Removes all keys that begin with `prefix` and a slash; returns their number. Clients that wait
    /// for one of them continue to wait.
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

impl Node for KeyValueService {
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

/// Answers that a value is missing, with the possible cause: its writer may have been refused, or never
/// got through.
fn miss(client: ClientId, waiting: &Waiting, out: &mut Outbox) {
    let missing = out.explain(store::missing(&waiting.key, waiting.wait));
    out.send(client, &message::reply_to_bytes(Err(&missing)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::dispatcher::Dispatcher;
    use crate::endpoint::messages::Messages;
    use crate::endpoint::server_connection::tests::{shake, token};
    use crate::store::VALUE_BYTES_MAX;

    /// A store and its clients, whose messages are passed on by hand.
    struct Talk {
        server: Dispatcher<KeyValueService>,
        clients: Vec<(ClientId, Messages)>,
        now: Instant,
    }

    impl Talk {
        fn new(clients: usize) -> Talk {
            let mut server = Dispatcher::new(KeyValueService::new(), &token());
            let mut client = || {
                let id = server.accept();
                (id, shake(server.server_connection_mut(id).unwrap()).0)
            };
            let clients = (0..clients).map(|_| client()).collect();
            Talk { server, clients, now: Instant::now() }
        }

        fn ask(&mut self, client: usize, request: &Request) {
            let (id, messages) = &mut self.clients[client];
            messages.seal(
                &request.to_bytes(),
                &mut self.server.server_connection_mut(*id).unwrap().input,
            );
            self.server.moved(*id, Ok(()), self.now);
        }

        fn turn(&mut self) {
            self.server.turn(self.now);
        }

        /// Returns the next answer to a client, if there is one.
        fn answer(&mut self, client: usize) -> Option<Result<Vec<u8>, Error>> {
            let (id, messages) = &mut self.clients[client];
            let output = &mut self.server.server_connection_mut(*id).unwrap().output;
            let reply = messages.receive(output, MESSAGE_BYTES_MAX).unwrap()?;
            self.server.moved(*id, Ok(()), self.now);
            Some(message::parse_reply(&reply))
        }
    }

    fn get(key: &str, wait: Duration) -> Request {
        Request::Get { key: key.to_owned(), wait }
    }

    fn set(key: &str, value: &[u8]) -> Request {
        Request::Set { key: key.to_owned(), value: value.to_vec() }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn who_does_not_read_replies_gets_no_more_of_them() {
        let mut talk = Talk::new(1);
        let value = vec![7; VALUE_BYTES_MAX];
        // A first message has to be short.
        talk.ask(0, &set("small", b""));
        talk.ask(0, &set("large", &value));
        talk.turn();
        (0..2).for_each(|_| assert_eq!(talk.answer(0).unwrap().unwrap(), b""));
        (0..500).for_each(|_| talk.ask(0, &get("large", Duration::ZERO)));
        for answered in 0..500 {
            talk.turn();
            let server_connection = talk.server.server_connection(talk.clients[0].0).unwrap();
            assert!(server_connection.output.len() < 2 * MESSAGE_BYTES_MAX, "{answered}");
            assert_eq!(talk.answer(0).unwrap().unwrap(), value);
        }
        talk.turn();
        let server_connection = talk.server.server_connection(talk.clients[0].0).unwrap();
        assert!(server_connection.input.is_empty() && server_connection.output.is_empty());
    }

    #[test]
    fn requests_behind_one_that_waits_are_answered_after_it() {
        let mut talk = Talk::new(2);
        talk.ask(0, &get("later", LONG));
        talk.ask(0, &set("mine", b"m"));
        talk.ask(0, &get("mine", LONG));
        talk.ask(1, &get("mine", Duration::ZERO));
        talk.turn();
        assert!(talk.answer(0).is_none());
        assert_eq!(talk.answer(1).unwrap().unwrap_err().kind, crate::Kind::Timeout);
        talk.ask(1, &set("later", b"l"));
        (0..2).for_each(|_| talk.turn());
        let answers: Vec<_> = std::iter::from_fn(|| talk.answer(0)).map(Result::unwrap).collect();
        assert_eq!(answers, [&b"l"[..], b"", b"m"]);
        assert_eq!(talk.answer(1).unwrap().unwrap(), b"");
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_no_other_does() {
        let mut talk = Talk::new(2);
        talk.ask(0, &get("later", LONG));
        talk.ask(1, &get("later", LONG / 2));
        talk.turn();
        assert_eq!(talk.server.deadline(talk.now), Some(talk.now + LONG / 2));
        talk.now += LONG / 2;
        talk.turn();
        let error = talk.answer(1).unwrap().unwrap_err();
        assert_eq!(error.to_string(), "no process wrote later within 30.0 s");
        assert!(talk.answer(0).is_none());
        talk.server.remove(talk.clients[0].0, talk.now);
        talk.turn();
        assert_eq!(talk.server.deadline(talk.now), None, "who is gone is forgotten");
    }

    #[test]
    fn strangers_are_named_where_a_rank_is_missing() {
        let mut talk = Talk::new(1);
        let refusals = &mut talk.server.outbox().refusals;
        (0..300).for_each(|_| refusals.count([10, 0, 0, 7].into()));
        talk.ask(0, &get("rank/1", Duration::ZERO));
        talk.turn();
        let said = talk.answer(0).unwrap().unwrap_err().to_string();
        let unauthenticated_peers = "300 connections did not prove the job token, from 10.0.0.7";
        assert_eq!(said, format!("no process wrote rank/1 within 0.0 s; {unauthenticated_peers}"));
    }

    #[test]
    fn kinds_of_other_nodes_are_not_for_a_store() {
        assert!(KeyValueService::is_request(&set("key", b"").to_bytes()));
        assert!(KeyValueService::is_request(&get("key", LONG).to_bytes()));
        assert!(!KeyValueService::is_request(&[16]) && !KeyValueService::is_request(&[]));
    }
}
