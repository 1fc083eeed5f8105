//! Rendezvous: each rank leaves its address in the store and waits for all others.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use thinwire_wire::{Rank, World};

use crate::store::Store;
use crate::store::tcp::listen;
use crate::tcp::Tcp;
use crate::tcp::agreement;
use crate::tcp::mesh::{self, Entry, Mesh};
use crate::tcp::options::Options;
use crate::{Error, Kind};

/// Interval at which a rank that waits for another compares their worlds.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Connects this rank to all others of its world, who leave their addresses in the same store.
///
/// # Errors
/// If a rank does not appear or cannot be connected to in time, another process has this rank,
/// or two sides disagree about token, version, world or epoch.
pub fn connect(world: World, store: &dyn Store, options: &Options) -> Result<Tcp, Error> {
    options.check()?;
    if world.size() == 1 {
        return Tcp::new(world, vec![None], options);
    }
    let deadline = Instant::now() + options.timeout;
    let listener = listen(SocketAddr::new(options.bind, 0))?;
    let address = listener
        .local_addr()
        .map_err(|error| Error::io(format_args!("cannot listen on {}", options.bind), error))?;
    agreement::claim(world, store, options.epoch)?;
    publish(world, store, options, address)?;
    let entries = gather(world, store, options, deadline)?;
    let peers = Mesh::new(world, options, listener, entries, deadline).make()?;
    Tcp::new(world, peers, options)
}

fn key(options: &Options, rank: Rank) -> String {
    format!("epoch/{}/rank/{}", options.epoch, rank.0)
}

fn publish(
    world: World,
    store: &dyn Store,
    options: &Options,
    address: SocketAddr,
) -> Result<(), Error> {
    let timeout_ms = options.heartbeat_timeout.map_or(0, |timeout| timeout.as_millis());
    let value = format!("{} {address} {timeout_ms}", world.size());
    let me = world.rank();
    store.set(&key(options, me), value.as_bytes()).map_err(|error| match error.kind {
        Kind::RankTaken => {
            let context = format!("{me} is taken by another process: {}", error.context);
            Error::new(Kind::RankTaken, context).with_rank(me)
        }
        _ => error,
    })
}

/// Every rank's entry about itself, my own included.
fn gather(
    world: World,
    store: &dyn Store,
    options: &Options,
    deadline: Instant,
) -> Result<Vec<Entry>, Error> {
    let entries = world.ranks().map(|rank| {
        let value = wait_for(rank, world, store, options, deadline)?;
        parse(world, rank, &value)
    });
    entries.collect()
}

/// Waits for a rank's entry in the store, unless any rank announces another world meanwhile.
fn wait_for(
    rank: Rank,
    world: World,
    store: &dyn Store,
    options: &Options,
    deadline: Instant,
) -> Result<Vec<u8>, Error> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let absent = match store.get(&key(options, rank), left.min(LOOK_EVERY)) {
            Ok(value) => return Ok(value),
            Err(error) if is_absence(error.kind) => error,
            Err(error) => return Err(error),
        };
        agreement::check(world, store, options.epoch)?;
        if Instant::now() >= deadline {
            return Err(missing(world, store, options, absent));
        }
    }
}

/// Whether a store has nothing yet; it may know who was refused.
fn is_absence(kind: Kind) -> bool {
    matches!(kind, Kind::Timeout | Kind::TokenMismatch | Kind::VersionMismatch)
}

/// World, address, and heartbeat timeout in milliseconds, 0 if there is none.
fn parse(world: World, rank: Rank, value: &[u8]) -> Result<Entry, Error> {
    let text = String::from_utf8_lossy(value);
    let words: Vec<&str> = text.split(' ').collect();
    let parsed = <[&str; 3]>::try_from(words).ok().and_then(|[size, address, timeout_ms]| {
        let timeout = Duration::from_millis(timeout_ms.parse().ok()?);
        let heartbeat_timeout = (!timeout.is_zero()).then_some(timeout);
        let address = address.parse().ok()?;
        Some((size.parse::<usize>().ok()?, Entry { address, heartbeat_timeout }))
    });
    let Some((size, entry)) = parsed else {
        let text = text.escape_debug();
        let context =
            format!("the store says '{text}' about {rank}, expected its world, address and ms");
        return Err(Error::new(Kind::Corrupt, context).with_rank(rank));
    };
    if size != world.size() {
        return Err(agreement::mismatch(world, rank, size));
    }
    Ok(entry)
}

/// Names the ranks that have not appeared, with the reason that the store knows.
fn missing(world: World, store: &dyn Store, options: &Options, cause: Error) -> Error {
    let absent = |rank: &Rank| store.get(&key(options, *rank), Duration::ZERO).is_err();
    let missing: Vec<Rank> = world.peers().filter(absent).collect();
    let why = cause.context.split_once("; ").map_or(String::new(), |(_, why)| format!("; {why}"));
    let context = format!(
        "{} of {} did not appear within {:.0} s{why}",
        mesh::name(&missing),
        world.size(),
        options.timeout.as_secs_f64().ceil()
    );
    let error = Error::new(cause.kind, context);
    match missing.first() {
        Some(rank) => error.with_rank(*rank),
        None => cause,
    }
}
