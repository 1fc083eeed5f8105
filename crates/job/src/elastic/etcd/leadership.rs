//! Leadership of a job: a key in etcd that is bound to a lease, and the state, which only the leader writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use thinwire_member::Options;

use super::Failure;
use super::answer::Outcome;
use super::client::{delete, put, was_created, was_modified};
use super::directory::Directory;
use crate::elastic::envelope::End;
use crate::elastic::persistence::{Registry, Unsaved};
use crate::error::Error;

/// Time of a lease in seconds. It is the shortest that etcd grants with its usual election timeout of one
/// second (one and a half times that, rounded up).
const LEASE_S: u64 = 2;
/// Pause before the next attempt to save, in which the coordinator reads messages of its members.
const PAUSE: Duration = Duration::from_millis(500);

/// State of a job that is over.
const COMPLETE: &[u8] = b"over: complete";
const STOP: &[u8] = b"over: stop";

/// Leadership as its two threads see it: one keeps it alive, the other writes the state.
#[derive(Debug, Default)]
pub struct Held {
    /// Revision at which the leader's key was created: its fencing token.
    created: AtomicI64,
    /// Revision of the state that was read or written last.
    modified: AtomicI64,
    is_lost: AtomicBool,
}

impl Held {
    /// Returns whether another process leads.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    fn is_of(&self, created: i64) -> bool {
        self.created.load(Ordering::Acquire) == created
    }
}

/// Result of keeping a leadership alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upkeep {
    /// The leadership is held.
    Held,
    /// Another process leads, or may have led.
    Lost,
}

/// Leadership of a job.
pub struct Leadership {
    directory: Directory,
    lease: String,
    time: Duration,
    address: String,
    held: Arc<Held>,
}

impl Leadership {
    /// Takes the leadership, unless another process has it.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn take(directory: &Directory) -> Result<Option<Leadership>, Failure> {
        let mut directory = directory.clone();
        let (lease, time) = directory.client.grant(LEASE_S)?;
        let key = directory.store.leader_key();
        let write = [put(&key, b"", Some(&lease))];
        let outcome = directory.client.transact(&[was_created(&key, 0)], &write, &key)?;
        let held = Arc::new(Held::default());
        held.created.store(outcome.revision, Ordering::Release);
        let lead = Leadership { directory, lease, time, address: String::new(), held };
        // Dropped, it gives the lease back.
        Ok(outcome.has_succeeded.then_some(lead))
    }

    /// Returns the part of the leadership that its two threads share.
    pub fn held(&self) -> Arc<Held> {
        Arc::clone(&self.held)
    }

    /// Returns the time between two calls of [`Leadership::keep`]. It is so short that one call may fail
    /// before the lease runs out.
    pub fn period(&self) -> Duration {
        self.time / 3
    }

    /// Reads the job's state, and returns the registry that writes it from now on. A new process
    /// (`Novice::Yes`) ignores the state of a job that is over.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn registry(&mut self, novice: Novice) -> Result<EtcdRegistry, Failure> {
        let found = self.directory.client.get(&self.directory.store.state_key())?;
        self.held.modified.store(found.as_ref().map_or(0, |it| it.modified), Ordering::Release);
        let mut found = found.map(|entry| entry.value);
        let over = found.take_if(|value| [COMPLETE, STOP].contains(&value.as_slice()));
        let is_over = over.is_some();
        let over = over.map(|value| if value == COMPLETE { End::Complete } else { End::Stop });
        let over = over.filter(|_| novice == Novice::No);
        if is_over && over.is_none() {
            self.forget()?;
        }
        let (directory, held) = (self.directory.clone(), self.held());
        Ok(EtcdRegistry { directory, held, found, over, failed: None })
    }

    /// Removes the state of a job that is over, so that the next leader does not continue from it.
    fn forget(&mut self) -> Result<(), Failure> {
        let (key, state) = (self.directory.store.leader_key(), self.directory.store.state_key());
        let compare = [was_created(&key, self.held.created.load(Ordering::Acquire))];
        self.directory.client.transact(&compare, &[delete(&state)], &key)?;
        self.held.modified.store(0, Ordering::Release);
        Ok(())
    }

    /// Publishes the address of the coordinator; returns false if another process leads.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn publish(&mut self, address: &str) -> Result<bool, Failure> {
        let key = self.directory.store.leader_key();
        let created = self.held.created.load(Ordering::Acquire);
        let write = [put(&key, address.as_bytes(), Some(&self.lease))];
        let compare = [was_created(&key, created)];
        self.address = address.to_owned();
        Ok(self.directory.client.transact(&compare, &write, &key)?.has_succeeded)
    }

    /// Keeps the leadership alive. A lease that has run out is replaced if no other process has led since.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn keep(&mut self) -> Result<Upkeep, Failure> {
        let key = self.directory.store.leader_key();
        self.directory.client.keep_alive(&self.lease)?;
        let found = self.directory.client.get(&key)?;
        let created = self.held.created.load(Ordering::Acquire);
        match found {
            // If the lease has run out, the key is about to go with it.
            Some(entry) if entry.created == created => Ok(Upkeep::Held),
            Some(_) => Ok(self.lose()),
            None => self.take_again(),
        }
    }

    /// Takes the leadership again, if nobody has changed the state since this process read or wrote it.
    fn take_again(&mut self) -> Result<Upkeep, Failure> {
        let (key, state) = (self.directory.store.leader_key(), self.directory.store.state_key());
        (self.lease, self.time) = self.directory.client.grant(LEASE_S)?;
        let modified = self.held.modified.load(Ordering::Acquire);
        let compare = [was_created(&key, 0), was_modified(&state, modified)];
        let write = [put(&key, self.address.as_bytes(), Some(&self.lease))];
        let outcome = self.directory.client.transact(&compare, &write, &key)?;
        if !outcome.has_succeeded {
            return Ok(self.lose());
        }
        self.held.created.store(outcome.revision, Ordering::Release);
        Ok(Upkeep::Held)
    }

    fn lose(&self) -> Upkeep {
        self.held.is_lost.store(true, Ordering::Release);
        Upkeep::Lost
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        // Without this the next one leads when the lease has run out.
        let _ = self.directory.client.revoke(&self.lease);
    }
}

/// Whether a process is new to the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Novice {
    /// The process has just begun. If the saved state belongs to a job that is over, the process begins
    /// another job.
    Yes,
    /// The process has led the job, or followed its leader.
    No,
}

/// State of a coordinator in etcd.
pub struct EtcdRegistry {
    directory: Directory,
    held: Arc<Held>,
    /// State that was in etcd at the beginning.
    found: Option<Vec<u8>>,
    over: Option<End>,
    /// Last attempt that has failed, and why.
    failed: Option<(Instant, String)>,
}

impl EtcdRegistry {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Unsaved> {
        if let Some((at, text)) = &self.failed
            && at.elapsed() < PAUSE
        {
            return Err(Unsaved::Cannot(text.clone()));
        }
        let (leader, state) = (self.directory.store.leader_key(), self.directory.store.state_key());
        let created = self.held.created.load(Ordering::Acquire);
        let compare = [was_created(&leader, created)];
        let outcome =
            self.directory.client.transact(&compare, &[put(&state, bytes, None)], &leader);
        let text = match outcome {
            Ok(outcome) if outcome.has_succeeded => {
                self.held.modified.store(outcome.revision, Ordering::Release);
                self.failed = None;
                return Ok(());
            }
            // The leadership may have been taken again meanwhile.
            Ok(Outcome { entry: Some(entry), .. }) if !self.held.is_of(entry.created) => {
                self.held.is_lost.store(true, Ordering::Release);
                return Err(Unsaved::Superseded);
            }
            Ok(_) => "the lease has run out".to_owned(),
            Err(failure) => failure.to_string(),
        };
        self.failed = Some((Instant::now(), text.clone()));
        Err(Unsaved::Cannot(text))
    }
}

impl Registry for EtcdRegistry {
    fn place(&self) -> String {
        self.directory.store.to_string()
    }

    fn load(&mut self) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.found.take())
    }

    fn over(&self) -> Option<End> {
        self.over
    }

    fn save(&mut self, bytes: &[u8]) -> Result<(), Unsaved> {
        self.write(bytes)
    }

    /// Members look up the address in etcd many times per second, so they find a new coordinator soon.
    fn way(&self, options: &Options) -> Duration {
        2 * options.heartbeat()
    }

    fn finish(&mut self, end: End) {
        // If it fails, whoever leads next continues without members, and ends with its own.
        let _ = self.write(match end {
            End::Complete => COMPLETE,
            End::Stop => STOP,
        });
    }
}
