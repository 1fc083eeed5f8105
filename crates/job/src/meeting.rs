//! Rendezvous of the ranks of a job: ranks connect to a store at a known address, with a secret, and
//! then make links to all other ranks.
//!
//! Law: every rank makes links of one name in the same order; links with different names may be made in any
//! order, from any threads. Each link therefore uses its own connection to the store, so that a rank that
//! waits there for the others does not block anything else.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use thinwire_link::store::Store;
use thinwire_link::store::tcp::{Client, Server};
use thinwire_link::{self as link, Bandwidth, Deadline, Kind, Link, Token, mem, tcp};
use thinwire_wire::{Rank, World};

use crate::address::seen_by_others;
use crate::error::Error;
use crate::identity::Identity;
use crate::place::{Host, Place};
use crate::port::check_apart;
use crate::rendezvous::{host, secret};

/// The longest name of a link in bytes, so that its keys fit into a store.
const NAME_BYTES_MAX: usize = 48;

/// Time for which rank 0 keeps the store open after the job has ended, if it hosts the store, to tell
/// the others that the job is over.
pub(crate) const LINGER: Duration = Duration::from_secs(5);

/// Time in which a watch may explain why the store is gone: the store's host may be the rank that was lost.
const EXPLANATION: Duration = Duration::from_secs(2);

/// Options of the links between ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Traffic that is encrypted.
    pub encryption: tcp::Encryption,
    /// Whether data goes through shared memory, see `shared_memory`.
    pub shared_memory: tcp::SharedMemory,
    /// The port that all ranks of this host share, see `port`; if `None`, each rank has a free port of its
    /// own.
    pub port: Option<u16>,
    /// TCP connections to each peer.
    pub connections: tcp::Connections,
    /// Time within which all ranks must connect.
    pub timeout: Duration,
    /// The silence after which a rank counts as lost, see `heartbeat_timeout`.
    pub heartbeat_timeout: Duration,
    /// An emulated bandwidth per rank and direction.
    pub limit: Option<Bandwidth>,
}

impl Default for Settings {
    /// Returns the default settings: at least one connection per peer, encryption of traffic that leaves
    /// the machine, shared memory within it, a minute to meet, a heartbeat timeout of ten seconds, and no
    /// bandwidth limit.
    fn default() -> Settings {
        Settings {
            encryption: tcp::Encryption::Auto,
            shared_memory: tcp::SharedMemory::Auto,
            port: None,
            connections: tcp::Connections::default(),
            timeout: Duration::from_secs(60),
            heartbeat_timeout: Duration::from_secs(10),
            limit: None,
        }
    }
}

impl Settings {
    /// Returns the options of links between processes with this secret.
    pub(crate) fn link_options(&self, secret: &Token) -> tcp::Options {
        tcp::Options {
            connections: self.connections,
            encryption: self.encryption,
            shared_memory: self.shared_memory,
            port: self.port,
            limit: self.limit,
            timeout: self.timeout,
            heartbeat_timeout: Some(self.heartbeat_timeout),
            ..tcp::Options::new(secret.clone())
        }
    }
}

/// A rank that knows the store at which it finds the others.
#[derive(Debug)]
pub struct Meeting {
    place: Place,
    world: World,
    /// Store of the ranks' addresses; a rank that is alone needs none.
    store: Option<StoreHandle>,
    options: tcp::Options,
    /// Number of links of each name that were made.
    uses: Mutex<BTreeMap<String, u32>>,
    /// The store's server, if rank 0 hosts it.
    server: Option<Server>,
}

/// The store as this rank reaches it.
#[derive(Debug)]
struct StoreHandle {
    client: Client,
    /// The secret of the store.
    secret: Token,
    identity: Identity,
}

impl Meeting {
    /// Connects to the store, or opens it as rank 0 if [`Place::host`] says so.
    ///
    /// # Errors
    /// If the store's address is taken or does not answer, or the token is wrong, or too short for
    /// ranks that meet beyond this machine.
    pub fn new(place: &Place, token: &str, settings: &Settings) -> Result<Meeting, Error> {
        let world = place.world()?;
        let secret = match world.size() {
            // Nobody else can connect, so any token will do.
            1 => Token::new(token),
            _ => secret(token, &place.coordinator)?,
        };
        let mut options = settings.link_options(&secret);
        let uses = Mutex::default();
        if world.size() == 1 {
            let place = place.clone();
            return Ok(Meeting { place, world, store: None, options, uses, server: None });
        }
        check_apart(settings.port, &place.coordinator)?;
        let hosts = place.host == Host::RankZero && place.rank == 0;
        let server = hosts.then(|| host(place, &secret)).transpose()?;
        let client = Client::connect(&place.coordinator, &secret, settings.timeout)?;
        let towards = tcp::address_towards(client.address())?;
        options.bind = seen_by_others(&place.coordinator, towards);
        let identity = Identity::at(&client, place)?;
        options.token = identity.of_links(&secret);
        let store = Some(StoreHandle { client, secret, identity });
        Ok(Meeting { place: place.clone(), world, store, options, uses, server })
    }

    /// Returns this rank and the number of ranks.
    pub fn world(&self) -> World {
        self.world
    }

    /// Returns a new link to all other ranks. Every rank must make the same number of links.
    ///
    /// # Errors
    /// If a rank does not appear.
    pub fn link(&self) -> Result<Link, Error> {
        self.link_in(prefix, String::new(), None)
    }

    /// Returns a new link to all other ranks that make one of the same name. Every rank must make the same
    /// number of links of each name. Links with different names need no common order.
    ///
    /// # Errors
    /// If the name is empty or longer than 48 bytes, or a rank does not appear.
    pub fn link_named(&self, name: &str) -> Result<Link, Error> {
        self.named(name, None)
    }

    /// Makes a link as [`Meeting::link_named`] does, between ranks that have met before. The wait ends as
    /// soon as `watch`, which belongs to their earlier link, reports that a rank cannot come.
    ///
    /// # Errors
    /// As [`Meeting::link_named`], or if `watch` reports an error.
    pub fn link_watched(&self, name: &str, watch: tcp::Watch) -> Result<Link, Error> {
        self.named(name, Some(watch))
    }

    fn named(&self, name: &str, watch: Option<tcp::Watch>) -> Result<Link, Error> {
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
            let found = name.len();
            let expected = format!("expected 1..={NAME_BYTES_MAX}");
            return Err(Error::invalid(format!("name of a link of {found} bytes, {expected}")));
        }
        self.link_in(|uses| format!("named/{}/{uses}", word(name)), name.to_owned(), watch)
    }

    /// Sets what the next links encrypt, and gives them no heartbeat timeout.
    pub fn bare(&mut self, encryption: tcp::Encryption) {
        self.options.encryption = encryption;
        self.options.heartbeat_timeout = None;
    }

    /// Returns the store, and the local address from which this rank reaches the others; `None` if it is
    /// alone.
    pub fn store(&self) -> Option<(&dyn Store, IpAddr)> {
        self.store.as_ref().map(|handle| (&handle.client as &dyn Store, self.options.bind))
    }

    fn link_in(
        &self,
        prefix: impl FnOnce(u32) -> String,
        name: String,
        watch: Option<tcp::Watch>,
    ) -> Result<Link, Error> {
        let Some(handle) = &self.store else { return Ok(mem::alone()) };
        let prefix = prefix(self.count(name));
        let options = tcp::Options { watch, ..self.options.clone() };
        match self.connect(handle, &prefix, &options) {
            Ok(link) => Ok(link),
            Err(error) => {
                let error = explained(error, self.world, &options);
                let told = matches!(error.kind, Kind::WorldMismatch | Kind::Absent)
                    || listens_nowhere(error.kind);
                if told && self.server.is_some() {
                    thread::sleep(LINGER);
                }
                let is_missing = error.kind == Kind::Timeout;
                let error = Error::from(error);
                Err(if is_missing { self.place.explain(error) } else { error })
            }
        }
    }

    fn connect(
        &self,
        handle: &StoreHandle,
        prefix: &str,
        options: &tcp::Options,
    ) -> Result<Link, link::Error> {
        let address = &self.place.coordinator;
        // The store knows the job's token alone, and the links that of this meeting.
        let of_store = tcp::Options { token: handle.secret.clone(), ..options.clone() };
        let client = client(address, self.world, &of_store)?;
        handle.identity.check(&client, address)?;
        let store = PrefixedStore::new(&client, prefix);
        tcp::connect(self.world, &store, options).inspect_err(|error| {
            if listens_nowhere(error.kind) {
                // The error at hand says more than that the others, who wait for this rank, did not hear of it.
                let _ = tcp::decline(self.world, &store, options.epoch, &error.context);
            }
        })
    }

    /// Returns the number of earlier uses of this name.
    fn count(&self, name: String) -> u32 {
        let mut uses = self.uses.lock().expect("no holder panics");
        let uses = uses.entry(name).or_default();
        *uses += 1;
        *uses - 1
    }
}

/// Connects to the store, unless the watch reports an error meanwhile.
fn client(address: &str, world: World, options: &tcp::Options) -> Result<Client, link::Error> {
    let Some(watch) = &options.watch else {
        return Client::connect(address, &options.token, options.timeout);
    };
    let (peers, deadline) =
        (world.peers().collect::<Vec<Rank>>(), Instant::now() + options.timeout);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match Client::connect(address, &options.token, left.min(Deadline::Dial.duration())) {
            Err(error) if error.kind == Kind::Unreachable && left > Deadline::Dial.duration() => {
                watch.look(&peers)?
            }
            connected => return connected,
        }
    }
}

/// Returns the watch's reason for the loss of the store, if it has one, and otherwise `error`.
fn explained(error: link::Error, world: World, options: &tcp::Options) -> link::Error {
    let Some(watch) = options.watch.as_ref().filter(|_| error.kind == Kind::Unreachable) else {
        return error;
    };
    let (peers, deadline) = (world.peers().collect::<Vec<Rank>>(), Instant::now() + EXPLANATION);
    while Instant::now() < deadline {
        if let Err(reason) = watch.look(&peers) {
            return reason;
        }
        thread::sleep(Duration::from_millis(50));
    }
    error
}

/// Returns whether a rank has ended before it could tell the others its address.
fn listens_nowhere(kind: Kind) -> bool {
    matches!(kind, Kind::AddressInUse | Kind::Limit)
}

/// Returns the part of the store where the ranks of a link without a name meet.
pub(crate) fn prefix(uses: u32) -> String {
    format!("link/{uses}")
}

/// Returns a name as a word that stores accept; different names give different words.
fn word(name: &str) -> String {
    let mut word = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' => word.push(char::from(byte)),
            _ => write!(word, "_{byte:02x}").expect("a string takes everything"),
        }
    }
    word
}

/// A store whose keys all begin with a name, so that several users of one store, such as several links
/// between the same ranks, do not mix.
pub struct PrefixedStore<'a> {
    store: &'a dyn Store,
    name: String,
}

impl PrefixedStore<'_> {
    /// Returns the part `name` of `store`. A name consists of words of `a-z 0-9 . _ -` with slashes between
    /// them.
    pub fn new(store: &dyn Store, name: impl Into<String>) -> PrefixedStore<'_> {
        PrefixedStore { store, name: name.into() }
    }
}

impl Store for PrefixedStore<'_> {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), link::Error> {
        self.store.set(&format!("{}/{key}", self.name), value)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, link::Error> {
        self.store.get(&format!("{}/{key}", self.name), timeout)
    }
}
