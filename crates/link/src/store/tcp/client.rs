//! One rank's connection to the store.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::duplex::Duplex;
use crate::secure::{Handshake, Preamble, RECORD_BYTES_MAX, Role, Session};
use crate::store::tcp::message::{self, MESSAGE_BYTES_MAX, Request};
use crate::store::{self, Store};
use crate::{Error, Kind, Token};

const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Longest time of one attempt, so that a lost packet does not cost the whole timeout.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Delay beyond the promised time that a reply may have.
const REPLY_GRACE: Duration = Duration::from_secs(5);

/// A client of a [`super::Server`].
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    connection: Mutex<(Duplex, Session)>,
}

impl Client {
    /// Connects to the coordinator at `address`, `host:port`; tries again until `timeout`.
    ///
    /// # Errors
    /// [`Kind::Unreachable`] if nothing answers there in time, [`Kind::TokenMismatch`],
    /// [`Kind::VersionMismatch`], or [`Kind::Corrupt`] if something else does.
    pub fn connect(address: &str, token: &Token, timeout: Duration) -> Result<Client, Error> {
        let deadline = Instant::now() + timeout;
        let mut backoff = BACKOFF_MIN;
        loop {
            let error = match attempt(address, token, deadline) {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            if !matches!(error.kind, Kind::Io | Kind::Timeout) {
                return Err(error);
            }
            if Instant::now() + backoff >= deadline {
                return Err(Error::new(
                    Kind::Unreachable,
                    format!(
                        "cannot reach the coordinator at {address} after {:.0} s: {}",
                        timeout.as_secs_f64().ceil(),
                        error.context
                    ),
                ));
            }
            thread::sleep(backoff);
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Returns the address at which the coordinator answered.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn ask(&self, request: &Request, wait: Duration) -> Result<Vec<u8>, Error> {
        let deadline = Instant::now() + wait + REPLY_GRACE;
        let mut connection = self.connection.lock().expect("no holder panics");
        let (duplex, session) = &mut *connection;
        let reply = converse(duplex, session, request, deadline).map_err(|error| {
            let error = error.by(format_args!("the coordinator at {}", self.address));
            match error.kind {
                Kind::Io | Kind::Timeout => error.of(Kind::Unreachable),
                _ => error,
            }
        })?;
        message::parse_reply(&reply)
    }
}

/// Sends a request and waits for its reply.
fn converse(
    duplex: &mut Duplex,
    session: &mut Session,
    request: &Request,
    deadline: Instant,
) -> Result<Vec<u8>, Error> {
    session.seal(&request.to_bytes(), &mut duplex.output);
    loop {
        let pumped = duplex.pump();
        if let Some(reply) = session.receive(&mut duplex.input, MESSAGE_BYTES_MAX)? {
            return Ok(reply);
        }
        pumped?;
        if !duplex.wait(deadline) {
            return Err(Error::new(Kind::Timeout, "does not answer"));
        }
    }
}

impl Store for Client {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        store::check(key, value)?;
        let (key, value) = (key.to_owned(), value.to_vec());
        self.ask(&Request::Set { key, value }, Duration::ZERO).map(|_| ())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, Error> {
        store::check(key, &[])?;
        let wait = timeout.min(message::WAIT_MAX);
        self.ask(&Request::Get { key: key.to_owned(), wait }, wait)
    }
}

fn attempt(address: &str, token: &Token, deadline: Instant) -> Result<Client, Error> {
    let addresses: Vec<_> = address.to_socket_addrs().map_err(Error::broken)?.collect();
    let mut failure = Error::new(Kind::Io, "the name has no address");
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now()).min(ATTEMPT);
        let left = left.max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return greet(stream, address, token, deadline),
            Err(error) => failure = Error::broken(error),
        }
    }
    Err(failure)
}

fn greet(
    stream: TcpStream,
    address: SocketAddr,
    token: &Token,
    deadline: Instant,
) -> Result<Client, Error> {
    let mut duplex = Duplex::new(stream, RECORD_BYTES_MAX)?;
    let handshake = Handshake::new(Role::Initiator, token, Preamble { encrypt: true });
    let deadline = deadline.min(Instant::now() + ATTEMPT);
    // Until a record of ours has opened there, we are a stranger with little time: say something.
    let hello = Request::Get { key: "hello".to_owned(), wait: Duration::ZERO };
    let greeted = duplex.shake(handshake, deadline).and_then(|(mut session, _)| {
        converse(&mut duplex, &mut session, &hello, deadline).map(|_| session)
    });
    let session = greeted.map_err(|error| match error.kind {
        Kind::Io | Kind::Timeout => error,
        _ => error.by(format_args!("the coordinator at {address}")),
    })?;
    Ok(Client { address, connection: Mutex::new((duplex, session)) })
}
