//! The link between threads of one process.
//!
//! It is the link of [`crate::tcp`] over pairs of connected sockets. No rank has to be found or to
//! prove anything, so there is no rendezvous, no handshake, no encryption and no heartbeat.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use thinwire_wire::{Rank, World};

use crate::Token;
use crate::tcp::connection::{Connection, Parts};
use crate::tcp::peer::Peer;
use crate::tcp::reader::Traffic;
use crate::tcp::{Link, Options};

/// Returns a world of `size` ranks, one link each, in epoch 0.
///
/// # Panics
/// If `size` is 0 or above `WORLD_SIZE_MAX`, or the operating system has no sockets left.
pub fn mesh(size: u32) -> Vec<Link> {
    mesh_of_epoch(0, size)
}

/// Returns a world of `size` ranks, one link each, in epoch `epoch`.
///
/// # Panics
/// If `size` is 0 or above `WORLD_SIZE_MAX`, or the operating system has no sockets left.
pub fn mesh_of_epoch(epoch: u32, size: u32) -> Vec<Link> {
    let all = World::new(0, size).expect("a world of so many ranks");
    let mut peers: Vec<Vec<Option<Peer>>> = Vec::new();
    peers.resize_with(all.size(), || all.ranks().map(|_| None).collect());
    for high in all.ranks() {
        for low in all.ranks().take(high.index()) {
            let [at_low, at_high] = pair(epoch, [low, high]).expect("a process has sockets");
            peers[low.index()][high.index()] = Some(at_low);
            peers[high.index()][low.index()] = Some(at_high);
        }
    }
    let options = Options { epoch, heartbeat_timeout: None, ..Options::new(Token::new("")) };
    let link = |(rank, peers)| {
        let world = World::new(rank, size).expect("a rank below the size");
        Link::new(world, peers, &options).expect("a process has sockets")
    };
    (0..).zip(peers).map(link).collect()
}

/// Returns the world of one rank.
///
/// # Panics
/// If the operating system has no sockets left.
pub fn alone() -> Link {
    mesh(1).pop().expect("one rank")
}

/// Connects two ranks; returns each of them as the other sees it, the second one first.
fn pair(epoch: u32, [low, high]: [Rank; 2]) -> io::Result<[Peer; 2]> {
    let connect = |traffic| -> io::Result<[Connection; 2]> {
        let (one, other) = UnixStream::pair()?;
        let connection = |peer, end: UnixStream| -> io::Result<Connection> {
            end.set_nonblocking(true)?;
            // Reading, writing and polling are those of any connected socket.
            let stream = TcpStream::from(OwnedFd::from(end)).into();
            let parts = Parts { stream, session: None, read_ahead: Vec::new(), same_host: true };
            Ok(Connection::new(peer, epoch, traffic, parts))
        };
        Ok([connection(high, one)?, connection(low, other)?])
    };
    let ([control, far_control], [data, far_data]) =
        (connect(Traffic::Control)?, connect(Traffic::Data)?);
    let (at_low, at_high) = (vec![data], vec![far_data]);
    Ok([Peer::new(high, epoch, control, at_low), Peer::new(low, epoch, far_control, at_high)])
}
