//! Ends of processes, and the signals that a launcher knows.

use std::fmt;

use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGTERM};
use signal_hook::low_level::signal_name;

/// End of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With an exit code.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// It has not ended: a signal has stopped it, and only another signal lets it continue.
    Stopped,
}

impl End {
    /// Returns the signal after which a process has ended in good order, according to its exit code.
    pub fn stopped_by(self) -> Option<i32> {
        [SIGHUP, SIGINT, SIGTERM].into_iter().find(|signal| self == End::Code(128 + signal))
    }

    /// Returns whether the process ended because somebody asked it to.
    pub fn was_asked(self) -> bool {
        let ends = [SIGHUP, SIGINT, SIGTERM].map(End::Signal);
        self.stopped_by().is_some() || ends.contains(&self)
    }

    /// Returns a hint at a likely cause, if there is one.
    pub fn hint(self) -> Option<&'static str> {
        match self {
            End::Signal(SIGKILL) => {
                Some("if nobody killed it, the machine may have run out of memory: see dmesg")
            }
            End::Stopped => {
                Some("a signal such as SIGSTOP has stopped it, so that it could not answer")
            }
            _ => None,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Stopped => write!(f, "is stopped"),
            End::Code(code) => write!(f, "exited with code {code}"),
            End::Signal(signal) => {
                write!(f, "was killed by signal {signal}")?;
                match signal_name(*signal) {
                    Some(name) => write!(f, " ({name})"),
                    None => Ok(()),
                }
            }
        }
    }
}
