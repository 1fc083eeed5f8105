//! Priority on the wire: bulk gives way to all other frames.
//!
//! Everything that a process sends shares one link to the network. A message that another rank waits
//! for would therefore share it with gradients that no rank waits for yet, or with rows of batches to
//! come. Bulk is held back while any other frame is queued for any peer, and only as long as such
//! frames move: a peer that does not read yet may be waiting for this very bulk.
//!
//! Bulk gives way to the other frames of its own link. A node for which
//! [`gives_way`](crate::endpoint::Node::gives_way) is true holds its answers back for the frames of
//! all links of the process. Gates are global to the process because its links share one network
//! interface, and a server of rows knows none of them.
//!
//! Bytes in the buffers of sockets cannot be overtaken. Their number is not kept small: with a small
//! `TCP_NOTSENT_LOWAT`, sockets ran dry whenever this thread was delayed by computation.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Time without progress of other frames after which bulk continues.
const PATIENCE: Duration = Duration::from_millis(20);
/// Longest time for which an answer is held back, so that clients do not time out.
const HELD_MAX: Duration = Duration::from_secs(1);
/// Time after which a node checks the gate again: nothing wakes it when the gate opens.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Gates of all links of this process.
static GATES: Mutex<Vec<Weak<AtomicU64>>> = Mutex::new(Vec::new());
/// Time from which gates count.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Gate that lets bulk give way to the other frames of one link.
#[derive(Debug)]
pub struct BulkGate {
    /// End of bulk's wait if nothing moves from now on, in nanoseconds since [`START`]; 0 if nothing else
    /// is queued.
    until: Arc<AtomicU64>,
}

/// State of the queued frames other than bulk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgent {
    /// No such frame is queued.
    None,
    /// Some are queued, and none has moved or was queued since the last record.
    Waits,
    /// Some have moved or have just been queued.
    Moves,
}

impl BulkGate {
    /// Returns an open gate, and adds it to the gates of this process.
    pub fn new() -> BulkGate {
        let until = Arc::new(AtomicU64::new(0));
        let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
        gates.retain(|gate| gate.strong_count() > 0);
        gates.push(Arc::downgrade(&until));
        BulkGate { until }
    }

    /// Returns whether only bulk was queued at the last [`BulkGate::record`].
    pub fn is_open(&self) -> bool {
        self.until.load(Ordering::Relaxed) == 0
    }

    /// Records the state of the queued frames other than bulk.
    pub fn record(&self, urgent: Urgent, now: Instant) {
        if urgent == Urgent::None {
            self.until.store(0, Ordering::Relaxed);
        } else if urgent == Urgent::Moves || self.until.load(Ordering::Relaxed) == 0 {
            let until = now.saturating_duration_since(*START) + PATIENCE;
            self.until.store(until.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Returns the time that bulk has to wait from now on if no other frame moves; zero if the gate is
    /// open.
    pub fn wait(&self, now: Instant) -> Duration {
        wait(&self.until, now)
    }
}

/// Returns the time that bulk of this process has to wait from now on if no other frame moves.
fn wait_of_process(now: Instant) -> Duration {
    let gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
    let waits = gates.iter().filter_map(Weak::upgrade).map(|until| wait(&until, now));
    waits.max().unwrap_or_default()
}

fn wait(until: &AtomicU64, now: Instant) -> Duration {
    let until = Duration::from_nanos(until.load(Ordering::Relaxed));
    until.saturating_sub(now.saturating_duration_since(*START))
}

/// State of a node's answers, which wait while links of the process have other frames to send.
#[derive(Debug, Default)]
pub struct Answers {
    /// Time since which there are answers.
    since: Option<Instant>,
}

impl Answers {
    /// Returns the time after which to call this again; zero if answers may be written now. Call it
    /// while there are answers. Once they have waited for a second, they may be written until none is
    /// left.
    pub fn wait(&mut self, now: Instant) -> Duration {
        self.wait_for(wait_of_process(now), now)
    }

    fn wait_for(&mut self, gate: Duration, now: Instant) -> Duration {
        let since = *self.since.get_or_insert(now);
        if now >= since + HELD_MAX { Duration::ZERO } else { gate.min(LOOK_AGAIN) }
    }

    /// Records that all answers are written.
    pub fn written(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{ClientId, Connection, Endpoint, Node, Outbox};
    use crate::{Error, Token};

    /// Size of an answer that no socket takes at once.
    const ANSWER_BYTES: usize = 4 << 20;

    /// Answers every message at length, once links have nothing to send.
    struct Patient;

    impl Node for Patient {
        fn received(
            &mut self,
            client: ClientId,
            _message: &[u8],
            _now: Instant,
            out: &mut Outbox,
        ) -> Result<(), Error> {
            out.send(client, &vec![0; ANSWER_BYTES]);
            Ok(())
        }

        fn message_bytes_max(&self) -> usize {
            100
        }

        fn gives_way(&self) -> bool {
            true
        }
    }

    #[test]
    fn bulk_waits_while_something_else_moves_and_not_for_what_is_stuck() {
        let (gate, start) = (BulkGate::new(), Instant::now());
        let after = |part: u32| start + PATIENCE * part / 4;
        assert!(gate.wait(start).is_zero());
        gate.record(Urgent::Waits, start);
        assert_eq!(gate.wait(start), PATIENCE);
        gate.record(Urgent::Moves, after(3));
        assert_eq!(gate.wait(after(3)), PATIENCE);
        gate.record(Urgent::Waits, after(5));
        assert_eq!(gate.wait(after(5)), PATIENCE / 2);
        gate.record(Urgent::Waits, after(7));
        assert!(gate.wait(after(7)).is_zero());
        gate.record(Urgent::Moves, after(8));
        assert_eq!(gate.wait(after(8)), PATIENCE);
        gate.record(Urgent::None, after(9));
        assert!(gate.wait(after(9)).is_zero());
    }

    #[test]
    fn a_process_waits_for_each_of_its_links_and_for_none_that_is_gone() {
        // Far from now, where no link of another test has anything to wait for.
        let later = Instant::now() + Duration::from_secs(1000);
        let (first, second) = (BulkGate::new(), BulkGate::new());
        assert!(wait_of_process(later).is_zero());
        first.record(Urgent::Moves, later);
        second.record(Urgent::None, later);
        assert_eq!(wait_of_process(later), PATIENCE);
        second.record(Urgent::Moves, later + PATIENCE);
        assert_eq!(wait_of_process(later + PATIENCE), PATIENCE);
        drop((first, second));
        assert!(wait_of_process(later).is_zero());
    }

    #[test]
    fn answers_give_way_for_a_limited_time() {
        let (mut answers, start) = (Answers::default(), Instant::now());
        assert!(answers.wait_for(Duration::ZERO, start).is_zero());
        assert_eq!(answers.wait_for(PATIENCE, start), LOOK_AGAIN);
        assert_eq!(answers.wait_for(PATIENCE, start + HELD_MAX / 2), LOOK_AGAIN);
        // What is left of them is not held again, that of later ones is.
        for later in [1, 2, 3] {
            assert!(answers.wait_for(PATIENCE, start + HELD_MAX * later).is_zero());
        }
        answers.written();
        assert_eq!(answers.wait_for(PATIENCE, start + HELD_MAX * 4), LOOK_AGAIN);
        assert_eq!(answers.wait_for(LOOK_AGAIN / 2, start + HELD_MAX * 4), LOOK_AGAIN / 2);
    }

    #[test]
    fn a_server_holds_its_answers_while_links_send_and_no_longer_than_clients_wait() {
        let token = Token::new("patient");
        let server = Endpoint::bind("127.0.0.1:0".parse().unwrap(), &token, Patient).unwrap();
        let (address, timeout) = (server.address().to_string(), Duration::from_secs(60));
        let gate = BulkGate::new();
        gate.record(Urgent::Moves, Instant::now() + HELD_MAX * 100);
        let mut connection = Connection::connect(&address, &token, timeout).unwrap();
        let start = Instant::now();
        connection.send(b"rows").unwrap();
        assert_eq!(connection.receive(timeout).unwrap().unwrap().len(), ANSWER_BYTES);
        assert!(start.elapsed() >= HELD_MAX);
    }
}
