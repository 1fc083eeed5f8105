//! Consistency between workers: how many steps one worker may be ahead of another.
//!
//! Bounded staleness is Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel
//! Parameter Server" (NIPS 2013).

use std::fmt;

/// Rule by which a shard delays pushes and pulls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// The gradients of all workers in a step are summed and applied as one update.
    Sync,
    /// Every push is an update, and no worker waits.
    Async,
    /// Every push is an update, and no worker is more than this many steps ahead of the slowest.
    Bounded(u32),
}

/// Error for a text that does not name a consistency.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("consistency '{0}', expected sync, async or bounded:STEPS")]
pub struct InvalidConsistency(String);

impl Consistency {
    /// Reads `sync`, `async` or `bounded:4`; `bounded:0` is `sync`.
    ///
    /// # Errors
    /// If the text is none of these.
    pub fn parse(text: &str) -> Result<Consistency, InvalidConsistency> {
        let bound = text.strip_prefix("bounded:").and_then(|steps| steps.parse().ok());
        match (text, bound) {
            ("sync", _) | (_, Some(0)) => Ok(Consistency::Sync),
            ("async", _) => Ok(Consistency::Async),
            (_, Some(steps)) => Ok(Consistency::Bounded(steps)),
            _ => Err(InvalidConsistency(text.to_owned())),
        }
    }

    /// Returns the largest lead in steps over the slowest worker with which a worker may read; `None` under
    /// `async`.
    pub fn bound(self) -> Option<u64> {
        match self {
            Consistency::Sync => Some(0),
            Consistency::Async => None,
            Consistency::Bounded(steps) => Some(u64::from(steps)),
        }
    }

    /// Returns whether a worker that is `lead` steps ahead may continue.
    pub fn allows(self, lead: u64) -> bool {
        self.bound().is_none_or(|bound| lead <= bound)
    }
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Consistency::Sync => f.write_str("sync"),
            Consistency::Async => f.write_str("async"),
            Consistency::Bounded(steps) => write!(f, "bounded:{steps}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_shown() {
        for text in ["sync", "async", "bounded:4"] {
            assert_eq!(Consistency::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Consistency::parse("bounded:0"), Ok(Consistency::Sync));
        assert_eq!(
            Consistency::parse("bounded:-1").unwrap_err().to_string(),
            "consistency 'bounded:-1', expected sync, async or bounded:STEPS"
        );
    }

    #[test]
    fn a_bound_allows_what_is_within_it() {
        assert!(Consistency::Bounded(4).allows(4) && !Consistency::Bounded(4).allows(5));
        assert!(Consistency::Async.allows(u64::MAX) && !Consistency::Sync.allows(1));
    }
}
