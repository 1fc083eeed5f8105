//! Options of the TCP link.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use thinwire_wire::Rank;

use crate::tcp::cancel::{CANCEL_EVERY, Cancel, Unreachable, WATCH_EVERY, Watch};
use crate::{Bandwidth, Error, Kind, Token};

/// The most data connections between two ranks.
pub const CONNECTIONS_MAX: u16 = 64;
/// The most data connections between two ranks where no number was given.
const UNASKED_MAX: u16 = 16;
/// Bytes that one connection can have under way under the defaults of Linux: half of the largest send buffer.
const WINDOW_BYTES: f64 = 2.0 * 1024.0 * 1024.0;
/// Rate that the connections between two ranks should reach, in bytes per second: 2.5 Gbit/s.
const RATE_BYTES_PER_S: f64 = 2.5e9 / 8.0;

/// The shortest heartbeat timeout: a shorter silence does not show that a peer is lost.
const HEARTBEAT_TIMEOUT_MIN: Duration = Duration::from_millis(50);

/// The traffic that is encrypted after the handshake. Between two ranks the stricter choice is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    /// Traffic that leaves the machine.
    #[default]
    Auto,
    /// Everything.
    Always,
    /// Nothing: the network is trusted.
    Never,
}

/// The data that goes through shared memory. If one of two ranks refuses, TCP carries their data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedMemory {
    /// Data between ranks of one user on one host, unless it is encrypted.
    #[default]
    Auto,
    /// None.
    Never,
}

/// Number of data connections to a peer. The higher one of two ranks makes the connections and decides
/// their number. There are fewer if one of the two lacks file descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// This number, at most [`CONNECTIONS_MAX`].
    Exactly(u16),
    /// This number, or more to a peer on another host if the round trip is so long that one connection cannot fill the
    /// link.
    AtLeast(u16),
}

impl Default for Connections {
    fn default() -> Connections {
        Connections::AtLeast(1)
    }
}

impl Connections {
    /// Returns exactly the given number, or `self` if none is given.
    #[must_use]
    pub fn or_exactly(self, given: Option<u16>) -> Connections {
        given.map_or(self, Connections::Exactly)
    }

    /// Returns the least number.
    pub const fn least(self) -> u16 {
        let (Connections::Exactly(least) | Connections::AtLeast(least)) = self;
        least
    }

    /// Returns the largest number.
    pub fn most(self) -> u16 {
        match self {
            Connections::Exactly(most) => most,
            Connections::AtLeast(least) => least.max(UNASKED_MAX),
        }
    }

    /// Returns the number for a round trip.
    pub fn for_round_trip(self, round_trip: Duration) -> u16 {
        let filling = (round_trip.as_secs_f64() * RATE_BYTES_PER_S / WINDOW_BYTES).ceil();
        (filling as u16).clamp(self.least(), self.most())
    }
}

/// Options of [`super::connect`].
#[derive(Clone, Debug)]
pub struct Options {
    /// The secret of the job.
    pub token: Token,
    /// The address to listen on, which the other ranks must be able to reach; see [`address_towards`].
    pub bind: IpAddr,
    /// The port that all ranks of this host share; if `None`, each rank uses a free one.
    pub port: Option<u16>,
    /// The epoch of the group; frames of other epochs are refused.
    pub epoch: u32,
    /// Data connections per peer.
    pub connections: Connections,
    /// The traffic that is encrypted.
    pub encryption: Encryption,
    /// The data that goes through shared memory.
    pub shared_memory: SharedMemory,
    /// The rate of an emulated link: this rank sends and receives at most at this rate.
    pub limit: Option<Bandwidth>,
    /// The silence after which a peer counts as lost; `None` if no silence counts as a loss. Each
    /// peer learns this timeout, and sends heartbeats often enough for it.
    pub heartbeat_timeout: Option<Duration>,
    /// Time that all ranks may take to find each other.
    pub timeout: Duration,
    /// Handle that ends the search for the other ranks early.
    pub cancel: Option<Cancel>,
    /// Check that may end the search for the other ranks early, for instance when one of them has
    /// failed.
    pub watch: Option<Watch>,
    /// Listener for the ranks that cannot be reached when the link ends or cannot be made. It gets
    /// all of them, while an error names only one. A link with a listener keeps its port open, so
    /// that others can check whether they reach it.
    pub unreachable: Option<Unreachable>,
}

impl Options {
    /// Returns the options for loopback, with one connection per peer and a heartbeat timeout of ten
    /// seconds.
    pub fn new(token: Token) -> Options {
        Options {
            token,
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: None,
            epoch: 0,
            connections: Connections::default(),
            encryption: Encryption::Auto,
            shared_memory: SharedMemory::Auto,
            limit: None,
            heartbeat_timeout: Some(Duration::from_secs(10)),
            timeout: Duration::from_secs(60),
            cancel: None,
            watch: None,
            unreachable: None,
        }
    }

    /// Tells the listener, if there is one, which ranks cannot be reached.
    pub(super) fn tell_unreachable(&self, ranks: &[Rank]) {
        self.unreachable.iter().for_each(|listener| listener.hear(ranks));
    }

    /// Returns the longest wait between two checks of the cancel handle and the watch.
    pub(super) fn wait_max(&self) -> Duration {
        match (&self.cancel, &self.watch) {
            (Some(_), _) => CANCEL_EVERY,
            (None, Some(_)) => WATCH_EVERY,
            (None, None) => Duration::MAX,
        }
    }

    /// Ends the wait for some ranks, which `doing` describes, if it was cancelled or the watch knows
    /// that they do not come.
    ///
    /// # Errors
    /// [`Kind::Cancelled`], or the error of the watch.
    pub(super) fn check_awaited(
        &self,
        awaited: &[Rank],
        doing: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        let cancelled = self.cancel.as_ref().is_some_and(Cancel::is_cancelled);
        if cancelled {
            return Err(Error::new(Kind::Cancelled, format!("cancelled while {}", doing())));
        }
        self.watch.as_ref().map_or(Ok(()), |watch| watch.look(awaited))
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let invalid = |context: String| Err(Error::new(Kind::Invalid, context));
        let found = self.connections.least();
        if !(1..=CONNECTIONS_MAX).contains(&found) {
            return invalid(format!("{found} connections, expected 1..={CONNECTIONS_MAX}"));
        }
        if self.bind.is_unspecified() {
            return invalid(format!(
                "cannot tell other ranks to connect to {}, expected an address of this host",
                self.bind
            ));
        }
        if self.port == Some(0) {
            return invalid("port 0 for all ranks of a host, expected 1..=65535".to_owned());
        }
        if self.heartbeat_timeout.is_some_and(|timeout| timeout < HEARTBEAT_TIMEOUT_MIN) {
            let (found, least) = (self.heartbeat_timeout, HEARTBEAT_TIMEOUT_MIN);
            return invalid(format!(
                "a heartbeat timeout of {:?}, expected at least {least:?}",
                found.unwrap_or_default()
            ));
        }
        Ok(())
    }
}

/// Returns the address of this host from which it reaches `coordinator`; loopback if the coordinator is
/// on loopback.
///
/// # Errors
/// If there is no route.
pub fn address_towards(coordinator: SocketAddr) -> Result<IpAddr, Error> {
    let any: SocketAddr = match coordinator {
        SocketAddr::V4(_) => ([0; 4], 0).into(),
        SocketAddr::V6(_) => ([0; 16], 0).into(),
    };
    // Connecting a datagram socket sends nothing; it only asks for a route.
    let address = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(coordinator)?;
        socket.local_addr()
    });
    address.map(|address| address.ip()).map_err(|error| {
        Error::io(format_args!("no route to {coordinator}"), error).of(Kind::Unreachable)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_fill_a_link_whose_round_trip_is_long() {
        let of =
            |connections: Connections, ms| connections.for_round_trip(Duration::from_millis(ms));
        let usual = Connections::default();
        assert_eq!(
            [0, 1, 6, 7, 20, 50, 100, 1_000_000].map(|ms| of(usual, ms)),
            [1, 1, 1, 2, 3, 8, 15, 16]
        );
        assert_eq!([0, 7, 100].map(|ms| of(Connections::AtLeast(2), ms)), [2, 2, 15]);
        assert_eq!([0, 100].map(|ms| of(Connections::Exactly(4), ms)), [4, 4]);
        assert_eq!([0, 100].map(|ms| of(Connections::AtLeast(32), ms)), [32, 32]);
    }

    #[test]
    fn a_given_number_of_connections_is_exact() {
        let usual = Connections::default();
        assert_eq!(
            [None, Some(4)].map(|given| usual.or_exactly(given)),
            [usual, Connections::Exactly(4)]
        );
    }

    #[test]
    fn the_way_to_loopback_is_loopback() {
        let address = address_towards("127.0.0.1:9".parse().unwrap()).unwrap();
        assert!(address.is_loopback());
    }

    #[test]
    fn impossible_options_are_refused() {
        let good = Options::new(Token::new("t"));
        assert!(good.check().is_ok());
        let none = Options { connections: Connections::AtLeast(0), ..good.clone() };
        assert!(none.check().is_err());
        assert!(Options { bind: [0; 4].into(), ..good.clone() }.check().is_err());
        assert!(Options { port: Some(0), ..good.clone() }.check().is_err());
        let heartbeat_timeout = Some(Duration::ZERO);
        assert!(Options { heartbeat_timeout, ..good }.check().is_err());
    }
}
