//! The hand-over of descriptors from one process of a host to another.
//!
//! Descriptors can only be sent over unix sockets, while ranks meet over TCP. So the host makes the memory and
//! listens on an abstract unix socket, and sends its name and a nonce over the authenticated connection. The
//! guest connects to the socket and shows the nonce. Each side continues only with a process of its own user.
//! Abstract names belong to a network namespace: if the two processes are in different ones, the guest
//! finds no such socket, and knows so at once. Nothing here blocks: everything that a step needs has
//! come before the record over TCP that begins the step.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use ring::rand::{SecureRandom, SystemRandom};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    memfd_create,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recv, recvmsg, send, sendmsg, socket_with, sockopt,
};
use rustix::process::{Resource, geteuid, getrlimit};

use crate::shm::Segment;
use crate::shm::ring::{Rings, Side, file_bytes, length_in};

/// Bytes of a name and of a nonce.
const SECRET_BYTES: usize = 16;
/// Bytes of an offer: name and nonce.
pub const OFFER_BYTES: usize = 2 * SECRET_BYTES;
/// Connections that may wait for the host. If strangers make this many, the guest is not found.
const BACKLOG: i32 = 16;
/// Descriptors that are handed over: the memory, the host's bell and the guest's.
const DESCRIPTORS: usize = 3;
/// Seals of the memory.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Memory that no guest has taken yet.
#[derive(Debug)]
pub struct Offer {
    listener: OwnedFd,
    secrets: [u8; OFFER_BYTES],
    file: OwnedFd,
    bells: [OwnedFd; 2],
    rings: Rings,
}

/// A guest's connection to its host.
#[derive(Debug)]
pub struct Visit(OwnedFd);

impl Offer {
    /// Makes memory with rings of `length` bytes.
    ///
    /// # Errors
    /// If the operating system cannot make such memory, or has no descriptors left.
    pub fn new(length: usize) -> io::Result<Offer> {
        let mut secrets = [0; OFFER_BYTES];
        SystemRandom::new().fill(&mut secrets).map_err(io::Error::other)?;
        // A file longer than this limit (`ulimit -f`) would end the process by a signal.
        let limit = getrlimit(Resource::Fsize).current;
        if limit.is_some_and(|limit| limit < file_bytes(length) as u64) {
            return Err(ErrorKind::FileTooLarge.into());
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("thinwire", flags)?;
        // Allocates all pages now: an access to one that is missing later would end the process.
        fallocate(&file, FallocateFlags::empty(), 0, file_bytes(length) as u64)?;
        fcntl_add_seals(&file, SEALS | SealFlags::SEAL)?;
        // Mapped before the offer is sent: if the guest has the memory, so has the host.
        let rings = Rings::map(&file, Side::Host, length)?;
        let bells = [bell()?, bell()?];
        let listener = unix_socket()?;
        bind(&listener, &address(&secrets)?)?;
        listen(&listener, BACKLOG)?;
        Ok(Offer { listener, secrets, file, bells, rings })
    }

    /// Returns the offer for the guest.
    pub fn to_bytes(&self) -> [u8; OFFER_BYTES] {
        self.secrets
    }

    /// Hands the memory to the guest, which must have connected and shown the nonce; returns false if
    /// no guest has.
    pub fn hand_over(&self) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..BACKLOG {
            let Ok(visitor) = accept_with(&self.listener, flags) else { return false };
            if is_own(&visitor) && self.knows_nonce(&visitor) && self.give(&visitor).is_ok() {
                return true;
            }
        }
        false
    }

    fn knows_nonce(&self, visitor: &OwnedFd) -> bool {
        let mut shown = [0; SECRET_BYTES];
        let length = recv(visitor, &mut shown, RecvFlags::DONTWAIT).map_or(0, |(length, _)| length);
        length == SECRET_BYTES && shown == self.secrets[SECRET_BYTES..]
    }

    fn give(&self, guest: &OwnedFd) -> io::Result<()> {
        let [host, guests] = &self.bells;
        let descriptors = [&self.file, host, guests].map(AsFd::as_fd);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(guest, &[IoSlice::new(&[0])], &mut control, flags)?;
        Ok(())
    }

    /// Returns the memory as its host sees it.
    pub fn into_segment(self) -> Segment {
        let [mine, theirs] = self.bells;
        Segment { rings: self.rings, mine, theirs }
    }
}

impl Visit {
    /// Connects to the host that has sent this offer, and shows its nonce.
    ///
    /// # Errors
    /// If no such host is in this network namespace, or it belongs to another user.
    pub fn begin(offer: &[u8; OFFER_BYTES]) -> io::Result<Visit> {
        let socket = unix_socket()?;
        connect(&socket, &address(offer)?)?;
        if !is_own(&socket) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        send(&socket, &offer[SECRET_BYTES..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(Visit(socket))
    }

    /// Takes the memory that the host has handed over, and maps it.
    ///
    /// # Errors
    /// If the host has sent anything other than memory that is sealed against shrinking.
    pub fn take(self) -> io::Result<Segment> {
        let invalid = || io::Error::from(ErrorKind::InvalidData);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        recvmsg(&self.0, &mut [IoSliceMut::new(&mut [0])], &mut control, flags)?;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        let [file, theirs, mine] =
            <[OwnedFd; DESCRIPTORS]>::try_from(descriptors).map_err(|_| invalid())?;
        // A file that can shrink can lose pages, and an access to a lost page ends the process.
        if !fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(invalid());
        }
        let length = u64::try_from(fstat(&file)?.st_size).ok().and_then(length_in);
        let rings = Rings::map(&file, Side::Guest, length.ok_or_else(invalid)?)?;
        Ok(Segment { rings, mine, theirs })
    }
}

fn bell() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn address(secrets: &[u8; OFFER_BYTES]) -> io::Result<SocketAddrUnix> {
    let digits: String = secrets[..SECRET_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(SocketAddrUnix::new_abstract_name(format!("thinwire-{digits}").as_bytes())?)
}

/// Returns whether the process at the other end belongs to this user.
fn is_own(socket: &OwnedFd) -> bool {
    sockopt::socket_peercred(socket).is_ok_and(|other| other.uid == geteuid())
}

#[cfg(test)]
mod tests {
    use rustix::fs::ftruncate;

    use super::*;

    /// A connection to the host, as a stranger who has read the name in /proc/net/unix makes it.
    fn stranger(offer: &Offer, shows: &[u8]) -> OwnedFd {
        let socket = unix_socket().unwrap();
        connect(&socket, &address(&offer.secrets).unwrap()).unwrap();
        if !shows.is_empty() {
            send(&socket, shows, SendFlags::NOSIGNAL).unwrap();
        }
        socket
    }

    #[test]
    fn a_stranger_without_the_nonce_gets_nothing_and_the_guest_behind_it_does() {
        let offer = Offer::new(4096).unwrap();
        let shown: [&[u8]; 4] = [&[], &[0; SECRET_BYTES], &[7; 3], &[1; 100]];
        let strangers = shown.map(|shows| stranger(&offer, shows));
        let visit = Visit::begin(&offer.to_bytes()).unwrap();
        assert!(offer.hand_over());
        for socket in strangers {
            assert!(Visit(socket).take().is_err());
        }
        visit.take().unwrap();
    }

    #[test]
    fn where_strangers_alone_have_come_nothing_is_handed_over() {
        let offer = Offer::new(4096).unwrap();
        assert!(!offer.hand_over());
        let socket = stranger(&offer, &offer.secrets[..SECRET_BYTES]);
        assert!(!offer.hand_over());
        assert!(Visit(socket).take().is_err());
    }

    #[test]
    fn strangers_that_fill_the_backlog_keep_the_guest_away_and_hold_up_nobody() {
        let offer = Offer::new(4096).unwrap();
        let mut strangers = Vec::new();
        let full = loop {
            let socket = unix_socket().unwrap();
            match connect(&socket, &address(&offer.secrets).unwrap()) {
                Ok(()) => strangers.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!(full, rustix::io::Errno::AGAIN);
        assert!(Visit::begin(&offer.to_bytes()).is_err());
        assert!(!offer.hand_over());
    }

    #[test]
    fn an_offer_that_nobody_has_made_is_refused() {
        assert!(Visit::begin(&[9; OFFER_BYTES]).is_err());
    }

    /// A guest's result if it is handed this file as the memory.
    fn taken(file: OwnedFd) -> io::Result<Segment> {
        let offer = Offer { file, ..Offer::new(4096).unwrap() };
        let visit = Visit::begin(&offer.to_bytes()).unwrap();
        assert!(offer.hand_over());
        visit.take()
    }

    fn file(bytes: u64, seals: SealFlags) -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    #[test]
    fn memory_that_could_shrink_or_has_another_length_is_refused() {
        let right = file_bytes(4096) as u64;
        taken(file(right, SEALS)).unwrap();
        for bytes in [0, 1, 4096, right - 1, right + 1, 4096 + 2 * 6000, file_bytes(8 << 20) as u64]
        {
            assert!(taken(file(bytes, SEALS)).is_err(), "{bytes}");
        }
        for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::WRITE] {
            assert!(taken(file(right, seals)).is_err(), "{seals:?}");
        }
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
        assert!(taken(null.into()).is_err());
    }
}
