//! Connections to a server, and the process behind each.
//!
//! Laws: a client has at most one connection, which is the one with the latest hello. Incomplete long
//! messages of clients take at most [`UNFINISHED_BYTES_MAX`] bytes together, unless there is only one.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Instant;

use thinwire_link::endpoint::ClientId;
use thinwire_link::{Bandwidth, Error, Limiter};
use thinwire_member::Id;

use crate::reason::Request;
use crate::wire::{Fragments, FromClient};

/// Largest size in bytes of clients' incomplete messages, on all connections together.
pub const UNFINISHED_BYTES_MAX: usize = 256 << 20;

/// Process behind a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session {
    /// No hello was received.
    Unknown,
    /// A hello was received, and waits until the server knows the definition.
    Waiting {
        /// Identity that the process gets if its definition equals the job's.
        claims: ClientIdentity,
        /// Fingerprint of the process's definition.
        definition: u64,
    },
    /// The process was admitted.
    Known(ClientIdentity),
}

/// Identity that a process claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientIdentity {
    /// A client; a reader gets an id that no worker has.
    Client {
        /// Id by which the shards know the client.
        id: Id,
        /// Id in the client's messages.
        said: Id,
    },
    /// Another server.
    Peer(Id),
}

/// Result of receiving a frame.
#[derive(Debug, PartialEq)]
pub enum Frame<'a> {
    /// A complete message.
    Whole(Cow<'a, [u8]>),
    /// Part of a message.
    Part,
    /// Part of a request for which there is no room, with its shard and number. The rest of the request is
    /// dropped.
    NoRoom(u32, Request),
}

/// Connections, and the clients behind them.
#[derive(Debug)]
pub struct Sessions {
    sessions: BTreeMap<ClientId, Place>,
    clients: BTreeMap<Id, ClientId>,
    /// Bytes of clients' incomplete messages, and their limit.
    unfinished: usize,
    unfinished_max: usize,
}

/// Connection, with its process and the message being received.
#[derive(Debug)]
struct Place {
    session: Session,
    fragments: Fragments,
    /// Meter of the client's bytes, if rates are limited.
    meter: Option<Meter>,
}

impl Default for Sessions {
    fn default() -> Sessions {
        let (sessions, clients) = (BTreeMap::new(), BTreeMap::new());
        Sessions { sessions, clients, unfinished: 0, unfinished_max: UNFINISHED_BYTES_MAX }
    }
}

impl Sessions {
    /// Adds a connection.
    pub fn open(&mut self, connection: ClientId) {
        let (session, fragments) = (Session::Unknown, Fragments::default());
        self.sessions.insert(connection, Place { session, fragments, meter: None });
    }

    /// Removes a connection.
    pub fn close(&mut self, connection: ClientId) {
        let Some(place) = self.sessions.remove(&connection) else { return };
        if let Session::Known(ClientIdentity::Client { id, .. }) = place.session {
            self.unfinished -= place.fragments.bytes();
            if self.clients.get(&id) == Some(&connection) {
                self.clients.remove(&id);
            }
        }
    }

    /// Returns the process behind a connection.
    pub fn session(&self, connection: ClientId) -> Session {
        self.sessions.get(&connection).map_or(Session::Unknown, |place| place.session)
    }

    /// Returns all connections.
    pub fn connections(&self) -> impl Iterator<Item = ClientId> {
        self.sessions.keys().copied()
    }

    /// Returns the number of clients' incomplete messages.
    pub fn unfinished(&self) -> usize {
        let is_unfinished = |place: &&Place| place.fragments.bytes() > 0;
        self.sessions.values().filter(is_unfinished).count()
    }

    /// Receives a frame.
    ///
    /// # Errors
    /// If the frame is out of place, or its message is longer than `bytes_max` bytes.
    pub fn assemble<'a>(
        &mut self,
        connection: ClientId,
        frame: &'a [u8],
        bytes_max: usize,
    ) -> Result<Frame<'a>, Error> {
        // The server opens every connection before its first message.
        let Some(place) = self.sessions.get_mut(&connection) else { return Ok(Frame::Part) };
        let before = place.fragments.bytes();
        let whole = place.fragments.take(frame, bytes_max)?;
        // Messages of other servers have no limit: servers are few, and their messages cannot be refused.
        if matches!(place.session, Session::Known(ClientIdentity::Client { .. })) {
            let own = place.fragments.bytes();
            self.unfinished = self.unfinished - before + own;
            // A message that is alone always has room, however long it is, so that some client makes progress.
            if self.unfinished > self.unfinished_max && own < self.unfinished {
                self.unfinished -= own;
                let (shard, request) = FromClient::request(&place.fragments.give_up())?;
                return Ok(Frame::NoRoom(shard, request));
            }
        }
        Ok(whole.map_or(Frame::Part, Frame::Whole))
    }

    /// Limits the rate of a client from now on.
    pub fn limit(&mut self, connection: ClientId, rate: Bandwidth, now: Instant) {
        let place = self.sessions.get_mut(&connection);
        place.into_iter().for_each(|place| place.meter = Some(Meter::new(rate, now)));
    }

    /// Counts bytes from or to a client. Returns whether the client has to be held from now on.
    pub fn count(&mut self, connection: ClientId, bytes: usize, now: Instant) -> bool {
        let meter = self.sessions.get_mut(&connection).and_then(|place| place.meter.as_mut());
        meter.is_some_and(|meter| meter.count(bytes, now))
    }

    /// Returns the earliest time at which a client is no longer held.
    pub fn deadline(&self) -> Option<Instant> {
        let until = |place: &Place| place.meter.as_ref().and_then(Meter::held_until);
        self.sessions.values().filter_map(until).min()
    }

    /// Returns the clients that are no longer held.
    pub fn released(&mut self, now: Instant) -> Vec<ClientId> {
        let is_released = |(connection, place): (&ClientId, &mut Place)| {
            let is_released = place.meter.as_mut().is_some_and(|meter| meter.release(now));
            is_released.then_some(*connection)
        };
        self.sessions.iter_mut().filter_map(is_released).collect()
    }

    /// Sets the process behind a connection. Returns the previous connection of the same client.
    pub fn set(&mut self, connection: ClientId, session: Session) -> Option<ClientId> {
        self.sessions.get_mut(&connection)?.session = session;
        let Session::Known(ClientIdentity::Client { id, .. }) = session else { return None };
        self.clients.insert(id, connection).filter(|before| *before != connection)
    }

    /// Returns the connection of a client, by its id as the shards know it.
    pub fn connection(&self, client: Id) -> Option<ClientId> {
        self.clients.get(&client).copied()
    }

    /// Returns all connections that wait for the definition.
    pub fn waiting(&self) -> Vec<(ClientId, ClientIdentity, u64)> {
        let waiting = |(connection, place): (&ClientId, &Place)| {
            let Session::Waiting { claims, definition } = place.session else { return None };
            Some((*connection, claims, definition))
        };
        self.sessions.iter().filter_map(waiting).collect()
    }
}

#[cfg(test)]
impl Sessions {
    /// Sets the limit on clients' incomplete messages, in bytes.
    pub fn bound(&mut self, unfinished_max: usize) {
        self.unfinished_max = unfinished_max;
    }

    /// Returns the size of clients' incomplete messages, in bytes.
    pub fn unfinished_bytes(&self) -> usize {
        self.unfinished
    }
}

/// Meter of a client's bytes.
#[derive(Clone, Debug)]
pub struct Meter {
    limiter: Limiter,
    held_until: Option<Instant>,
}

impl Meter {
    /// Creates a meter that allows a burst.
    pub fn new(rate: Bandwidth, now: Instant) -> Meter {
        Meter { limiter: Limiter::new(rate, now), held_until: None }
    }

    /// Counts bytes. Returns whether the client has to be held from now on.
    pub fn count(&mut self, bytes: usize, now: Instant) -> bool {
        // The bucket is refilled for the elapsed time before bytes are taken out.
        self.limiter.grant(0, now);
        self.limiter.take(bytes);
        let delay = self.limiter.delay(1, now);
        let is_held = self.held_until.is_some();
        if !delay.is_zero() {
            self.held_until = Some(now + delay);
        }
        !is_held && self.held_until.is_some()
    }

    /// Returns the time until which the client is held.
    pub fn held_until(&self) -> Option<Instant> {
        self.held_until
    }

    /// Updates the meter to `now`. Returns whether the client is no longer held.
    pub fn release(&mut self, now: Instant) -> bool {
        self.held_until.take_if(|until| *until <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_interval_gets_more_than_the_rate_a_burst_and_a_message(
            messages in prop::collection::vec((0_u64..30_000, 1_usize..1_000_000), 1..100)
        ) {
            let rate: Bandwidth = "100mbit".parse().unwrap();
            let (begun, burst) = (Instant::now(), 5e-3 * rate.bytes_per_s());
            let (mut meter, mut now) = (Meter::new(rate, begun), begun);
            let mut taken: Vec<(Instant, usize)> = Vec::new();
            for (pause_us, bytes) in messages {
                now += Duration::from_micros(pause_us);
                if let Some(until) = meter.held_until() {
                    prop_assert!(until <= now || !meter.release(now));
                    now = now.max(until);
                    prop_assert!(meter.release(now));
                }
                let is_held = meter.count(bytes, now);
                prop_assert_eq!(is_held, meter.held_until().is_some());
                taken.push((now, bytes));
                for from in 0..taken.len() {
                    let seconds = (now - taken[from].0).as_secs_f64();
                    let before: usize = taken[from..taken.len() - 1].iter().map(|(_, it)| it).sum();
                    let most = rate.bytes_per_s() * seconds + burst + 1.0;
                    prop_assert!(before as f64 <= most, "{before} bytes and one message in {seconds} s");
                }
            }
        }
    }

    #[test]
    fn whoever_stays_below_the_rate_is_never_held() {
        let rate: Bandwidth = "80mbit".parse().unwrap();
        let mut now = Instant::now();
        let mut meter = Meter::new(rate, now);
        for _ in 0..1000 {
            assert!(!meter.count(10_000, now));
            now += Duration::from_millis(1);
        }
    }
}
