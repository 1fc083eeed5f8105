//! Ways to end a meeting of ranks early, and to learn which ranks were missing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thinwire_wire::Rank;

use crate::Error;

/// Longest time in which a cancelled [`super::connect`] ends, unless its store does not answer.
pub(crate) const CANCEL_EVERY: Duration = Duration::from_millis(40);

/// Longest time between two calls of a [`Watch`].
pub(super) const WATCH_EVERY: Duration = Duration::from_millis(250);

/// Handle that ends [`super::connect`] from another thread. Clones share it, and a cancelled handle
/// stays cancelled.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Returns a handle that has not been used.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends all calls that have this handle: those in progress within 50 ms, later ones at once.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns whether [`Cancel::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

type Look = dyn Fn(&[Rank]) -> Result<(), Error> + Send + Sync;

/// Check that [`super::connect`] makes while it waits for ranks, such as whether one of them has
/// failed.
///
/// Ranks that are still connected in an earlier group can notice over these connections that one of them
/// is lost. The rendezvous store does not report this.
#[derive(Clone)]
pub struct Watch(Arc<Look>);

impl Watch {
    /// Returns a watch that calls `look` with the awaited ranks several times a second; an error of
    /// `look` ends the wait.
    pub fn new(look: impl Fn(&[Rank]) -> Result<(), Error> + Send + Sync + 'static) -> Watch {
        Watch(Arc::new(look))
    }

    /// Checks whether these ranks can still come.
    ///
    /// # Errors
    /// The reason why one of them cannot.
    pub fn look(&self, awaited: &[Rank]) -> Result<(), Error> {
        (self.0)(awaited)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

type Hear = dyn Fn(&[Rank]) + Send + Sync;

/// Listener for ranks that a link cannot reach. If a network is cut, a rank loses several others at
/// once, but its link ends when it notices the first loss. Without a listener, each further loss
/// would be noticed only after another wait.
#[derive(Clone)]
pub struct Unreachable(Arc<Hear>);

impl Unreachable {
    /// Returns a listener that calls `hear` from the thread that drives or makes the link.
    pub fn new(hear: impl Fn(&[Rank]) + Send + Sync + 'static) -> Unreachable {
        Unreachable(Arc::new(hear))
    }

    /// Passes some ranks to the listener.
    pub(super) fn hear(&self, ranks: &[Rank]) {
        (self.0)(ranks);
    }
}

impl fmt::Debug for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unreachable").finish_non_exhaustive()
    }
}
