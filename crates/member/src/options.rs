//! Settings that coordinator and members of a job share.

use std::time::Duration;

use thinwire_wire::WORLD_SIZE_MAX;

/// Whether the coordinator saves its state, which determines how many members it needs for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorMode {
    /// The coordinator saves its state, in a file or in etcd, before it acts on it. No other coordinator can
    /// decide, so any survivors may continue.
    Saved,
    /// The coordinator may restart without its state. It needs half of the last epoch for a change, and more
    /// than half after a restart.
    Unsaved,
}

/// Settings of a job's membership, equal on all its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether the coordinator saves its state.
    pub mode: CoordinatorMode,
    /// Smallest number of ranks that train; with fewer, all wait.
    pub min: u32,
    /// Largest number of ranks that train; further processes are spares.
    pub max: u32,
    /// Longest silence of a process without consequences. A longer silence is noticed within 1.5 times this
    /// duration.
    pub silence: Duration,
    /// Time for which newcomers wait for others, so that they join together.
    pub settle: Duration,
    /// Time for which a job waits for a source of its newest state before it resumes from the last
    /// checkpoint.
    pub resume: Duration,
    /// Longest time for which two processes that cannot reach each other are kept apart.
    pub quarantine_max: Duration,
    /// Time after which a leaver ends even if no epoch without it has started.
    pub leave: Duration,
}

impl Options {
    /// Returns the usual times, for any number of ranks from `min` to `max`.
    pub fn new(mode: CoordinatorMode, min: u32, max: u32) -> Options {
        Options {
            mode,
            min: min.max(1),
            max: max.clamp(min.max(1), WORLD_SIZE_MAX),
            silence: Duration::from_secs(2),
            settle: Duration::from_millis(500),
            resume: Duration::from_secs(30),
            quarantine_max: Duration::from_secs(60),
            leave: Duration::from_secs(10),
        }
    }

    /// Returns the time between two reports of a process.
    pub fn heartbeat(&self) -> Duration {
        self.silence / 8
    }

    /// Returns the age of the last report above which a process counts as silent.
    ///
    /// The last report may already be one heartbeat old when a process falls silent, and a process that comes
    /// back after [`Options::silence`] needs a heartbeat to report.
    pub fn patience(&self) -> Duration {
        self.silence + 2 * self.heartbeat()
    }

    /// Returns the silence after which a member counts another as unreachable over their link.
    ///
    /// TCP retransmits after pauses that double, so a link that was down for some time may be silent for
    /// twice as long.
    pub fn link_silence(&self) -> Duration {
        2 * self.silence
    }
}
