//! Thread that receives the state of the job's shards from the coordinator.
//!
//! While the coordinator is away, the client continues with the last state.

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use thinwire_job::elastic::{JobAddress, ViewsConnection};
use thinwire_link::Waker;

use crate::client::inbox::{Event, Inbox};
use crate::configuration::JobState;
use crate::error::Error;

/// Longest time to connect to the coordinator.
const CONNECT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(200);
/// Longest wait for a state before a look whether the client has ended.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Thread that receives the state of the job.
#[derive(Debug)]
pub struct Watch {
    waker: Arc<Mutex<Option<Waker>>>,
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread. It sends `request` on every new connection; an empty request asks nothing.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn start(
        job_address: &JobAddress,
        request: Vec<u8>,
        inbox: &Arc<Inbox>,
    ) -> Result<Watch, Error> {
        let waker = Arc::new(Mutex::new(None));
        let mut watcher = Watcher {
            job_address: job_address.clone(),
            request,
            inbox: Arc::clone(inbox),
            waker: Arc::clone(&waker),
            version: None,
        };
        let thread = thread::Builder::new().name("thinwire watch".to_owned());
        let thread = thread.spawn(move || watcher.run()).map_err(|error| {
            thinwire_link::Error::io("starting the thread of a connection", error)
        })?;
        Ok(Watch { waker, inbox: Arc::clone(inbox), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.inbox.end();
        self.waker.lock().expect("no holder panics").iter().for_each(Waker::wake);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Watcher {
    job_address: JobAddress,
    request: Vec<u8>,
    inbox: Arc<Inbox>,
    waker: Arc<Mutex<Option<Waker>>>,
    version: Option<u64>,
}

impl Watcher {
    fn run(&mut self) {
        while !self.inbox.is_over() {
            if let Err(error) = self.follow() {
                self.inbox.put(Event::Away(error));
                self.inbox.pause(PAUSE);
            }
        }
    }

    /// Receives states on one connection until it fails.
    fn follow(&mut self) -> Result<(), Error> {
        let JobAddress { coordinator, token, id } = &self.job_address;
        let mut connection = ViewsConnection::connect(coordinator, token, *id, CONNECT)?;
        *self.waker.lock().expect("no holder panics") = Some(connection.waker());
        connection.send(&self.request)?;
        while !self.inbox.is_over() {
            match connection.receive(WAIT_MAX)? {
                Some(Ok(bytes)) => self.state(&bytes, &mut connection)?,
                Some(Err(text)) => _ = self.inbox.put(Event::Refused(text)),
                None => {}
            }
        }
        Ok(())
    }

    /// Passes on a state that is newer than the last one.
    fn state(&mut self, bytes: &[u8], connection: &mut ViewsConnection) -> Result<(), Error> {
        let state = JobState::parse(bytes)?;
        if state.definition.is_none() && !self.request.is_empty() {
            // The job's definition was dropped. If it was this one, the answer says why.
            connection.send(&self.request)?;
        }
        if self.version.is_none_or(|version| version < state.version) {
            self.version = Some(state.version);
            self.inbox.put(Event::State(Box::new(state)));
        }
        Ok(())
    }
}
