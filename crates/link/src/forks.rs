//! List of the sockets of this process, which forked processes close.
//!
//! A forked process has a copy of every socket, and the other end of a connection notices its end only when
//! all copies are closed. A killed rank would therefore seem alive as long as a process that it has forked,
//! such as a DataLoader's worker, runs. So a forked process closes the sockets in this list, as
//! `thinwire.group` does in Python.
//!
//! There is no lock, since another thread might hold it during the fork. Sockets are recorded when they are
//! opened, and never removed: the inode shows whether a descriptor has since been reused for another file.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Sockets with larger descriptors are not recorded.
const NUMBERS: usize = 1 << 16;

/// Inode of the newest socket with each descriptor, or 0. Process-global, as descriptors are.
static INODES: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];

/// Returns descriptor and inode of each socket that was opened.
pub fn sockets() -> impl Iterator<Item = (RawFd, u64)> {
    let inodes = INODES.iter().map(|inode| inode.load(Ordering::Relaxed));
    (0..).zip(inodes).filter(|(_, inode)| *inode != 0)
}

/// Records a socket that was just opened.
pub(crate) fn record(socket: impl AsFd) {
    let socket = socket.as_fd();
    let place = usize::try_from(socket.as_raw_fd()).ok().and_then(|number| INODES.get(number));
    // A socket without an inode here stays open in forked processes, as those of other libraries do.
    if let (Some(inode), Ok(found)) = (place, rustix::fs::fstat(socket)) {
        inode.store(found.st_ino, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;
    use crate::duplex::{Duplex, listen};

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
