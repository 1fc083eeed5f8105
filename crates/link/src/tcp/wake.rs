//! A pair of sockets that ends a poll from another thread.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags};

use crate::Error;

/// The polled end and the end that wakes.
#[derive(Debug)]
pub struct Wake {
    polled: UnixStream,
    waker: Waker,
}

/// Handle that ends [`Link::wait`](crate::Link::wait) from another thread. It is cheap to clone, and
/// can be used any number of times.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Sender>);

#[derive(Debug)]
struct Sender {
    stream: UnixStream,
    /// Whether a wake is under way: further ones have no effect.
    pending: AtomicBool,
}

/// The effect of wakers of other threads on a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wakers {
    EndIt,
    Wait,
}

impl Wake {
    /// Returns a new pair of sockets.
    ///
    /// # Errors
    /// If the operating system has no sockets left.
    pub fn new() -> Result<Wake, Error> {
        let pair = UnixStream::pair().and_then(|(polled, stream)| {
            polled.set_nonblocking(true)?;
            stream.set_nonblocking(true)?;
            let pending = AtomicBool::new(false);
            Ok(Wake { polled, waker: Waker(Arc::new(Sender { stream, pending })) })
        });
        pair.map_err(|error| Error::io("cannot make a waker", error))
    }

    pub fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.polled, PollFlags::IN)
    }

    /// Returns whether a [`Waker`] was used since the last call.
    pub fn take(&self) -> bool {
        self.waker.0.pending.swap(false, Ordering::AcqRel)
    }

    /// Empties the socket. If the byte of a wake arrives only after that wake was taken, the next poll
    /// ends although there is no wake.
    pub fn drain(&self) {
        let _ = (&self.polled).read(&mut [0; 64]);
    }

    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

/// Work that ends elsewhere, such as on a device, wakes the link's thread with it.
impl std::task::Wake for Waker {
    fn wake(self: Arc<Waker>) {
        Waker::wake(&self);
    }

    fn wake_by_ref(self: &Arc<Waker>) {
        Waker::wake(self);
    }
}

impl Waker {
    /// Ends the wait in progress, or else the next one.
    pub fn wake(&self) {
        if !self.0.pending.swap(true, Ordering::AcqRel) {
            // A full socket wakes as well.
            let _ = (&self.0.stream).write(&[1]);
        }
    }
}
