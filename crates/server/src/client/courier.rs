//! Thread of a client's connection to one server.
//!
//! The thread ends with its connection and reports why. Pulls overtake pushes: pulls are short, and a server
//! answers one as soon as it has the required push, while pushes to other shards are still being sent.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use thinwire_link::service::Connection;
use thinwire_link::{Token, Waker};
use thinwire_member::Id;

use crate::client::desk::Letter;
use crate::client::inbox::{Inbox, News};
use crate::error::{Error, Kind};
use crate::reason::Request;
use crate::wire::{Fragments, FromClient, FromServer, frames};

/// Longest time to connect to a server.
const CONNECT: Duration = Duration::from_secs(1);
/// Longest time until a server has learned the job's definition.
const WELCOME: Duration = Duration::from_secs(10);
/// Longest wait before checking whether the client has ended.
const WAIT: Duration = Duration::from_secs(1);
/// Unsent bytes beyond which the thread waits for the server to take them.
const UNSENT_BYTES_MAX: usize = 256 << 10;
/// Largest message of a server, in bytes.
const MESSAGE_BYTES_MAX: usize = 2 << 20;

/// Settings of a connection.
#[derive(Clone, Debug)]
pub struct Address {
    /// The server.
    pub server: Id,
    /// Address of the server, host:port.
    pub address: String,
    /// The job's secret.
    pub token: Token,
    /// Id of the client; `Id(0)` for a reader.
    pub client: Id,
    /// Fingerprint of the definition.
    pub definition: u64,
}

/// Connection to a server, with its thread.
#[derive(Debug)]
pub struct Courier {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
    /// Number of the connection.
    pub number: u64,
    /// Address of the server.
    pub address: String,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pulls: VecDeque<Letter>,
    pushes: VecDeque<Letter>,
    waker: Option<Waker>,
    is_over: bool,
}

impl Courier {
    /// Starts connection `number`; its messages go to `inbox`.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn start(address: Address, number: u64, inbox: &Arc<Inbox>) -> Result<Courier, Error> {
        let queue = Arc::new(Queue::default());
        let (letters, inbox) = (Arc::clone(&queue), Arc::clone(inbox));
        let (server, text) = (address.server, address.address.clone());
        let run = move || {
            if let Err(error) = run(&address, &letters, &inbox) {
                inbox.put(News::Broken(server, number, error));
            }
        };
        let thread = thread::Builder::new().name("thinwire client".to_owned()).spawn(run);
        let thread = thread.map_err(|error| {
            thinwire_link::Error::io("starting the thread of a connection", error)
        })?;
        Ok(Courier { queue, thread: Some(thread), number, address: text })
    }

    /// Queues a request.
    pub fn send(&self, request: Request, letter: Letter) {
        let mut state = self.queue.lock();
        match request {
            Request::Pull(_) => state.pulls.push_back(letter),
            Request::Push(_) => state.pushes.push_back(letter),
        }
        state.waker.iter().for_each(Waker::wake);
    }
}

impl State {
    fn next(&mut self) -> Option<Letter> {
        self.pulls.pop_front().or_else(|| self.pushes.pop_front())
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.is_over = true;
        state.waker.iter().for_each(Waker::wake);
        // The thread ends by itself; it may be connecting or waiting for room in the inbox.
        drop(self.thread.take());
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    fn is_over(&self) -> bool {
        self.lock().is_over
    }
}

/// Sends requests and receives answers until the client ends.
fn run(address: &Address, queue: &Queue, inbox: &Inbox) -> Result<(), Error> {
    let mut conversation = Conversation::begin(address, queue)?;
    queue.lock().waker = Some(conversation.connection.waker());
    while !queue.is_over() && !inbox.is_over() {
        let letter = queue.lock().next();
        match letter {
            Some(letter) => conversation.send(&letter, queue, inbox)?,
            None => conversation.hear((WAIT, None), queue, inbox)?,
        }
    }
    Ok(())
}

struct Conversation {
    connection: Connection,
    fragments: Fragments,
}

impl Conversation {
    fn begin(address: &Address, queue: &Queue) -> Result<Conversation, Error> {
        let Address { server, client, definition, .. } = *address;
        let (text, token) = (&address.address, &address.token);
        let mut connection = Connection::connect_to("the server", text, token, CONNECT)?;
        if queue.is_over() {
            // A later hello would make the server close the connection that replaces this one.
            return Err(Error::new(Kind::Timeout, format!("connecting to {text} took too long")));
        }
        connection.send(&FromClient::Hello { client, definition }.to_bytes())?;
        let deadline = Instant::now() + WELCOME;
        let left = || deadline.saturating_duration_since(Instant::now());
        let reply = loop {
            match connection.receive(left())? {
                Some(bytes) => break FromServer::parse(&bytes)?,
                None if left().is_zero() => {
                    let message = format!("the server at {text} does not say that it is ready");
                    return Err(Error::new(Kind::Timeout, message));
                }
                None => {}
            }
        };
        match reply {
            FromServer::Welcome { server: found } if found == server => {
                Ok(Conversation { connection, fragments: Fragments::default() })
            }
            FromServer::Welcome { server: found } => {
                let message = format!("the server at {text} is {found}, expected {server}");
                Err(Error::corrupt(message))
            }
            FromServer::Stranger { text } => Err(Error::new(Kind::Refused, text)),
            other => Err(Error::corrupt(format!("unexpected answer to a hello: {other:?}"))),
        }
    }

    /// Sends a message, and receives answers while the server takes its frames.
    fn send(&mut self, letter: &[u8], queue: &Queue, inbox: &Inbox) -> Result<(), Error> {
        for frame in frames(letter) {
            self.connection.send(&frame)?;
            while self.connection.unsent_bytes() > UNSENT_BYTES_MAX {
                if queue.is_over() || inbox.is_over() {
                    return Ok(());
                }
                self.hear((WAIT, Some(UNSENT_BYTES_MAX)), queue, inbox)?;
            }
        }
        Ok(())
    }

    fn hear(
        &mut self,
        (timeout, unsent_max): (Duration, Option<usize>),
        queue: &Queue,
        inbox: &Inbox,
    ) -> Result<(), Error> {
        let frame = match unsent_max {
            None => self.connection.receive(timeout)?,
            Some(most) => self.connection.receive_or_send(timeout, most)?,
        };
        let Some(frame) = frame else { return Ok(()) };
        // The client may have connected to this server again meanwhile: that the server turns this connection
        // away for it is no answer to the client, whose requests are repeated on the new one.
        if let Some(bytes) = self.fragments.take(&frame, MESSAGE_BYTES_MAX)?
            && !queue.is_over()
        {
            inbox.put(News::Reply(FromServer::parse(&bytes)?));
        }
        Ok(())
    }
}
