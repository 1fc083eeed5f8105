//! Support for the tests of several crates: ranks as threads over any link, and inputs to sum.
//!
//! This crate is only a development dependency. It never sleeps, and has no clock except the simulated
//! network's in [`net`]: ranks meet through the link's own rendezvous, and every wait in this crate has
//! the link's timeout.
#![forbid(unsafe_code)]

pub mod delayed;
pub mod net;
pub mod objects;
#[cfg(target_os = "linux")]
pub mod simulated;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thinwire_link::{Bandwidth, Link, Token, mem, store, tcp};
use thinwire_wire::{Rank, World};

/// Longest wait, so that a rank that gets little time on a busy machine is not lost.
const LONG: Duration = Duration::from_secs(300);

/// Link that connects the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Pairs of connected sockets within the process.
    Mem,
    /// Memory that each pair of ranks shares.
    Shared,
    /// TCP on loopback, in clear text.
    Tcp,
    /// TCP on loopback, encrypted and over two connections per peer.
    Sealed,
}

impl Network {
    /// Every network.
    pub const ALL: [Network; 4] = [Network::Mem, Network::Shared, Network::Tcp, Network::Sealed];
}

/// Runs `body` on every rank of a world of `size`, each in a thread. Returns the results in the order of
/// ranks.
///
/// # Panics
/// If a rank panics or the ranks do not find each other.
pub fn spawn<T: Send>(network: Network, size: usize, body: impl Fn(Link) -> T + Sync) -> Vec<T> {
    spawn_limited(network, size, None, body)
}

/// Runs [`spawn`] with every rank limited to `limit` in each direction.
///
/// # Panics
/// As [`spawn`]; also if a network in memory is to be limited.
pub fn spawn_limited<T: Send>(
    network: Network,
    size: usize,
    limit: Option<Bandwidth>,
    body: impl Fn(Link) -> T + Sync,
) -> Vec<T> {
    if network == Network::Mem {
        assert!(limit.is_none(), "only TCP is limited here");
        let links = mem::mesh(size as u32);
        return run(links.into_iter().map(|link| move || link), &body);
    }
    let store = store::mem::Mem::new();
    let connect = |rank: u32| {
        let (store, world) = (&store, World::new(rank, size as u32).expect("a world of this size"));
        move || {
            let mut options = tcp::Options {
                limit,
                timeout: LONG,
                heartbeat_timeout: Some(LONG),
                ..tcp::Options::new(Token::new("test"))
            };
            if network == Network::Sealed {
                (options.encryption, options.connections) =
                    (tcp::Encryption::Always, tcp::Connections::Exactly(2));
            }
            if network != Network::Shared {
                options.shared_memory = tcp::SharedMemory::Never;
            }
            let link = tcp::connect(world, store, &options).expect("ranks find each other");
            let shares = |peer| link.shares_memory(peer);
            // Elsewhere there is no such memory, and the same tests run over TCP once more.
            let shared = network == Network::Shared && cfg!(target_os = "linux");
            assert!(world.peers().all(|peer| shares(peer) == shared), "{network:?}");
            link
        }
    };
    run((0..size as u32).map(connect), &body)
}

fn run<T: Send, C: FnOnce() -> Link + Send>(
    connects: impl Iterator<Item = C>,
    body: &(impl Fn(Link) -> T + Sync),
) -> Vec<T> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = connects.map(|connect| scope.spawn(move || body(connect()))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

/// Locks a value, which a test that panicked has left unchanged.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a rank's input to a sum: multiples of 1/8, so that sums over small worlds are exact in f32.
pub fn ramp(rank: Rank, length: usize) -> Vec<f32> {
    (0..length).map(|i| ((i * 7 + rank.index() * 13) % 101) as f32 * 0.125 - 6.0).collect()
}

/// Returns the sum of every rank's ramp, in f64.
pub fn ramp_sum(size: usize, length: usize) -> Vec<f64> {
    let mut sum = vec![0.0; length];
    for rank in 0..size as u32 {
        sum.iter_mut().zip(ramp(Rank(rank), length)).for_each(|(sum, x)| *sum += f64::from(x));
    }
    sum
}
