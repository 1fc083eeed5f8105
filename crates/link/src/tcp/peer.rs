//! One peer: its connections, and whether it is still alive.
//!
//! A peer sends its messages about the group (goodbye, poison) over the control connection, which data
//! never holds up. A data connection that ends without a goodbye makes the peer suspect; the control
//! connection, whose messages may come later, has half a second to give the reason. So a survivor that
//! has announced why it leaves is never itself reported as lost.

use std::time::{Duration, Instant};

use thinwire_wire::{Header, Kind as Frame, Rank, Tag};

use crate::tcp::connection::Connection;
use crate::tcp::control::Control;
use crate::{Error, Kind};

/// Time in which the control connection may explain why a data connection has ended.
const GRACE: Duration = Duration::from_millis(500);
/// Reads of the control connection before other connections get a turn.
const READS_PER_TURN: usize = 8;
/// Heartbeats that may be late or lost before a peer counts as lost.
const HEARTBEATS_PER_TIMEOUT: u32 = 5;
const NO_TAG: Tag = Tag { step: 0, tensor: 0, message: 0 };

/// Connections and liveness of one peer.
#[derive(Debug)]
pub struct Peer {
    pub rank: Rank,
    pub control: Connection,
    pub data: Vec<Connection>,
    pub port: Control,
    epoch: u32,
    /// The time between heartbeats.
    heartbeat: Option<Duration>,
    heard: Instant,
    spoke: Instant,
    suspect: Option<(Instant, String)>,
    /// Number of the first connection that is for bulk alone; beyond all connections, if there is none.
    bulk: usize,
}

fn push_where_least(data: &mut [Connection], header: Header) {
    let least = data.iter_mut().min_by_key(|data| data.writer.pending_bytes());
    least.expect("a peer has a data connection").push(header);
}

impl Peer {
    /// Returns a peer that was just connected.
    pub fn new(rank: Rank, epoch: u32, control: Connection, data: Vec<Connection>) -> Peer {
        let (heard, spoke) = (Instant::now(), Instant::now());
        let (port, heartbeat, suspect, bulk) = (Control::default(), None, None, data.len());
        Peer { rank, control, data, port, epoch, heartbeat, heard, spoke, suspect, bulk }
    }

    /// Sends heartbeats often enough for the peer's timeout, and also for this rank's own timeout,
    /// since a write detects that the peer's machine is gone.
    pub fn with_heartbeat(mut self, mine: Option<Duration>, theirs: Option<Duration>) -> Peer {
        let timeout = mine.into_iter().chain(theirs).min();
        self.heartbeat = timeout.map(|timeout| timeout / HEARTBEATS_PER_TIMEOUT);
        self
    }

    /// If there are several data connections, reserves half of them for bulk from now on. Bytes that are
    /// already in a socket can be overtaken only on another connection.
    pub fn part(&mut self) {
        if self.data.len() > 1 {
            self.bulk = self.data.len() / 2;
        }
    }

    /// Returns the data connections that are for bulk alone.
    pub fn bulk(&self) -> std::ops::Range<usize> {
        self.bulk..self.data.len()
    }

    /// Returns whether a data connection is for bulk alone.
    pub fn is_bulk(&self, data: usize) -> bool {
        self.bulk().contains(&data)
    }

    /// Returns whether anything but bulk is queued.
    pub fn is_urgent(&self) -> bool {
        self.data[..self.bulk].iter().any(|data| data.writer.pending_bytes() > 0)
    }

    /// Returns every connection, control first.
    pub fn connections(&mut self) -> impl Iterator<Item = &mut Connection> {
        std::iter::once(&mut self.control).chain(&mut self.data)
    }

    /// Queues a data frame on the connection with the shortest queue.
    pub fn send(&mut self, header: Header) {
        push_where_least(&mut self.data[..self.bulk], header);
    }

    /// Queues a bulk frame on the connection with the shortest queue: among the connections that are for
    /// bulk alone, or among all data connections if none is reserved for bulk.
    pub fn send_bulk(&mut self, header: Header) {
        let first = if self.bulk < self.data.len() { self.bulk } else { 0 };
        push_where_least(&mut self.data[first..], header);
    }

    /// Queues a frame on the control connection.
    pub fn tell(&mut self, kind: Frame) {
        let length = if kind == Frame::Poison { self.port.reason.len() } else { 0 };
        self.control.push(Header::new(kind, self.epoch, NO_TAG, length));
    }

    /// Reads the control connection, and returns the number of bytes that came.
    ///
    /// # Errors
    /// If the peer has poisoned the group, or is gone.
    pub fn listen(&mut self, now: Instant) -> Result<usize, Error> {
        let mut bytes = 0;
        // A few reads a turn: whoever speaks without end holds up nobody else.
        for _ in 0..READS_PER_TURN {
            if !self.control.may_read() {
                break;
            }
            let read = self.control.read(&mut self.port, usize::MAX);
            bytes += read.map_err(|error| self.blame(error))?.bytes;
        }
        if bytes > 0 {
            self.heard = now;
        }
        if self.control.reader.ended && !self.port.bye {
            return Err(Error::lost(self.rank, "it closed its connections without a goodbye"));
        }
        Ok(bytes)
    }

    /// Queues a heartbeat if it is due, and writes to the control connection. Returns the number of bytes
    /// that left.
    ///
    /// # Errors
    /// If the peer is gone.
    pub fn speak(&mut self, now: Instant) -> Result<usize, Error> {
        if self.heartbeat.is_some_and(|heartbeat| now >= self.spoke + heartbeat) {
            self.spoke = now;
            // Anything queued is as good as a ping; pings would pile up behind a full socket.
            if !self.has_left() && self.control.writer.pending_bytes() == 0 {
                self.tell(Frame::Ping);
            }
        }
        let mut bytes = 0;
        while self.control.writable_bytes() > 0 {
            match self.control.write(&mut self.port, usize::MAX) {
                Ok(written) => bytes += written.bytes,
                // Whoever has said goodbye need not listen.
                Err(_) if self.port.bye => break,
                Err(error) => {
                    self.suspect(error.context, now);
                    break;
                }
            }
        }
        Ok(bytes)
    }

    /// Records that data came from the peer.
    pub fn heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Returns the time since the peer was last heard; zero once it has said goodbye.
    pub fn silence(&self, now: Instant) -> Duration {
        if self.port.bye { Duration::ZERO } else { now.saturating_duration_since(self.heard) }
    }

    /// Records that a connection has ended or broken; the control connection will give the reason, if
    /// it can.
    pub fn suspect(&mut self, why: String, now: Instant) {
        self.suspect.get_or_insert((now, why));
    }

    /// Returns the error to report. An I/O error of a connection means that the peer is lost.
    pub fn blame(&self, error: Error) -> Error {
        match error.kind {
            Kind::Io => Error::lost(self.rank, error.context),
            Kind::Poisoned { .. } => error,
            _ if error.rank.is_none() => error.with_rank(self.rank),
            _ => error,
        }
    }

    /// Judges whether the peer is lost, after everything that has come was read.
    ///
    /// # Errors
    /// If it is lost.
    pub fn judge(&mut self, silence: Option<Duration>, now: Instant) -> Result<(), Error> {
        let ended = self.data.iter().any(|data| data.reader.ended);
        let torn = self.data.iter().any(|data| data.reader.is_torn());
        // A goodbye explains an end between frames, nothing explains one within a frame.
        if torn {
            self.suspect("a connection ended in the middle of a frame".to_owned(), now);
        } else if ended && !self.port.bye {
            self.suspect("a connection ended without a goodbye".to_owned(), now);
        }
        if self.port.bye && !torn {
            self.suspect = None;
            // It takes nothing any more, and frames for it are still queued here.
            if ended && self.data.iter().any(|data| data.writer.has_unsent()) {
                return Err(Error::lost(self.rank, "it has left and takes no more data"));
            }
            return Ok(());
        }
        // The reason has had its time to come.
        if let Some((since, why)) = &self.suspect
            && now >= *since + GRACE
        {
            return Err(Error::lost(self.rank, why.clone()));
        }
        if let Some(silence) = silence
            && now >= self.heard + silence
        {
            let seconds = now.duration_since(self.heard).as_secs_f64();
            return Err(Error::lost(self.rank, format!("silent for {seconds:.1} s")));
        }
        Ok(())
    }

    /// Returns the time of the next heartbeat or verdict that is due.
    pub fn due(&self, silence: Option<Duration>) -> Option<Instant> {
        let ping = self.heartbeat.map(|heartbeat| self.spoke + heartbeat);
        let silence = silence.filter(|_| !self.port.bye).map(|silence| self.heard + silence);
        let suspect = self.suspect.as_ref().map(|(since, _)| *since + GRACE);
        ping.into_iter().chain(silence).chain(suspect).min()
    }

    /// Returns whether the peer has said goodbye and everything that it sent was read.
    pub fn has_left(&self) -> bool {
        self.port.bye && self.data.iter().all(|data| data.reader.is_finished())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::poison;
    use crate::tcp::connection::Parts;
    use crate::tcp::reader::Traffic;

    /// A connection and its far end.
    fn pair(traffic: Traffic) -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let stream = stream.into();
        let parts = Parts { stream, session: None, read_ahead: Vec::new(), same_host: true };
        (Connection::new(Rank(1), 0, traffic, parts), far)
    }

    /// A peer whose data connection has ended, and the far end of its control connection.
    fn suspect() -> (Peer, TcpStream) {
        let (control, far) = pair(Traffic::Control);
        let (mut data, far_data) = pair(Traffic::Data);
        drop(far_data);
        while !data.reader.ended {
            data.read(&mut Control::default(), usize::MAX).unwrap();
        }
        control.watch(Duration::from_secs(10), Traffic::Control).unwrap();
        (Peer::new(Rank(1), 0, control, vec![data]), far)
    }

    fn hear(peer: &mut Peer, now: Instant) -> Result<usize, Error> {
        peer.control.readable = true;
        peer.listen(now)
    }

    #[test]
    fn the_end_of_a_data_connection_waits_for_the_reason() {
        let (mut peer, mut far) = suspect();
        let now = Instant::now();
        peer.judge(None, now).unwrap();
        let reason = poison::encode(&Error::lost(Rank(3), "gone"));
        far.write_all(&Header::new(Frame::Poison, 0, NO_TAG, reason.len()).to_bytes()).unwrap();
        far.write_all(&reason).unwrap();
        drop(far);
        let error = loop {
            if let Err(error) = hear(&mut peer, now) {
                break error;
            }
        };
        assert_eq!((error.kind, error.rank), (Kind::Poisoned { by: Rank(1) }, Some(Rank(3))));
    }

    #[test]
    fn a_reason_that_never_comes_is_a_loss() {
        let (mut peer, _far) = suspect();
        let now = Instant::now();
        peer.judge(None, now).unwrap();
        peer.judge(None, now + GRACE / 2).unwrap();
        let error = peer.judge(None, now + GRACE).unwrap_err();
        assert_eq!((error.kind, error.rank), (Kind::PeerLost, Some(Rank(1))));
    }

    #[test]
    fn heartbeats_are_often_enough_for_whichever_side_waits_less() {
        let [one, four] = [1, 4].map(|seconds| Some(Duration::from_secs(seconds)));
        for (mine, theirs, expected_ms) in [
            (one, four, Some(200)),
            (four, one, Some(200)),
            (None, four, Some(800)),
            (None, None, None),
        ] {
            let (peer, _far) = suspect();
            let peer = peer.with_heartbeat(mine, theirs);
            assert_eq!(peer.heartbeat, expected_ms.map(Duration::from_millis));
        }
    }

    #[test]
    fn a_goodbye_explains_the_end_of_a_data_connection() {
        let (mut peer, mut far) = suspect();
        let now = Instant::now();
        peer.judge(None, now).unwrap();
        far.write_all(&Header::new(Frame::Bye, 0, NO_TAG, 0).to_bytes()).unwrap();
        while !peer.port.bye {
            hear(&mut peer, now).unwrap();
        }
        peer.judge(Some(Duration::ZERO), now + 2 * GRACE).unwrap();
        assert!(peer.has_left());
    }
}
