//! Lease of a bucket by the training whose checkpoints go there.
//!
//! A bucket has no locks. So rank 0 writes job and epoch to an object, with a number that it increases every
//! [`BEAT`]. Whoever finds the object of another job watches it for [`LEASE`]: a number that rises is that of a
//! training that lives; one that stands still is that of one that was killed, and the bucket is taken. Law: of two
//! trainings that write there, the one that has lost its lease writes no more checkpoints.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use thinwire_server::{Location, Store};

use super::folder::{OWNER, Owner, away, superseded, taken};
use super::machine::seconds_of;
use crate::output::say;

/// Interval at which the owner shows that it lives.
const BEAT: Duration = Duration::from_secs(3);
/// Time after which an owner that does not show it has lost its lease.
const LEASE: Duration = Duration::from_secs(12);
/// Variable with the seconds of a lease.
const LEASE_VARIABLE: &str = "THINWIRE_LEASE_S";
/// Interval at which another owner is watched.
const LOOK: Duration = Duration::from_millis(250);
/// Time after a failure in which a store is not asked again.
const PAUSE: Duration = Duration::from_secs(2);
/// Longest object of an owner that is read.
const OWNER_BYTES_MAX: u64 = 1024;

/// The bucket is this training's for as long as this lives. Dropping it gives the bucket back.
#[derive(Debug)]
pub struct Lease {
    shared: Arc<Shared>,
    /// Ends the thread that shows that the owner lives.
    _beats: Option<Sender<()>>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<dyn Store>,
    place: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    owner: Owner,
    /// Text that this process has written to the object.
    written: Option<String>,
    count: u64,
    /// Time and reason of the last request, if it failed.
    failed: Option<(Instant, String)>,
    /// Whether the lease was given back.
    is_over: bool,
}

impl Lease {
    /// Takes a bucket for rank 0, once it is sure that no other training writes there.
    ///
    /// # Errors
    /// If another one does, or the bucket cannot be reached.
    pub fn take(place: &Path) -> Result<Lease> {
        let lease = Lease::open(place)?;
        lease.shared.await_end_of_others()?;
        lease.shared.write(&mut lease.shared.state())?;
        Ok(lease.beating())
    }

    /// The lease, which this process keeps up from now on.
    #[must_use]
    pub fn beating(mut self) -> Lease {
        let (sender, ended) = channel();
        let shared = Arc::clone(&self.shared);
        let beat = BEAT.min(term() / 4);
        thread::spawn(move || {
            while ended.recv_timeout(beat) == Err(RecvTimeoutError::Timeout) {
                let mut state = shared.state();
                if !state.is_over {
                    // If another one has taken the bucket, the next checkpoint tells so.
                    let _ = shared.check(&mut state);
                }
            }
        });
        self._beats = Some(sender);
        self
    }

    /// Opens a bucket without taking it: each check does.
    ///
    /// # Errors
    /// If it has no address or credentials.
    pub fn open(place: &Path) -> Result<Lease> {
        let store = Location::from(place).store()?;
        let job = thinwire_link::Token::random()?[..16].to_owned();
        let owner = Owner { job, epoch: 0 };
        let state = State { owner, written: None, count: 0, failed: None, is_over: false };
        let (place, state) = (place.to_owned(), Mutex::new(state));
        Ok(Lease { shared: Arc::new(Shared { store, place, state }), _beats: None })
    }

    /// Gives the lease to an epoch of an elastic job.
    pub fn set_owner(&self, owner: Owner) {
        self.shared.state().owner = owner;
    }

    /// Makes sure that the bucket is this training's, and takes it if it is nobody's or an earlier epoch's.
    ///
    /// # Errors
    /// If another training or a later epoch has it, or the bucket cannot be reached.
    pub fn check(&self) -> Result<()> {
        self.shared.check(&mut self.shared.state())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_over = true;
        // A store that does not answer would hold up the end.
        let is_own = state.written.is_some()
            && state.failed.is_none()
            && self.shared.found(&mut state).is_ok_and(|found| found == state.written);
        if is_own {
            let _ = self.shared.store.remove("", OWNER);
        }
    }
}

impl State {
    /// Sends requests, unless some have just failed: the store itself tries for seconds, and a training that was
    /// told to end has few.
    fn ask<T>(&mut self, request: impl FnOnce() -> Result<T, String>) -> Result<T> {
        if let Some((_, why)) = self.failed.as_ref().filter(|(at, _)| at.elapsed() < PAUSE) {
            return Err(away(why.clone()));
        }
        let answer = request();
        self.failed = answer.as_ref().err().map(|why| (Instant::now(), why.clone()));
        answer.map_err(away)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the text of the object, if there is one.
    fn found(&self, state: &mut State) -> Result<Option<String>> {
        let text = state.ask(|| {
            let is_there = !self.store.list(OWNER)?.is_empty();
            is_there.then(|| self.store.read("", OWNER, OWNER_BYTES_MAX)).transpose()
        })?;
        Ok(text.map(|text| String::from_utf8_lossy(&text).into_owned()))
    }

    fn write(&self, state: &mut State) -> Result<()> {
        state.count += 1;
        let Owner { job, epoch } = &state.owner;
        let text = format!("{job} {epoch} {}\n", state.count);
        let written = state.ask(|| self.store.write("", OWNER, &[text.as_bytes()]));
        written.with_context(|| format!("cannot write checkpoints to {}", self.place.display()))?;
        state.written = Some(text);
        Ok(())
    }

    fn check(&self, state: &mut State) -> Result<()> {
        let found = self.found(state)?;
        let is_own = found.is_none() || found == state.written;
        if let Some(other) = found.filter(|_| !is_own) {
            let other = Owner::parse(&other);
            match other.filter(|other| other.job == state.owner.job) {
                None => return Err(taken(&self.place)),
                Some(other) if other.epoch > state.owner.epoch => {
                    return Err(superseded(&self.place));
                }
                Some(_) => {}
            }
        }
        self.write(state)
    }

    fn await_end_of_others(&self) -> Result<()> {
        let (term, mut state) = (term(), self.state());
        let (first, begun) = (self.found(&mut state)?, Instant::now());
        if first.is_none() {
            return Ok(());
        }
        let (place, seconds) = (self.place.display(), term.as_secs_f64());
        say(format!("a training has not given back {place}: watching it for {seconds} s"));
        while begun.elapsed() < term {
            thread::sleep(LOOK);
            match self.found(&mut state)? {
                None => return Ok(()),
                found if found != first => return Err(taken(&self.place)),
                _ => {}
            }
        }
        Ok(())
    }
}

fn term() -> Duration {
    seconds_of(LEASE_VARIABLE).unwrap_or(LEASE)
}
