//! How the ranks of a job meet: a store on a known address, a secret, and then a link to everyone.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use thinwire_link::store::Store;
use thinwire_link::store::tcp::{Client, Server};
use thinwire_link::{Bandwidth, InvalidBandwidth, Link, Token, mem, tcp};
use thinwire_wire::World;

use crate::environment::{self, Flags, Host, Place, is_loopback};

/// What the link between ranks is like.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Link")]
pub struct Settings {
    /// Emulate a link of this bandwidth per rank and direction: 100mbit, 1gbit, none [default: none,
    /// and 100mbit between ranks that train or compare start themselves]
    #[arg(long = "link", value_name = "BANDWIDTH")]
    pub limit: Option<Limit>,
    /// Encrypt traffic: what leaves the machine, all of it, or nothing
    #[arg(long, value_enum, default_value = "auto")]
    pub encryption: Encryption,
    /// TCP connections to each peer
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub connections: u16,
    /// Give up when nothing has moved for this many seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
}

/// An emulated bandwidth, or none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit(pub Option<Bandwidth>);

impl FromStr for Limit {
    type Err = InvalidBandwidth;

    fn from_str(text: &str) -> Result<Limit, InvalidBandwidth> {
        Bandwidth::parse_limit(text).map(Limit)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bandwidth) => bandwidth.fmt(f),
            None => f.write_str("none"),
        }
    }
}

/// Which traffic is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Encryption {
    /// What leaves the machine
    Auto,
    /// Everything
    Always,
    /// Nothing: the network is trusted
    Never,
}

impl From<Encryption> for tcp::Encryption {
    fn from(encryption: Encryption) -> tcp::Encryption {
        match encryption {
            Encryption::Auto => tcp::Encryption::Auto,
            Encryption::Always => tcp::Encryption::Always,
            Encryption::Never => tcp::Encryption::Never,
        }
    }
}

impl Settings {
    /// The timeout.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// The emulated bandwidth where none is emulated unless asked for.
    pub fn limit(&self) -> Option<Bandwidth> {
        self.limit.and_then(|limit| limit.0)
    }

    /// The link in words; an emulation is called one.
    pub fn describe(&self, limit: Option<Bandwidth>, place: &Place) -> String {
        match limit {
            _ if place.world == 1 => "none, one rank".to_owned(),
            Some(limit) => {
                let rate = rate_in_words(limit);
                format!("{rate} per rank and direction, emulated by a token bucket")
            }
            None if is_loopback(&place.coordinator) => "TCP over loopback, no limit".to_owned(),
            None => "TCP, no limit".to_owned(),
        }
    }
}

/// "100 Mbit/s".
fn rate_in_words(bandwidth: Bandwidth) -> String {
    let bits = 8.0 * bandwidth.bytes_per_s();
    let (unit, name) = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")]
        .into_iter()
        .find(|(unit, _)| bits >= *unit)
        .unwrap_or((1.0, "bit/s"));
    format!("{} {name}", bits / unit)
}

/// A rank that knows where to meet the others.
pub struct Meeting {
    world: World,
    /// Where all know each other's addresses; a rank that is alone needs none.
    store: Option<Client>,
    options: tcp::Options,
    /// How many links were made.
    links: u32,
    /// Rank 0 may be the store's host.
    _server: Option<Server>,
}

/// A part of a store: the addresses of one of several links between the same ranks.
struct Part<'a> {
    store: &'a dyn Store,
    name: String,
}

impl Store for Part<'_> {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), thinwire_link::Error> {
        self.store.set(&format!("{}/{key}", self.name), value)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, thinwire_link::Error> {
        self.store.get(&format!("{}/{key}", self.name), timeout)
    }
}

impl Meeting {
    /// Goes to the store, or, as rank 0 of a job without a launcher, opens it.
    ///
    /// # Errors
    /// If the store's address is taken or does not answer, or the token is another or missing.
    pub fn new(
        place: &Place,
        flags: &Flags,
        settings: &Settings,
        limit: Option<Bandwidth>,
    ) -> Result<Meeting> {
        let world = World::new(place.rank, place.world)?;
        let secret = Token::new(&environment::token(flags, &place.coordinator)?);
        let mut options = tcp::Options {
            connections: settings.connections,
            encryption: settings.encryption.into(),
            limit,
            timeout: settings.timeout(),
            ..tcp::Options::new(secret.clone())
        };
        if world.size() == 1 {
            return Ok(Meeting { world, store: None, options, links: 0, _server: None });
        }
        let hosts = place.host == Host::RankZero && place.rank == 0;
        let server = hosts.then(|| open(&place.coordinator, &secret)).transpose()?;
        let store = Client::connect(&place.coordinator, &secret, settings.timeout())?;
        options.bind = tcp::address_towards(store.address())?;
        Ok(Meeting { world, store: Some(store), options, links: 0, _server: server })
    }

    /// This rank's place.
    pub fn world(&self) -> World {
        self.world
    }

    /// A fresh link to all other ranks; every rank makes equally many.
    ///
    /// # Errors
    /// If a rank does not appear.
    pub fn link(&mut self) -> Result<Box<dyn Link>> {
        let Some(store) = &self.store else { return Ok(Box::new(mem::alone())) };
        let part = Part { store, name: format!("link/{}", self.links) };
        self.links += 1;
        Ok(Box::new(tcp::connect(self.world, &part, &self.options)?))
    }

    /// The next links encrypt this, and do not mind when nobody drives them for a while.
    pub fn bare(&mut self, encryption: Encryption) {
        self.options.encryption = encryption.into();
        self.options.heartbeat = None;
    }

    /// The store, and this rank's address towards the others, unless it is alone.
    pub fn store(&self) -> Option<(&dyn Store, IpAddr)> {
        self.store.as_ref().map(|store| (store as &dyn Store, self.options.bind))
    }
}

/// A store for ranks on this machine, on a free port.
///
/// # Errors
/// If loopback refuses.
pub fn host(token: &str) -> Result<Server> {
    Ok(Server::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &Token::new(token))?)
}

/// The secret that the user gave, or a fresh one.
///
/// # Errors
/// If the system has no random numbers.
pub fn token_or_fresh(given: Option<&String>) -> Result<String> {
    Ok(given.map_or_else(Token::random, |token| Ok(token.clone()))?)
}

fn open(coordinator: &str, token: &Token) -> Result<Server> {
    Ok(Server::bind(listening_address(coordinator)?, token)?)
}

/// Where rank 0 listens if all ranks are told to meet at `coordinator`: on loopback if that is
/// there, else on every interface, because a host's own name often resolves to itself only.
fn listening_address(coordinator: &str) -> Result<SocketAddr> {
    let resolved = coordinator.to_socket_addrs().ok().and_then(|mut found| found.next());
    let resolved = resolved.with_context(|| format!("'{coordinator}' is no known address"))?;
    if is_loopback(coordinator) {
        return Ok(resolved);
    }
    let any: IpAddr = match resolved {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    Ok(SocketAddr::new(any, resolved.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_meets_on_loopback_listens_there_alone() {
        let table = [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("10.1.2.3:80", "0.0.0.0:80"),
            ("[fe80::1]:80", "[::]:80"),
        ];
        for (coordinator, listens) in table {
            assert_eq!(listening_address(coordinator).unwrap().to_string(), listens);
        }
        assert!(listening_address("nothing").is_err());
    }

    #[test]
    fn an_emulated_link_is_called_one() {
        let limit: Limit = "100mbit".parse().unwrap();
        assert_eq!(rate_in_words(limit.0.unwrap()), "100 Mbit/s");
        assert_eq!(limit.to_string(), "100mbit");
        assert_eq!("none".parse(), Ok(Limit(None)));
    }
}
