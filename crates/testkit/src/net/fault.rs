//! Faults of nodes and links, and the weather of the whole network.

use std::ops::Range;
use std::time::Duration;

/// Fault, or the end of one.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Kills a process: its machine closes its connections, which the others notice.
    Kill(usize),
    /// Powers a machine off; the others are not notified.
    PowerOff(usize),
    /// Kills a process while it handles its next event, after it has performed some of the actions.
    Falter {
        /// The node.
        node: usize,
        /// Number of actions that are still performed.
        after: usize,
    },
    /// Starts a node that is down, with its saved bytes.
    Boot(usize),
    /// Stops a process, as SIGSTOP does; events wait for it.
    Pause(usize),
    /// Lets a stopped process continue.
    Resume(usize),
    /// Cuts a link in one direction.
    Cut {
        /// Sender whose messages are lost.
        from: usize,
        /// Receiver for which these messages are lost.
        to: usize,
    },
    /// Cuts all links between two sides: the nodes whose bits are set, and the others.
    Split {
        /// A bit for every node: set for the nodes of one side.
        side: u64,
    },
    /// Restores all links.
    Heal,
    /// Changes the weather.
    Weather(Weather),
}

/// Delays and losses of every link.
#[derive(Clone, Debug, PartialEq)]
pub struct Weather {
    /// Range of usual delays of a message. Different delays may reorder messages.
    pub delay: Range<Duration>,
    /// Probability that a message is lost.
    pub loss: f64,
    /// Probability that a message arrives twice.
    pub duplication: f64,
    /// Probability that a message takes longer, by up to [`Weather::late`].
    pub lateness: f64,
    /// Longest extra delay of late messages.
    pub late: Duration,
}

impl Weather {
    /// Returns delays of 0.1 to 1 ms, and no losses.
    pub fn calm() -> Weather {
        Weather {
            delay: Duration::from_micros(100)..Duration::from_millis(1),
            loss: 0.0,
            duplication: 0.0,
            lateness: 0.0,
            late: Duration::ZERO,
        }
    }
}
