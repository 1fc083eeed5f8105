//! Lifetime of objects that end together: a group, its splits, its synchronisers.
//!
//! An abort ends all of them, and so does the goodbye at the end of the process. A split has its own
//! lifetime inside its parent's, so it ends with its parent or alone. A lifetime keeps no object alive:
//! an object that is dropped has left it. A fork does not inherit members, because it has none of their
//! threads.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use pyo3::prelude::*;
use thinwire_collective::Stop;
use thinwire_job::{Meeting, Place};

use crate::background::Background;
use crate::error::Failure;

/// The longest reason of an abort in characters; longer ones are cut.
const REASON_CHARS_MAX: usize = 600;

/// Object that can be ended from outside.
pub(crate) trait Member: Send + Sync {
    /// Ends the object: every peer gets `reason`.
    fn abort(&self, reason: &str);
    /// Says goodbye, unless that has been done.
    fn close(&self);
}

/// Everything that was made from one group and still lives.
pub(crate) struct Lifetime {
    process: u32,
    members: Mutex<Vec<Weak<dyn Member>>>,
}

impl Lifetime {
    pub(crate) fn new() -> Lifetime {
        Lifetime { process: std::process::id(), members: Mutex::default() }
    }

    /// Adds a member, which leaves when it is dropped.
    pub(crate) fn add<M: Member + 'static>(&self, member: &Arc<M>) {
        let member: Weak<dyn Member> = Arc::downgrade(member) as Weak<dyn Member>;
        let mut members = self.members.lock().expect("no holder panics");
        members.retain(|member| member.strong_count() > 0);
        members.push(member);
    }

    /// Aborts all members.
    pub(crate) fn abort(&self, reason: &str) {
        self.living().iter().for_each(|member| member.abort(reason));
    }

    /// Closes all members at once: each waits a while for the other ranks, which may wait for the last
    /// member.
    pub(crate) fn close(&self) {
        let members = self.living();
        std::thread::scope(|scope| {
            for member in &members {
                scope.spawn(|| member.close());
            }
        });
    }

    /// Returns the members. They are used without the lock: one of them may be dropped then, and others
    /// be added.
    fn living(&self) -> Vec<Arc<dyn Member>> {
        let members = self.members.lock().expect("no holder panics");
        members.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns whether this is a fork of the process that made it.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// Refuses a fork.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if !self.is_forked() {
            return Ok(());
        }
        let (owner, this) = (self.process, std::process::id());
        Err(Failure::Invalid(format!(
            "a group of process {owner} is used in its fork {this}, which is not a rank of the \
             group (hint: use the group in the parent only, or call thinwire.init() in a process of its own)"
        )))
    }
}

/// Context of a group and of everything that is made from it: its ranks' meeting, and the way in which
/// they end.
pub(crate) struct Context {
    pub(crate) place: Place,
    pub(crate) meeting: Arc<Meeting>,
    pub(crate) timeout: Duration,
    pub(crate) lifetime: Lifetime,
}

impl Context {
    /// Returns the context of a split, which ends with its parent or alone.
    pub(crate) fn child(&self) -> Arc<Context> {
        let (place, meeting) = (self.place.clone(), Arc::clone(&self.meeting));
        let context = Context { place, meeting, timeout: self.timeout, lifetime: Lifetime::new() };
        let context = Arc::new(context);
        self.lifetime.add(&context);
        context
    }
}

impl Member for Context {
    fn abort(&self, reason: &str) {
        self.lifetime.abort(reason);
    }

    fn close(&self) {
        self.lifetime.close();
    }
}

/// A member that is closed by taking out its value.
pub(crate) struct Cell<T> {
    pub(crate) stop: Stop,
    value: Mutex<Option<T>>,
}

impl<T: Send + 'static> Cell<T> {
    /// Returns a new member of `lifetime` that holds `value`, which `stop` ends.
    pub(crate) fn new(lifetime: &Lifetime, stop: Stop, value: T) -> Arc<Cell<T>> {
        let cell = Arc::new(Cell { stop, value: Mutex::new(Some(value)) });
        lifetime.add(&cell);
        cell
    }

    /// Uses the value; `name` is the object in the error if it is closed.
    pub(crate) fn with<R>(
        &self,
        name: &str,
        use_it: impl FnOnce(&mut T) -> R,
    ) -> Result<R, Failure> {
        let mut value = self.value.lock().expect("no holder panics");
        value.as_mut().map(use_it).ok_or_else(|| Failure::invalid(format!("the {name} is closed")))
    }
}

impl<T: Send> Member for Cell<T> {
    fn abort(&self, reason: &str) {
        self.stop.stop(&one_line(reason));
    }

    fn close(&self) {
        drop(self.value.lock().expect("no holder panics").take());
    }
}

/// An object of the core that Python holds: a member of its context, and the thread for jobs that end
/// in Python.
pub(crate) struct Held<T: Send + 'static> {
    pub(crate) context: Arc<Context>,
    pub(crate) cell: Arc<Cell<T>>,
    pub(crate) background: Background,
}

impl<T: Send + 'static> Held<T> {
    /// Returns an object that holds `value`, which `stop` ends.
    pub(crate) fn new(context: Arc<Context>, stop: Stop, value: T) -> Held<T> {
        let cell = Cell::new(&context.lifetime, stop, value);
        Held { context, cell, background: Background::start() }
    }

    /// Does `work` in the background, after all earlier jobs, and waits for its result.
    pub(crate) fn wait<R: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce() -> Result<R, Failure> + Send + 'static,
    ) -> PyResult<R> {
        self.background.wait(py, &self.cell.stop, work)
    }

    /// Ends the object: every peer gets `reason`.
    pub(crate) fn abort(&self, reason: &str) -> Result<(), Failure> {
        self.context.lifetime.check()?;
        self.cell.abort(reason);
        Ok(())
    }
}

impl<T: Send + 'static> Drop for Held<T> {
    /// Does nothing in a fork, which has none of the threads that a goodbye needs.
    fn drop(&mut self) {
        if self.context.lifetime.is_forked() {
            std::mem::forget((Arc::clone(&self.context), Arc::clone(&self.cell)));
        }
    }
}

/// Returns a reason in one line of bounded length.
pub(crate) fn one_line(reason: &str) -> String {
    let words = reason.split(|c: char| c.is_whitespace() || c.is_control());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ").chars().take(REASON_CHARS_MAX).collect()
}
