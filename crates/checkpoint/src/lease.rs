//! Lease of a bucket by the training whose checkpoints are written there.
//!
//! A bucket has no locks. So rank 0 writes job and epoch to an object, with a number that it increases every
//! [`BEAT`]. A process that finds the object of another job watches it for [`LEASE`]. If the number
//! increases, the other training is alive. If it does not, the other training was killed, and the
//! process takes the bucket. Laws: if two trainings write to a bucket, the training that has lost its
//! lease writes no more checkpoints; a store that does not answer delays a training by at most one
//! request.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Kind};
use crate::manifest::new_token;
use crate::{Location, PATIENCE, Store};

/// File or object with the elastic job and the epoch whose rank 0 writes to the folder or bucket.
pub(crate) const OWNER: &str = ".thinwire-job";
/// Interval at which the owner shows that it is alive.
const BEAT: Duration = Duration::from_secs(3);
/// Time without a sign of life after which an owner has lost its lease.
const LEASE: Duration = Duration::from_secs(12);
/// Shortest lease that the variable may set.
const LEASE_MIN: Duration = Duration::from_secs(1);
/// Variable with the duration of a lease in seconds.
const LEASE_VARIABLE: &str = "THINWIRE_LEASE_S";
/// Interval at which another owner is watched.
const LOOK: Duration = Duration::from_millis(250);
/// Time in which another training that has just found the bucket free or abandoned may take it.
const RACE: Duration = Duration::from_secs(2);
/// Longest object of an owner that is read.
const OWNER_BYTES_MAX: u64 = 1024;

/// Epoch of an elastic job whose rank 0 writes to the folder or bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Name of the job.
    pub job: String,
    /// Number of the epoch.
    pub epoch: u32,
}

impl Owner {
    /// Reads job and epoch at the beginning of a text.
    pub fn parse(text: &str) -> Option<Owner> {
        let mut words = text.split_whitespace();
        let (job, epoch) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        Some(Owner { job, epoch })
    }

    /// Refuses a place whose owner is a later epoch of this job.
    pub fn ensure_not_superseded(&self, found: &Owner, place: &Path) -> Result<(), Error> {
        if found.job != self.job || found.epoch <= self.epoch {
            return Ok(());
        }
        let place = place.display();
        let message = format!("a later epoch of this job writes its checkpoints to {place}");
        Err(Error::new(Kind::Superseded, message))
    }
}

pub(crate) fn taken(place: &Path) -> Error {
    let message = format!("another training writes its checkpoints to {}", place.display());
    Error::new(Kind::Taken, message).with_hint("wait for its end, or give another --checkpoint-dir")
}

/// Lease of the bucket for this training. Dropping it gives the bucket back.
#[derive(Debug)]
pub struct Lease {
    shared: Arc<Shared>,
    /// Sender whose drop ends the thread that shows that the owner is alive.
    beats: Option<Sender<()>>,
    term: Duration,
}

#[derive(Debug)]
struct Shared {
    store: Arc<dyn Store>,
    place: PathBuf,
    state: Mutex<State>,
    /// Held during requests, since only one at a time may be sent.
    turn: Mutex<()>,
}

#[derive(Debug)]
struct State {
    owner: Owner,
    /// Owner that this process has written to the object, if it may still be there.
    written: Option<Owner>,
    count: u64,
    /// Reason why the last request failed, if it did.
    failed: Option<String>,
    /// Whether the lease was given back.
    is_over: bool,
}

impl Lease {
    /// Takes a bucket for rank 0, once it is certain that no other training writes there.
    ///
    /// # Errors
    /// If another training writes there, or the bucket cannot be reached.
    pub fn take(place: &Path, say: fn(String)) -> Result<Lease, Error> {
        let mut lease = Lease::open(place)?;
        lease.acquire(say)?;
        lease.keep_up();
        Ok(lease)
    }

    /// Opens a bucket without taking it. Each [`Lease::check`] takes the bucket if it is free.
    ///
    /// # Errors
    /// If it has no address or credentials.
    pub fn open(place: &Path) -> Result<Lease, Error> {
        let store = Location::from(place).store_within(PATIENCE)?;
        Lease::of(store, place, term()?)
    }

    fn of(store: Arc<dyn Store>, place: &Path, term: Duration) -> Result<Lease, Error> {
        let token = new_token()?;
        let owner = Owner { job: token[..16].to_owned(), epoch: 0 };
        let state = State { owner, written: None, count: 0, failed: None, is_over: false };
        let (place, state, turn) = (place.to_owned(), Mutex::new(state), Mutex::default());
        let shared = Arc::new(Shared { store, place, state, turn });
        Ok(Lease { shared, beats: None, term })
    }

    /// Gives the lease to an epoch of an elastic job, and renews it from now on.
    pub(crate) fn set_owner(&mut self, owner: Owner) {
        self.shared.state().owner = owner;
        self.keep_up();
    }

    /// Checks that the bucket belongs to this training, and takes it if it has no owner or belongs to an
    /// earlier epoch. A store that did not answer the last request is not asked again before the next beat.
    ///
    /// # Errors
    /// If another training or a later epoch has the bucket, or the bucket cannot be reached.
    pub fn check(&self) -> Result<(), Error> {
        self.ensure_answers()?;
        let _turn = guard(&self.shared.turn);
        // A beat that was under way may have failed.
        self.ensure_answers()?;
        self.shared.renew()
    }

    fn ensure_answers(&self) -> Result<(), Error> {
        let failed = self.shared.state().failed.clone();
        failed.filter(|_| self.beats.is_some()).map_or(Ok(()), |why| Err(Error::away(why)))
    }

    /// Records that a request to the bucket has failed; the record is kept until the next request.
    pub fn note_failure(&self, why: String) {
        self.shared.state().failed = Some(why);
    }

    /// Starts to show that the owner is alive.
    fn keep_up(&mut self) {
        if self.beats.is_some() {
            return;
        }
        let (sender, ended) = channel();
        let (shared, beat) = (Arc::clone(&self.shared), BEAT.min(self.term / 4));
        thread::spawn(move || {
            while ended.recv_timeout(beat) == Err(RecvTimeoutError::Timeout) {
                let _turn = guard(&shared.turn);
                // If another one has taken the bucket, the next checkpoint tells so.
                let _ = shared.renew();
            }
        });
        self.beats = Some(sender);
    }

    fn acquire(&self, say: fn(String)) -> Result<(), Error> {
        let shared = &self.shared;
        let acquired = match shared.await_end_of_others(self.term, say) {
            Ok(true) => shared.replace(),
            Ok(false) => shared.create(),
            Err(error) => Err(error),
        };
        let doing = format!("cannot write checkpoints to {}", shared.place.display());
        acquired.map_err(|error| error.context(&doing))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let written = {
            let mut state = self.shared.state();
            state.is_over = true;
            state.written.take()
        };
        let Some(written) = written else { return };
        let _turn = guard(&self.shared.turn);
        // A store that does not answer would hold up the end.
        if self.shared.state().failed.is_some() {
            return;
        }
        let is_own = self.shared.found().is_ok_and(|found| {
            found.is_some_and(|text| Owner::parse(&text).as_ref() == Some(&written))
        });
        if is_own {
            let _ = self.shared.store.remove("", OWNER);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        guard(&self.state)
    }

    /// Sends a request, and records whether it failed.
    fn ask<T>(&self, request: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let answer = request().map_err(Error::away);
        self.state().failed = answer.as_ref().err().map(ToString::to_string);
        answer
    }

    /// Returns the text of the object, if there is one.
    fn found(&self) -> Result<Option<String>, Error> {
        let text = self.ask(|| self.store.find("", OWNER, OWNER_BYTES_MAX))?;
        Ok(text.map(|text| String::from_utf8_lossy(&text).into_owned()))
    }

    /// Returns the next text of the object. It is recorded before it is written, since a request that fails
    /// may have been carried out.
    fn next(&self) -> String {
        let mut state = self.state();
        state.count += 1;
        state.written = Some(state.owner.clone());
        let Owner { job, epoch } = &state.owner;
        format!("{job} {epoch} {}\n", state.count)
    }

    /// Writes the object again, unless it belongs to another training or to a later epoch. The caller must
    /// hold the turn.
    fn renew(&self) -> Result<(), Error> {
        if self.state().is_over {
            return Ok(());
        }
        let Some(found) = self.found()? else { return self.create() };
        self.ensure_own(&found)?;
        let text = self.next();
        self.ask(|| self.store.write("", OWNER, &[text.as_bytes()]))
    }

    /// Writes the object if it does not exist.
    fn create(&self) -> Result<(), Error> {
        let text = self.next();
        if self.ask(|| self.store.create("", OWNER, text.as_bytes()))? {
            return Ok(());
        }
        // An attempt whose answer was lost may have written it.
        self.found()?.map_or(Ok(()), |found| self.ensure_own(&found))
    }

    /// Replaces the object of a training that was killed, and checks that no other training does so at the
    /// same time.
    fn replace(&self) -> Result<(), Error> {
        let text = self.next();
        self.ask(|| self.store.write("", OWNER, &[text.as_bytes()]))?;
        thread::sleep(RACE);
        self.found()?.map_or(Ok(()), |found| self.ensure_own(&found))
    }

    fn ensure_own(&self, found: &str) -> Result<(), Error> {
        let (found, state) = (Owner::parse(found), self.state());
        let is_own = |it: &Owner| it.job == state.owner.job || Some(it) == state.written.as_ref();
        let found = found.filter(is_own).ok_or_else(|| taken(&self.place))?;
        state.owner.ensure_not_superseded(&found, &self.place)
    }

    /// Waits until the object is gone, or has not changed for `term`. Returns whether it still exists.
    fn await_end_of_others(&self, term: Duration, say: fn(String)) -> Result<bool, Error> {
        let (first, begun) = (self.found()?, Instant::now());
        if first.is_none() {
            return Ok(false);
        }
        let (place, seconds) = (self.place.display(), term.as_secs_f64());
        say(format!(
            "another training has not released {place}: watching for {seconds} s whether it still runs"
        ));
        loop {
            let is_over = begun.elapsed() >= term;
            match self.found()? {
                None => return Ok(false),
                found if found != first => return Err(taken(&self.place)),
                _ if is_over => return Ok(true),
                _ => thread::sleep(LOOK),
            }
        }
    }
}

/// Locks a value, even after a panic of another thread that held the lock.
pub(crate) fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the time without a renewal after which an owner has lost its lease.
///
/// # Errors
/// If the variable for it is not a time, or is too short.
pub(crate) fn term() -> Result<Duration, Error> {
    let term = seconds_of(LEASE_VARIABLE)?.unwrap_or(LEASE);
    if term >= LEASE_MIN {
        return Ok(term);
    }
    let (found, least) = (term.as_secs_f64(), LEASE_MIN.as_secs());
    let message = format!("{LEASE_VARIABLE} is {found} s, expected at least {least} s");
    Err(Error::new(Kind::Invalid, message).with_hint(
        "unset the variable, or give it the same value in all trainings that use the bucket",
    ))
}

/// Returns the time in seconds from an environment variable, if it is set.
///
/// # Errors
/// If its value is not a time.
pub(crate) fn seconds_of(variable: &str) -> Result<Option<Duration>, Error> {
    let Some(text) = std::env::var_os(variable).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let text = text.to_string_lossy();
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let wrong = || Error::new(Kind::Invalid, format!("{variable} is '{text}', expected seconds"));
    time.map(Some).ok_or_else(|| {
        wrong().with_hint("unset the variable, or set it to a number of seconds such as 12")
    })
}

#[cfg(feature = "s3")]
#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use thinwire_testkit::objects::{Fault, ObjectStore};

    use super::*;

    const TERM: Duration = Duration::from_secs(4);
    const PLACE: &str = "s3://bucket/run";

    fn open(fake: &ObjectStore) -> Lease {
        let store = Location::from(Path::new(PLACE));
        let store = store.store_with(|name| fake.variable(name), PATIENCE).unwrap();
        Lease::of(store, Path::new(PLACE), TERM).unwrap()
    }

    /// Returns how many of several trainings that start at the same moment get the bucket.
    fn winners(fake: &ObjectStore) -> usize {
        let (all, start) = (3, Barrier::new(3));
        let won = thread::scope(|scope| {
            let rival = || {
                let mut lease = open(fake);
                start.wait();
                lease.acquire(drop).map(|()| {
                    lease.keep_up();
                    lease
                })
            };
            let rivals: Vec<_> = (0..all).map(|_| scope.spawn(rival)).collect();
            let won = rivals.into_iter().filter_map(|rival| rival.join().unwrap().ok());
            // Who drops a lease gives the bucket back, to a rival that still waits.
            won.collect::<Vec<_>>()
        });
        won.len()
    }

    #[test]
    fn of_trainings_that_start_at_one_moment_one_has_the_bucket() {
        let fake = ObjectStore::start();
        assert_eq!(winners(&fake), 1);
        assert_eq!(fake.keys(), Vec::<String>::new());
        // Of a training that was killed.
        fake.objects().insert("run/.thinwire-job".to_owned(), b"killed 0 9\n".to_vec());
        assert_eq!(winners(&fake), 1);
    }

    #[test]
    fn a_lease_whose_answers_are_lost_is_still_its_own() {
        let fake = ObjectStore::faltering(Fault::Denied(OWNER));
        let lease = open(&fake);
        lease.acquire(drop).unwrap();
        lease.check().unwrap();
        assert!(open(&fake).check().unwrap_err().to_string().starts_with("another training"));
        drop(lease);
        assert!(fake.keys().is_empty());
    }

    #[test]
    fn a_store_that_is_silent_holds_up_one_request_and_no_check_after_it() {
        let fake = ObjectStore::start();
        let mut lease = open(&fake);
        lease.acquire(drop).unwrap();
        lease.keep_up();
        fake.set_fault(Fault::Silent);
        let begun = Instant::now();
        let why = lease.check().unwrap_err().to_string();
        assert!(why.contains("no answer within 5 s"), "{why}");
        assert!(begun.elapsed() < 4 * PATIENCE);
        let begun = Instant::now();
        assert_eq!(lease.check().unwrap_err().to_string(), why);
        drop(lease);
        assert!(begun.elapsed() < 3 * PATIENCE);
    }
}
