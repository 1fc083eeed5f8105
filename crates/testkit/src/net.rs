//! Simulated network with its own clock, for state machines without clock or sockets.
//!
//! A [`Node`] takes events and returns actions. The network delivers messages late, twice, in another order
//! or not at all, cuts links, and kills, stops and restarts nodes; a restarted node has only what it saved.
//! Everything depends on one seed. Laws:
//!
//! - the same seed and the same calls give the same events at the same nanoseconds;
//! - a message is delivered only over a link that is not cut, and only to the life of the node to which it
//!   was sent;
//! - without loss, every message arrives within the longest delay.
//!
//! ```
//! use std::time::Duration;
//! use thinwire_testkit::net::{Action, Event, Fault, Net, Node, Weather};
//!
//! /// Node that passes a number on to the other one, less one.
//! struct Countdown(usize);
//!
//! impl Node for Countdown {
//!     type Message = u32;
//!     fn on(&mut self, event: Event<u32>, _now: Duration) -> Vec<Action<u32>> {
//!         match event {
//!             Event::Order(n) | Event::Message { message: n, .. } if n > 0 => {
//!                 vec![Action::Send { to: 1 - self.0, message: n - 1 }]
//!             }
//!             _ => Vec::new(),
//!         }
//!     }
//! }
//!
//! let mut net = Net::new(7, 2, Weather::calm(), |birth| Countdown(birth.node));
//! net.order(Duration::ZERO, 0, 10);
//! let mut deliveries = 0;
//! while net.step(Duration::from_secs(1)).is_some() {
//!     deliveries += 1;
//! }
//! assert_eq!(deliveries, 2 + 1 + 10, "two boots, one order, ten messages");
//! net.fault(Duration::ZERO, Fault::Split { side: 0b01 });
//! ```

mod fault;
mod network;
mod random;
mod schedules;

use std::fmt;
use std::time::Duration;

pub use fault::{Fault, Weather};
pub use network::Net;
pub use random::Random;
pub use schedules::{count, schedules};

/// State machine that runs in the network.
pub trait Node {
    /// Messages between nodes, and orders from outside.
    type Message: Clone + fmt::Debug;

    /// Handles an event at time `now`, counted from the start of the network, and returns the node's actions.
    fn on(&mut self, event: Event<Self::Message>, now: Duration) -> Vec<Action<Self::Message>>;
}

/// Event that reaches a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<M> {
    /// The node has started.
    Boot,
    /// A message has arrived.
    Message {
        /// Sender.
        from: usize,
        /// The message.
        message: M,
    },
    /// An order from outside the network, such as an operator's.
    Order(M),
    /// A node was killed or has exited, and its machine has closed its connections; all its messages have
    /// arrived.
    Closed {
        /// The node.
        peer: usize,
    },
    /// The time of the last [`Action::Wake`] has come.
    Wake,
}

/// Action of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<M> {
    /// Sends a message.
    Send {
        /// Receiver.
        to: usize,
        /// The message.
        message: M,
    },
    /// Asks for [`Event::Wake`] at this time, which replaces any earlier request.
    Wake(Duration),
    /// Replaces the bytes that the node gets when it starts again.
    Save(Vec<u8>),
    /// Ends the node in good order; it starts again only by [`Fault::Boot`].
    Exit,
}

/// Start of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Birth {
    /// Index of the node.
    pub node: usize,
    /// Number of starts before this one.
    pub life: u32,
    /// Time of the start.
    pub now: Duration,
    /// Bytes that the node saved last.
    pub saved: Option<Vec<u8>>,
}
