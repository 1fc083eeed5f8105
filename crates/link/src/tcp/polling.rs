//! Waiting: the poll of all sockets, and the time until the next one.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::Error;
use crate::duplex::timespec;
use crate::tcp::Link;
use crate::tcp::wake::Wakers;

/// Bytes per wake-up below which, with more of a payload missing, the network is the slower side.
const MORSEL_BYTES: u64 = 64 << 10;

/// Longest rest between two polls of a slow network. A rest of half the time that the payload still
/// needs lets more come before the next poll, which costs the processor about as much as copying 50
/// kB. Socket buffers hold what comes meanwhile.
const REST_MAX: Duration = Duration::from_micros(500);

/// Shortest rest that is worth the system call.
const REST_MIN: Duration = Duration::from_micros(50);

impl Link {
    /// Asks the operating system what the sockets are ready for.
    pub(super) fn poll(&mut self, timeout: Duration, wakers: Wakers) -> Result<(), Error> {
        let now = Instant::now();
        // With the limit used up, polling for input would return at once again and again.
        let may_read = self.ingress.as_mut().is_none_or(|limit| limit.grant(usize::MAX, now) > 0);
        let input = if may_read { PollFlags::IN } else { PollFlags::empty() };
        let wakeable = wakers == Wakers::EndIt;
        let mut fds = Vec::with_capacity(1 + 3 * self.peers.len());
        let mut polled = Vec::with_capacity(1 + 2 * self.peers.len());
        if wakeable {
            fds.push(self.wake.poll_fd());
        }
        for (index, peer) in self.peers.iter().enumerate() {
            let Some(peer) = peer else { continue };
            let control = std::iter::once((&peer.control, None, PollFlags::IN));
            let data = (0..).zip(&peer.data).map(|(number, data)| (data, Some(number), input));
            for (connection, place, input) in control.chain(data) {
                let first = fds.len();
                fds.extend(connection.poll_fds(input));
                if first < fds.len() {
                    polled.push((index, place, first..fds.len()));
                }
            }
        }
        let may_sleep = timeout.is_zero() || self.arm(input);
        let timeout = if may_sleep { timeout } else { Duration::ZERO };
        match poll(&mut fds, Some(&timespec(timeout))) {
            // Interrupted is like nothing found: the caller polls again.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("cannot poll", error.into())),
        }
        let found: Vec<_> = fds.iter().map(PollFd::revents).collect();
        self.polled = Instant::now();
        let woken = wakeable && !found[0].is_empty();
        drop(fds);
        if woken {
            self.wake.drain();
        }
        for (index, place, fds) in polled {
            let peer = self.peers[index].as_mut().expect("it was polled");
            match place {
                None => peer.control.polled(&found[fds]),
                Some(number) => peer.data[number].polled(&found[fds]),
            }
        }
        Ok(())
    }

    /// Asks peers that share memory for a wake-up; returns false if there is something to do already.
    fn arm(&self, input: PollFlags) -> bool {
        self.peers.iter().flatten().flat_map(|peer| &peer.data).all(|data| data.arm(input))
    }

    /// Returns the time until something can move or a heartbeat is due, if nothing comes in.
    pub(super) fn delay(&mut self, now: Instant) -> Duration {
        let mut delay = Duration::MAX;
        for peer in self.peers.iter().flatten() {
            if peer.control.may_read() || peer.control.writable_bytes() > 0 {
                return Duration::ZERO;
            }
            if let Some(due) = peer.due(self.heartbeat_timeout) {
                delay = delay.min(due.saturating_duration_since(now));
            }
            for (number, data) in peer.data.iter().enumerate() {
                let (out, into) = (data.writable_bytes(), data.may_read());
                if out > 0 {
                    // Both the rate limit and the gate must let it pass.
                    let egress = self.egress.as_mut().map(|limit| limit.delay(out, now));
                    let waits = peer.is_bulk(number).then(|| self.gate.wait(now));
                    delay = delay.min(egress.max(waits).unwrap_or_default());
                }
                // Under a limit a socket may hold input that was not polled for.
                if into || self.ingress.is_some() {
                    let ingress = self.ingress.as_mut();
                    let refill = ingress.map_or(Duration::ZERO, |l| l.delay(usize::MAX, now));
                    if into || !refill.is_zero() {
                        delay = delay.min(refill);
                    }
                }
            }
        }
        delay
    }

    /// Returns the rest before the next poll where payloads come in small parts.
    pub(super) fn rest(&mut self) -> Duration {
        let now = (Instant::now(), self.counters.sent_bytes + self.counters.received_bytes);
        let before = std::mem::replace(&mut self.slept, now);
        let morsel = now.1 - before.1;
        // Nothing moved: poll sleeps anyway. Much moved: the network keeps up, and rests would cost speed.
        if !(1..MORSEL_BYTES).contains(&morsel) {
            return Duration::ZERO;
        }
        let connections = self.peers.iter().flatten().flat_map(|peer| &peer.data);
        // A writer into memory waits once a ring is full, which holds much less than sockets do.
        let connections = connections.filter(|data| data.is_socket());
        let missing = connections.map(|data| data.reader.missing_bytes()).max().unwrap_or(0);
        let seconds = now.0.duration_since(before.0).as_secs_f64();
        let rest = Duration::from_secs_f64(seconds * missing as f64 / morsel as f64 / 2.0);
        if rest < REST_MIN { Duration::ZERO } else { rest.min(REST_MAX) }
    }
}
