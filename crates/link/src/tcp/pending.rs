//! A connection whose other end has not identified its rank yet, and the hello that does so.
//!
//! Hello, 17 bytes, little-endian, the first record after the handshake: rank, world size, epoch (4 bytes each),
//! channel (0 control, 1.. data) and number of data connections (2 each), and whether the rank shares memory. The
//! answer is one byte, 0 for welcome, else the code of a refusal. An offer of memory may follow a welcome, and
//! then an [`Exchange`]; a text follows a refusal.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use thinwire_wire::{Rank, WORLD_SIZE_MAX};

use crate::duplex::{Duplex, connect};
use crate::secure::{Handshake, Preamble, Role, Session};
use crate::shared_port::address::{Address, Key};
use crate::shm::exchange::{Exchange, Turn};
use crate::shm::{self, Segment};
use crate::tcp::connection::Parts;
use crate::tcp::options::{CONNECTIONS_MAX, Connections, Encryption, Options, SharedMemory};
use crate::tcp::transport::Transport;
use crate::unauthenticated_peers::UnauthenticatedPeer;
use crate::{Deadline, Error, Kind};

/// Bytes that may be read ahead before the other end is known.
const INPUT_BYTES_MAX: usize = 4096;

/// A connection on its way.
#[derive(Debug)]
pub struct Pending {
    pub address: Address,
    pub deadline: Instant,
    /// The end of the time for this connection; `deadline` is earlier while the other side has not
    /// accepted it.
    last: Instant,
    since: Instant,
    /// Hello of the connecting side; known from the start if this side connects.
    pub hello: Option<Hello>,
    role: Role,
    duplex: Duplex,
    stage: Stage,
    encrypt: bool,
    same_host: bool,
    /// Whether this side is willing to share memory.
    shares_memory: bool,
    connections: Connections,
    /// The most data connections to the other side.
    connections_max: u16,
    /// Time from the beginning until the connection was made: at least a round trip.
    connected_after: Duration,
}

#[derive(Debug)]
enum Stage {
    Connecting(Handshake),
    /// The other side shares its port, and the connection has not been passed to it yet.
    Passing(Handshake),
    Shaking(Handshake),
    Greeting(Session),
    /// Both know each other and agree on memory, if there can be any.
    Sharing(Session, Exchange),
    /// Both know each other.
    Known(Session, Option<Segment>),
    Over,
}

impl Pending {
    /// Begins a connection to `address` that will send `hello`.
    ///
    /// # Errors
    /// If the operating system cannot even begin.
    pub fn connect(
        address: Address,
        hello: Hello,
        options: &Options,
        deadline: Instant,
    ) -> Result<Pending, Error> {
        let stream = connect(address.socket).map_err(Error::broken)?;
        Pending::new(stream, address, Some(hello), options, deadline)
    }

    /// Limits the number of data connections that this side makes to the other.
    pub fn with_at_most(self, connections_max: u16) -> Pending {
        Pending { connections_max, ..self }
    }

    /// Returns a connection that was accepted from `address`. The peer is unauthenticated until its
    /// hello has been decrypted: anybody who has recorded the first message of a handshake can replay
    /// it.
    ///
    /// # Errors
    /// If the socket refuses its options.
    pub fn accept(
        stream: TcpStream,
        address: SocketAddr,
        options: &Options,
        deadline: Instant,
    ) -> Result<Pending, Error> {
        Pending::new(stream, address.into(), None, options, deadline)
    }

    fn new(
        stream: TcpStream,
        address: Address,
        hello: Option<Hello>,
        options: &Options,
        deadline: Instant,
    ) -> Result<Pending, Error> {
        let local = stream.local_addr().ok().map(|local| local.ip());
        let ip = address.socket.ip();
        // A connection within one host has the same address at both ends, unless it is over loopback.
        let same_host = ip.is_loopback() || local == Some(ip);
        let encrypt = match options.encryption {
            Encryption::Auto => !same_host,
            Encryption::Always => true,
            Encryption::Never => false,
        };
        // Who connects says first who it is.
        let role = if hello.is_some() { Role::Initiator } else { Role::Responder };
        let handshake = Handshake::new(role, &options.token, Preamble { encrypt });
        let stage = match role {
            Role::Initiator => Stage::Connecting(handshake),
            Role::Responder => Stage::Shaking(handshake),
        };
        let mut duplex = Duplex::new(stream, INPUT_BYTES_MAX)?;
        let since = Instant::now();
        // A process that is stopped after it has accepted the connection passes it to nobody. The connection then
        // ends early, and is tried again.
        let to_be_passed = address.key.map(|_| since + Deadline::Handshake.duration());
        duplex.output.extend(address.key.into_iter().flat_map(Key::to_preface));
        Ok(Pending {
            address,
            deadline: to_be_passed.unwrap_or(deadline).min(deadline),
            last: deadline,
            since,
            hello,
            role,
            duplex,
            stage,
            encrypt,
            same_host,
            shares_memory: options.shared_memory == SharedMemory::Auto && same_host,
            connections: options.connections,
            connections_max: CONNECTIONS_MAX,
            connected_after: Duration::ZERO,
        })
    }

    /// Returns whether this side has accepted the connection.
    pub fn is_accepted(&self) -> bool {
        self.role == Role::Responder
    }

    /// Returns the connection as an unauthenticated peer, if this side has accepted it and does not
    /// know the other side yet.
    pub fn unauthenticated_peer(&self) -> Option<UnauthenticatedPeer> {
        let (address, silent) = (self.address.socket.ip(), !self.duplex.has_read);
        let is_unauthenticated = self.is_accepted() && self.hello.is_none();
        is_unauthenticated.then_some(UnauthenticatedPeer { address, since: self.since, silent })
    }

    pub fn poll_fd(&self) -> PollFd<'_> {
        let flags = match self.stage {
            Stage::Connecting(_) => PollFlags::OUT,
            _ => self.duplex.interest(),
        };
        PollFd::new(&self.duplex.stream, flags)
    }

    /// Continues as far as possible; returns true once both sides know each other. `admit` decides
    /// about the hello of an unauthenticated peer.
    ///
    /// # Errors
    /// If the connection breaks, the other end is not of this job, or one side refuses the other.
    pub fn advance(
        &mut self,
        now: Instant,
        admit: impl FnOnce(&Hello) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        if let Stage::Connecting(_) = self.stage {
            // A non-blocking connect ends as an error of the socket or as a peer address.
            if !self.is_connected()? {
                return self.in_time(now);
            }
            if let Stage::Connecting(handshake) = std::mem::replace(&mut self.stage, Stage::Over) {
                self.stage = match self.address.key {
                    Some(_) => Stage::Passing(handshake),
                    None => Stage::Shaking(handshake),
                };
                self.connected_after = now - self.since;
            }
            // The preamble has to be queued before the first pump.
        }
        let pumped = self.duplex.pump();
        let done = self.converse(admit);
        let flushed = self.duplex.flush();
        if done? {
            flushed?;
            return Ok(true);
        }
        pumped.and(flushed)?;
        self.in_time(now)
    }

    /// Returns the socket and its keys, once both sides know each other.
    pub fn into_parts(self) -> Parts {
        let Duplex { stream, input, .. } = self.duplex;
        let (session, segment) = match self.stage {
            Stage::Known(session, segment) => (self.encrypt.then_some(session), segment),
            _ => (None, None),
        };
        let stream = match segment {
            Some(segment) => Transport::Memory(shm::Stream::new(stream, segment).into()),
            None => Transport::Socket(stream),
        };
        Parts { stream, session, read_ahead: input, same_host: self.same_host }
    }

    fn in_time(&self, now: Instant) -> Result<bool, Error> {
        if now < self.deadline {
            return Ok(false);
        }
        Err(Error::new(Kind::Timeout, "did not end its handshake in time"))
    }

    fn is_connected(&self) -> Result<bool, Error> {
        match self.duplex.stream.take_error() {
            Ok(Some(error)) | Err(error) => return Err(Error::broken(error)),
            Ok(None) => {}
        }
        match self.duplex.stream.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(Error::broken(error)),
        }
    }

    fn converse(&mut self, admit: impl FnOnce(&Hello) -> Result<(), Error>) -> Result<bool, Error> {
        let Duplex { input, output, .. } = &mut self.duplex;
        let mut admit = Some(admit);
        loop {
            self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Passing(handshake) => {
                    if input.is_empty() {
                        self.stage = Stage::Passing(handshake);
                        return Ok(false);
                    }
                    Key::check_answer(input.remove(0))?;
                    self.deadline = self.last;
                    Stage::Shaking(handshake)
                }
                Stage::Shaking(mut handshake) => {
                    let Some((mut session, theirs)) = handshake.advance(input, output)? else {
                        self.stage = Stage::Shaking(handshake);
                        return Ok(false);
                    };
                    self.encrypt |= theirs.encrypt;
                    self.shares_memory &= !self.encrypt;
                    if let Some(hello) = &mut self.hello {
                        if hello.channel == CONTROL && !self.same_host {
                            // The shorter of two round trips, since a busy processor makes one longer.
                            let shaking = self.since.elapsed() - self.connected_after;
                            let round_trip = shaking.min(self.connected_after);
                            let filling = self.connections.for_round_trip(round_trip);
                            hello.connections = filling.min(self.connections_max);
                        }
                        hello.shares_memory = self.shares_memory && hello.channel != CONTROL;
                        session.seal(&hello.to_bytes(), output);
                    }
                    Stage::Greeting(session)
                }
                Stage::Greeting(mut session) => {
                    let Some(record) = session.receive(input, HELLO_BYTES_MAX)? else {
                        self.stage = Stage::Greeting(session);
                        return Ok(false);
                    };
                    let turn = match (&self.hello, admit.take()) {
                        (Some(hello), _) => {
                            let offer = parse_verdict(&record, hello)?;
                            Exchange::guest(offer, |word| session.seal(word, output))?
                        }
                        (None, Some(admit)) => {
                            let hello = Hello::parse(&record)?;
                            let verdict = admit(&hello);
                            let mut answer = verdict_to_bytes(&verdict);
                            let turn = match verdict.is_ok() && hello.shares_memory {
                                true if self.shares_memory => {
                                    Exchange::host(hello.ring_bytes(), &mut answer)
                                }
                                _ => Turn::Over(None),
                            };
                            session.seal(&answer, output);
                            verdict?;
                            self.hello = Some(hello);
                            turn
                        }
                        (None, None) => unreachable!("who has heard a hello has it"),
                    };
                    Stage::after(session, turn)
                }
                Stage::Sharing(mut session, exchange) => {
                    let Some(record) = session.receive(input, HELLO_BYTES_MAX)? else {
                        self.stage = Stage::Sharing(session, exchange);
                        return Ok(false);
                    };
                    let turn = exchange.next(&record, |word| session.seal(word, output))?;
                    Stage::after(session, turn)
                }
                stage @ (Stage::Connecting(_) | Stage::Over) => {
                    self.stage = stage;
                    return Ok(false);
                }
                stage @ Stage::Known(..) => {
                    self.stage = stage;
                    return Ok(true);
                }
            }
        }
    }
}

impl Stage {
    fn after(session: Session, turn: Turn) -> Stage {
        match turn {
            Turn::Awaits(exchange) => Stage::Sharing(session, exchange),
            Turn::Over(segment) => Stage::Known(session, segment),
        }
    }
}

/// The length of a hello in bytes.
const HELLO_BYTES: usize = 17;

/// The longest record of this connection in bytes.
pub const HELLO_BYTES_MAX: usize = 512;

/// The refusals that can be sent, in the order of their codes from 1.
const REFUSALS: [Kind; 3] = [Kind::Invalid, Kind::WorldMismatch, Kind::RankTaken];

/// The channel of heartbeats, goodbyes and poison, which data never holds up.
pub const CONTROL: u16 = 0;

/// The rank that connects, and the channel that it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The rank that connects.
    pub rank: Rank,
    /// World size of the connecting rank.
    pub size: u32,
    /// The epoch of its group.
    pub epoch: u32,
    /// Channel of this connection: 0 for control, n for the n-th share of the data.
    pub channel: u16,
    /// Number of data connections that the rank makes.
    pub connections: u16,
    /// Whether the rank is willing to use shared memory instead of this connection.
    pub shares_memory: bool,
}

impl Hello {
    /// Returns the length of the rings of the memory that replaces this connection.
    fn ring_bytes(&self) -> usize {
        shm::ring_bytes((self.size as usize - 1) * usize::from(self.connections))
    }

    pub fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&self.rank.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.channel.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.connections.to_le_bytes());
        bytes[16] = self.shares_memory.into();
        bytes
    }

    /// Reads a hello.
    ///
    /// # Errors
    /// If the bytes are not a hello, or its numbers are impossible.
    pub fn parse(bytes: &[u8]) -> Result<Hello, Error> {
        let invalid = || Error::new(Kind::Corrupt, "sent something other than a hello");
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().map_err(|_| invalid())?;
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("inside"));
        let half = |at: usize| u16::from_le_bytes(*bytes[at..].first_chunk().expect("inside"));
        let (rank, size, epoch) = (Rank(word(0)), word(4), word(8));
        let (channel, connections) = (half(12), half(14));
        let possible = rank.0 < size
            && size <= WORLD_SIZE_MAX
            && (1..=CONNECTIONS_MAX).contains(&connections)
            && channel <= connections
            && bytes[16] <= u8::from(channel != CONTROL);
        if possible {
            Ok(Hello { rank, size, epoch, channel, connections, shares_memory: bytes[16] == 1 })
        } else {
            Err(invalid())
        }
    }
}

/// Returns the answer to a hello as it is sent.
pub fn verdict_to_bytes(verdict: &Result<(), Error>) -> Vec<u8> {
    match verdict {
        Ok(()) => vec![0],
        Err(error) => {
            let code = REFUSALS.iter().position(|kind| *kind == error.kind).unwrap_or(0);
            let text = error.context.as_bytes();
            let text = &text[..text.len().min(HELLO_BYTES_MAX - 1)];
            [&[code as u8 + 1], text].concat()
        }
    }
}

/// Returns the offer of memory in the answer to `hello`, which may be empty.
///
/// # Errors
/// The error of the refusal, or [`Kind::Corrupt`] if the bytes are not an answer.
pub fn parse_verdict<'a>(bytes: &'a [u8], hello: &Hello) -> Result<&'a [u8], Error> {
    match bytes.split_first() {
        Some((0, offer)) if offer.is_empty() || hello.shares_memory => Ok(offer),
        Some((code @ 1..=3, text)) => {
            let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
            Err(Error::new(REFUSALS[usize::from(*code) - 1], text))
        }
        _ => Err(Error::new(Kind::Corrupt, "sent something other than an answer to a hello")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HELLO: Hello = Hello {
        rank: Rank(1),
        size: 8,
        epoch: 0,
        channel: 1,
        connections: 4,
        shares_memory: false,
    };

    proptest! {
        #[test]
        fn hellos_parse_back(rank in 0u32..8, epoch: u32, channel in 0u16..=4, shares: bool) {
            let shares_memory = shares && channel != CONTROL;
            let hello = Hello { rank: Rank(rank), epoch, channel, shares_memory, ..HELLO };
            prop_assert_eq!(Hello::parse(&hello.to_bytes()).unwrap(), hello);
        }

        #[test]
        fn any_bytes_are_a_possible_hello_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            if let Ok(hello) = Hello::parse(&bytes) {
                prop_assert!(hello.rank.0 < hello.size && hello.channel <= hello.connections);
            }
            let _ = parse_verdict(&bytes, &HELLO);
        }
    }

    #[test]
    fn refusals_keep_their_sort_and_text() {
        for kind in REFUSALS {
            let error = parse_verdict(&verdict_to_bytes(&Err(Error::new(kind, "why"))), &HELLO)
                .unwrap_err();
            assert_eq!((error.kind, error.context.as_str()), (kind, "why"));
        }
        assert!(parse_verdict(&verdict_to_bytes(&Ok(())), &HELLO).unwrap().is_empty());
    }

    #[test]
    fn only_who_shares_memory_takes_an_offer() {
        let welcome = [[0].as_slice(), b"offer"].concat();
        assert_eq!(parse_verdict(&welcome, &HELLO).unwrap_err().kind, Kind::Corrupt);
        let shares = Hello { shares_memory: true, ..HELLO };
        assert_eq!(parse_verdict(&welcome, &shares).unwrap(), b"offer");
    }
}
