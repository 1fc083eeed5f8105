//! Address of a job's coordinator, as etcd has it.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use thinwire_link as link;

use super::Failure;
use super::client::{Client, delete, was_created};
use crate::address::{check, joined};
use crate::elastic::store::Store;
use crate::error::Error;

/// Largest number of bytes of an address: a name has at most 253, and a port and a key may follow it.
const ADDRESS_BYTES_MAX: usize = 300;
/// Longest time of an attempt to connect.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Pause before the next check.
const PAUSE: Duration = Duration::from_millis(50);

/// The process that leads a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Address of the process's coordinator, as host:port; `None` until the coordinator listens.
    pub address: Option<String>,
    /// Revision at which the leader's key was created. No other leader has this revision.
    pub created: i64,
}

/// Entries of a job in etcd, as one thread reads and writes them.
#[derive(Clone, Debug)]
pub struct Directory {
    pub(super) client: Client,
    pub(super) store: Store,
}

impl Directory {
    pub fn new(store: &Store) -> Directory {
        Directory { client: Client::new(store.servers()), store: store.clone() }
    }

    /// Returns the name of the store, for messages to people.
    pub fn place(&self) -> String {
        self.store.to_string()
    }

    /// Returns the process that leads, if there is one.
    ///
    /// # Errors
    /// If etcd does not answer, or the value of the job's key is malformed.
    pub fn leader(&mut self) -> Result<Option<Leader>, Failure> {
        let key = self.store.leader_key();
        let Some(entry) = self.client.get(&key)? else { return Ok(None) };
        let address = String::from_utf8(entry.value).ok();
        let is_sound = |address: &String| {
            let is_short = address.len() <= ADDRESS_BYTES_MAX;
            is_short && (address.is_empty() || check(address).is_ok())
        };
        let address = address.filter(is_sound).ok_or_else(|| Failure::Final {
            text: format!("etcd has no address of a coordinator under {key}"),
            hint: "give the job another name",
        })?;
        let address = Some(address).filter(|address| !address.is_empty());
        Ok(Some(Leader { address, created: entry.created }))
    }

    /// Waits until etcd answers.
    ///
    /// # Errors
    /// If etcd does not answer in time, or refuses.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.leader() {
                Err(Failure::Away(_)) if Instant::now() < deadline => thread::sleep(PAUSE),
                answered => return answered.map(drop),
            }
        }
    }

    /// Removes the key of a leader that has ended, before its lease has run out.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn depose(&mut self, leader: &Leader) -> Result<(), Failure> {
        let key = self.store.leader_key();
        let compare = [was_created(&key, leader.created)];
        self.client.transact(&compare, &[delete(&key)], &key).map(drop)
    }

    /// Returns the address from which this machine reaches etcd, with a port that the system chooses.
    ///
    /// # Errors
    /// If etcd cannot be reached.
    pub fn own_address(&self) -> Result<String, Error> {
        let server = self.client.server();
        let local = connect(server).and_then(|stream| stream.local_addr());
        let local =
            local.map_err(|error| Error::from(Failure::away(server, &error.to_string())))?;
        Ok(joined(&local.ip().to_string(), 0))
    }
}

/// Returns the address of the coordinator, host:port, as soon as a coordinator accepts connections. Waits at
/// most `timeout`.
///
/// # Errors
/// If no coordinator accepts connections in time, or etcd refuses.
pub fn address(store: &Store, timeout: Duration) -> Result<String, Error> {
    let deadline = Instant::now() + timeout;
    let mut directory = Directory::new(store);
    loop {
        let failure = match directory.leader() {
            Ok(Some(Leader { address: Some(address), .. })) if !is_refused(&address) => {
                return Ok(address);
            }
            Ok(_) => Failure::Away(format!("no coordinator of this job is known at {store}")),
            Err(failure) => failure,
        };
        if matches!(failure, Failure::Final { .. }) {
            return Err(failure.into());
        }
        if Instant::now() + PAUSE >= deadline {
            let kind = link::Kind::Unreachable;
            return Err(match failure {
                // The failure from above, for which etcd itself is not to blame.
                Failure::Away(text) if text.starts_with("no coordinator") => Error::from(
                    link::Error::new(kind, text),
                )
                .with_hint("start a launcher of the job, and check the name of the job in --store"),
                failure => failure.into(),
            });
        }
        thread::sleep(PAUSE);
    }
}

/// Returns the address of the coordinator as host:port. `place` is either this address or the store that
/// has it.
///
/// # Errors
/// If the store has no address within `timeout`, or refuses.
pub fn locate(place: &str, timeout: Duration) -> Result<String, Error> {
    match Store::is_meant(place) {
        true => address(&place.parse()?, timeout),
        false => Ok(place.to_owned()),
    }
}

/// Returns whether a machine refuses connections to an address, because the process there has ended.
pub fn is_refused(address: &str) -> bool {
    connect(address).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Connects to the first address of a name that takes connections.
fn connect(name: &str) -> io::Result<TcpStream> {
    let mut failure: Option<io::Error> = None;
    for address in name.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, ATTEMPT) {
            Ok(stream) => return Ok(stream),
            // One address that refuses says nothing about another one that does not answer.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                failure.get_or_insert(error);
            }
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_name_is_refused_only_if_all_of_its_addresses_are() {
        for host in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((host, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            for name in [joined(host, port), format!("localhost:{port}")] {
                let has_both = "localhost:1".to_socket_addrs().unwrap().count() == 2;
                let reaches = name == joined(host, port) || has_both || host == "127.0.0.1";
                assert!(!reaches || !is_refused(&name), "{name}");
            }
            drop(listener);
            assert!(is_refused(&joined(host, port)));
        }
    }
}
