//! The server of a service: one thread, non-blocking, everything bounded.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::service::dispatcher::Dispatcher;
use crate::service::event_loop::{Call, EventLoop};
use crate::service::{Outbox, Service};
use crate::tcp::wake::Wake;
use crate::{Error, Kind, Token, Waker, forks};

/// Connections that the operating system keeps until they are accepted.
const BACKLOG: i32 = 1024;
/// Address of a service that nobody connects to.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A service that other processes reach, or that reaches others; it ends when this is dropped.
pub struct Server<S> {
    address: SocketAddr,
    /// None only while the server is dropped.
    calls: Option<Sender<Call<S>>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl<S: Service> Server<S> {
    /// Listens on `address` (port 0 for any) for clients with the same token.
    ///
    /// # Errors
    /// [`crate::Kind::AddressInUse`] if another process listens there.
    pub fn bind(address: SocketAddr, token: &Token, service: S) -> Result<Server<S>, Error> {
        let listener = listen(address)?;
        let cannot = |error| Error::io(format_args!("cannot listen on {address}"), error);
        let address = listener.local_addr().map_err(cannot)?;
        Server::start(Some((listener, address)), token, service)
    }

    /// Starts a service that nobody connects to: it dials others.
    ///
    /// # Errors
    /// If the system refuses a thread or sockets.
    pub fn dialling(token: &Token, service: S) -> Result<Server<S>, Error> {
        Server::start(None, token, service)
    }

    fn start(
        listener: Option<(TcpListener, SocketAddr)>,
        token: &Token,
        service: S,
    ) -> Result<Server<S>, Error> {
        let wake = Wake::new()?;
        let waker = wake.waker();
        let (calls, called) = mpsc::channel();
        let (listener, address) = listener.unzip();
        let mut event_loop =
            EventLoop::new(Dispatcher::new(service, token), listener, wake, called);
        let thread = thread::Builder::new()
            .name("thinwire server".to_owned())
            .spawn(move || event_loop.run())
            .map_err(|error| Error::io("starting the thread of a service", error))?;
        let address = address.unwrap_or(NOWHERE);
        Ok(Server { address, calls: Some(calls), waker, thread: Some(thread) })
    }

    /// Runs `call` on the service's thread, soon and in the order of calls.
    pub fn call(&self, call: impl FnOnce(&mut S, Instant, &mut Outbox) + Send + 'static) {
        // A service that has panicked runs nothing any more.
        let _ = self.calls.as_ref().map(|calls| calls.send(Box::new(call)));
        self.waker.wake();
    }
}

impl<S> Server<S> {
    /// Returns a handle that makes the service's thread look at its deadline again.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Returns the address that the server listens on; `0.0.0.0:0` if it only dials.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl<S> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl<S> Drop for Server<S> {
    fn drop(&mut self) {
        // The thread ends when nobody can call it any more.
        self.calls = None;
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A non-blocking listener on `address`.
///
/// # Errors
/// [`Kind::AddressInUse`], or what else the operating system has against it.
pub fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        forks::record(&listener);
        listener.set_nonblocking(true)?;
        // Once more, for a longer queue.
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(listener)
    });
    bound.map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::AddrInUse => Kind::AddressInUse,
            _ => Kind::Io,
        };
        Error::io(format_args!("cannot listen on {address}"), error).of(kind)
    })
}
