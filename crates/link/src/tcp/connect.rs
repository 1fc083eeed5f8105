//! Rendezvous: each rank publishes its address in the store and waits for all others.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use thinwire_wire::{Rank, World};

use crate::shared_port::Listener;
use crate::shared_port::address::Address;
use crate::store::Store;
use crate::tcp::Link;
use crate::tcp::agreement;
use crate::tcp::mesh::{self, Entry, Mesh};
use crate::tcp::options::{CONNECTIONS_MAX, Options, SharedMemory};
use crate::{Error, Kind, descriptors};

/// Interval at which a rank that waits for others checks that all have the same world.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Connects this rank to all others of its world. All ranks publish their addresses in the same store.
///
/// # Errors
/// If a rank does not appear or cannot be connected to in time, another process has this rank, two
/// sides disagree about token, version, world or epoch, or [`Options::cancel`] ends the call.
pub fn connect(world: World, store: &dyn Store, options: &Options) -> Result<Link, Error> {
    options.check()?;
    if world.size() == 1 {
        return Link::new(world, vec![None], options);
    }
    let peers = world.size() as u64 - 1;
    let needed = peers * (1 + u64::from(options.connections.least()));
    let count = if peers == 1 { "another rank".to_owned() } else { format!("{peers} ranks") };
    descriptors::reserve(&format!("the link to {count}"), needed)?;
    let options = &without_scarcity(options, peers, needed);
    let connections_max = connections_max(peers);
    let deadline = Instant::now() + options.timeout;
    let listener = match options.port {
        Some(port) => {
            let address = SocketAddr::new(options.bind, port);
            Listener::shared(address, deadline, options.cancel.as_ref())?
        }
        None => Listener::own(SocketAddr::new(options.bind, 0))?,
    };
    let address = listener.address()?;
    agreement::claim(world, store, options.epoch)?;
    let rendezvous = Rendezvous { world, store, options, deadline };
    rendezvous.publish(address, connections_max)?;
    let entries = rendezvous.gather()?;
    let peers = Mesh::new(world, options, &listener, entries, deadline).make()?;
    let link = Link::new(world, peers, options)?;
    Ok(match options.unreachable {
        // Others that listen for unreachable ranks check at this port whether they reach this one again.
        Some(_) => link.with_port(listener),
        None => link,
    })
}

/// Returns the same options, without shared memory if too few descriptors are left for it.
fn without_scarcity(options: &Options, peers: u64, needed: u64) -> Options {
    // Two bells for each connection, and two more while it is made.
    let memory = 4 * peers * u64::from(options.connections.least());
    let suffice = || descriptors::reserve("shared memory", needed + memory).is_ok();
    let shared_memory = match options.shared_memory {
        SharedMemory::Auto if suffice() => SharedMemory::Auto,
        _ => SharedMemory::Never,
    };
    Options { shared_memory, ..options.clone() }
}

/// Returns the most data connections to each peer for which this process has descriptors.
fn connections_max(peers: u64) -> u16 {
    let wanted = peers * (1 + u64::from(CONNECTIONS_MAX));
    let files = descriptors::reserve_up_to(wanted);
    // If descriptors are short, half of them are left for the files of the process and for further links.
    let files = if files < wanted { files / 2 } else { files };
    // The control connection is one of them.
    let most = (files / peers).saturating_sub(1).max(1);
    u16::try_from(most).map_or(CONNECTIONS_MAX, |most| most.min(CONNECTIONS_MAX))
}

/// Tries to connect to some ranks, and returns the first one to which this process cannot connect at
/// present, if there is one. The ranks have met in this store, and keep their ports open; see
/// [`Options::unreachable`].
pub fn unreachable(
    mut ranks: impl Iterator<Item = Rank>,
    store: &dyn Store,
    epoch: u32,
    handshake_timeout: Duration,
) -> Option<Rank> {
    ranks.find(|rank| {
        let value = store.get(&key(epoch, *rank), Duration::ZERO).ok();
        let address = value.and_then(|value| {
            String::from_utf8_lossy(&value).split(' ').nth(1)?.parse::<Address>().ok()
        });
        // A rank without an entry has met others since, and may have another address.
        address.is_some_and(|address| {
            match TcpStream::connect_timeout(&address.socket, handshake_timeout) {
                Ok(_) => false,
                // Its host answers; the rank may listen on another port by now.
                Err(error) => error.kind() != ErrorKind::ConnectionRefused,
            }
        })
    })
}

fn key(epoch: u32, rank: Rank) -> String {
    format!("epoch/{epoch}/rank/{}", rank.0)
}

/// A rank that looks for all others in the store.
struct Rendezvous<'a> {
    world: World,
    store: &'a dyn Store,
    options: &'a Options,
    deadline: Instant,
}

impl Rendezvous<'_> {
    fn key(&self, rank: Rank) -> String {
        key(self.options.epoch, rank)
    }

    /// Publishes the entry of this rank.
    fn publish(&self, address: Address, connections_max: u16) -> Result<(), Error> {
        let timeout_ms = self.options.heartbeat_timeout.map_or(0, |timeout| timeout.as_millis());
        let mut value = format!("{} {address} {timeout_ms}", self.world.size());
        if connections_max < CONNECTIONS_MAX {
            value += &format!(" {connections_max}");
        }
        let me = self.world.rank();
        self.store.set(&self.key(me), value.as_bytes()).map_err(|error| match error.kind {
            Kind::RankTaken => {
                let context = format!("{me} is taken by another process: {}", error.context);
                Error::new(Kind::RankTaken, context).with_rank(me)
            }
            _ => error,
        })
    }

    /// Returns the entries of all ranks, this one included.
    fn gather(&self) -> Result<Vec<Entry>, Error> {
        self.world.ranks().map(|rank| parse(self.world, rank, &self.wait_for(rank)?)).collect()
    }

    /// Waits for a rank's entry in the store, unless any rank announces another world meanwhile.
    fn wait_for(&self, rank: Rank) -> Result<Vec<u8>, Error> {
        let mut look = Instant::now() + LOOK_EVERY;
        loop {
            let size = self.world.size();
            // No rank is connected yet, so all of them are awaited.
            let awaited: Vec<Rank> = self.world.peers().collect();
            let doing = || format!("waiting for {rank} of {size} to appear");
            self.options.check_awaited(&awaited, doing)?;
            let until = self.deadline.min(look).saturating_duration_since(Instant::now());
            let absent = match self.store.get(&self.key(rank), until.min(self.options.wait_max())) {
                Ok(value) => return Ok(value),
                Err(error) if is_absence(error.kind) => error,
                Err(error) => return Err(error),
            };
            let now = Instant::now();
            if now >= look.min(self.deadline) {
                agreement::check(self.world, self.store, self.options.epoch)?;
                look = now + LOOK_EVERY;
            }
            if now >= self.deadline {
                return Err(self.missing(absent));
            }
        }
    }

    /// Adds to an error the ranks that have not appeared, with the reason in the store.
    fn missing(&self, cause: Error) -> Error {
        let absent = |rank: &Rank| self.store.get(&self.key(*rank), Duration::ZERO).is_err();
        let missing: Vec<Rank> = self.world.peers().filter(absent).collect();
        self.options.tell_unreachable(&missing);
        let why =
            cause.context.split_once("; ").map_or(String::new(), |(_, why)| format!("; {why}"));
        let context = format!(
            "{} of {} did not appear within {:.0} s{why}",
            mesh::name(&missing),
            self.world.size(),
            self.options.timeout.as_secs_f64().ceil()
        );
        let error = Error::new(cause.kind, context);
        match missing.first() {
            Some(rank) => error.with_rank(*rank),
            // All have appeared since.
            None => cause,
        }
    }
}

/// Returns whether an error means that the store has no such value yet; the store may know a process
/// that was refused.
fn is_absence(kind: Kind) -> bool {
    matches!(kind, Kind::Timeout | Kind::TokenMismatch | Kind::VersionMismatch)
}

/// Parses an entry: world, address, heartbeat timeout in milliseconds (0 if there is none), and the most connections
/// if they are fewer than [`CONNECTIONS_MAX`].
fn parse(world: World, rank: Rank, value: &[u8]) -> Result<Entry, Error> {
    let text = String::from_utf8_lossy(value);
    let words: Vec<&str> = text.split(' ').collect();
    let parsed = match words[..] {
        [size, address, timeout_ms] => entry([size, address, timeout_ms], CONNECTIONS_MAX),
        [size, address, timeout_ms, most] => match most.parse() {
            Ok(most @ 1..=CONNECTIONS_MAX) => entry([size, address, timeout_ms], most),
            _ => None,
        },
        _ => None,
    };
    let Some((size, entry)) = parsed else {
        let text = text.escape_debug();
        let context = format!(
            "the store says '{text}' about {rank}, expected its world, address and timeout in ms"
        );
        return Err(Error::new(Kind::Corrupt, context).with_rank(rank));
    };
    if size != world.size() {
        return Err(agreement::mismatch(world, rank, size));
    }
    Ok(entry)
}

/// Returns a world's size and a rank's entry.
fn entry([size, address, timeout_ms]: [&str; 3], connections_max: u16) -> Option<(usize, Entry)> {
    let timeout = Duration::from_millis(timeout_ms.parse().ok()?);
    let heartbeat_timeout = (!timeout.is_zero()).then_some(timeout);
    let entry = Entry { address: address.parse().ok()?, heartbeat_timeout, connections_max };
    Some((size.parse().ok()?, entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_most_connections_where_they_are_few() {
        let world = World::new(0, 2).unwrap();
        let most = |value: &str| {
            parse(world, Rank(1), value.as_bytes()).map(|entry| entry.connections_max).ok()
        };
        assert_eq!(most("2 127.0.0.1:9 0"), Some(CONNECTIONS_MAX));
        assert_eq!(most("2 127.0.0.1:9 0 3"), Some(3));
        for value in
            ["2 127.0.0.1:9", "2 127.0.0.1:9 0 0", "2 127.0.0.1:9 0 65", "2 127.0.0.1:9 0 3 3"]
        {
            assert_eq!(most(value), None, "{value}");
        }
    }
}
