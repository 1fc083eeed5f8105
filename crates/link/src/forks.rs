//! The sockets of this process, for forks of it.
//!
//! A fork has a copy of every socket, and the other end of a connection learns of its end only when all
//! copies are closed: a rank that is killed would seem alive for as long as a fork of it, such as a worker
//! that loads data, is busy. So a fork closes the sockets in this list, as `thinwire.group` does in Python.
//!
//! There is no lock, which another thread might hold in the moment of the fork. Sockets are recorded when
//! they are opened, and never removed: the number of one that was closed may be another file's, which the
//! inode tells.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Sockets with larger numbers are not recorded.
const NUMBERS: usize = 1 << 16;

/// Inode of the newest socket that has had each number, or 0. Process-global, as the numbers are.
static INODES: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];

/// Returns the number of the descriptor of each socket that was opened, with the inode of the socket.
pub fn sockets() -> impl Iterator<Item = (RawFd, u64)> {
    let inodes = INODES.iter().map(|inode| inode.load(Ordering::Relaxed));
    (0..).zip(inodes).filter(|(_, inode)| *inode != 0)
}

/// Records a socket that was just opened.
pub(crate) fn record(socket: impl AsFd) {
    let socket = socket.as_fd();
    let place = usize::try_from(socket.as_raw_fd()).ok().and_then(|number| INODES.get(number));
    // A socket that cannot be looked at stays open in forks, as those of other libraries do.
    if let (Some(inode), Ok(found)) = (place, rustix::fs::fstat(socket)) {
        inode.store(found.st_ino, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;
    use crate::duplex::Duplex;
    use crate::service::listen;

    #[test]
    fn listeners_and_connections_are_in_the_list() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let duplex = Duplex::new(stream, 1).unwrap();
        for socket in [listener.as_fd(), duplex.stream.as_fd()] {
            let inode = rustix::fs::fstat(socket).unwrap().st_ino;
            assert!(sockets().any(|found| found == (socket.as_raw_fd(), inode)));
        }
    }
}
