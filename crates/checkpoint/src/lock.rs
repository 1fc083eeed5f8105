//! Lock of a training on the folder or bucket of its checkpoints.
//!
//! Only one training at a time may write, since two would write the same files. Rank 0 holds a lock on the
//! folder itself, which the system releases however the process ends. On file systems without locks, nothing
//! is checked. A lock belongs to the folder, even if the folder is moved. If the folder was removed and
//! created again, the new folder is locked instead. Law: if another folder has the same name, nothing is
//! written to it if another training has locked it or if it contains checkpoints.
//!
//! In an elastic job, rank 0 may be another process in every epoch, and the rank 0 of an earlier epoch may be
//! stopped and still hold the lock. So rank 0 also writes the job and the epoch to a file in the folder.
//! Law: once it has done so, no rank 0 of an earlier epoch commits or removes anything.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use thinwire_link::durable;

use crate::draft::{Draft, clean};
use crate::error::{Error, Kind};
use crate::lease::{Lease, OWNER, Owner, guard, taken};
use crate::location::{Location, PATIENCE};
use crate::manifest::{MANIFEST, MANIFEST_BYTES_MAX, crc32_of, new_token};
use crate::sealed::latest;

/// File with a random number, by which processes check that they have the same folder.
const MARK: &str = ".thinwire-folder";
/// Number of hexadecimal digits in the file [`MARK`].
const MARK_LETTERS: usize = 16;
/// Longest file [`MARK`] that is read.
const MARK_BYTES_MAX: u64 = 1024;
/// Interval at which a place that does not exist yet is looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Longest time that another process takes to write the file [`MARK`].
const MARKING: Duration = Duration::from_secs(2);
/// Interval between attempts to take a lock that another process holds.
const TRY: Duration = Duration::from_millis(20);

/// Location and interval of a training's checkpoints, and callbacks for messages to the user.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The folder of the checkpoints, or their `s3://BUCKET/PREFIX`.
    pub folder: PathBuf,
    /// Number of steps between checkpoints; the last step always writes one.
    pub every: Option<u64>,
    /// Reports a line to the user.
    pub say: fn(String),
    /// Returns the hint with which a training can continue from a checkpoint.
    pub go_on: fn(&Path) -> String,
}

impl Policy {
    /// Returns whether the checkpoints go to a bucket of an object store.
    pub fn is_in_bucket(&self) -> bool {
        matches!(Location::from(self.folder.as_path()), Location::Bucket(_))
    }
}

/// Lock of this training on the folder or bucket, held as long as this value exists. Ranks other than 0
/// hold nothing.
#[derive(Debug, Default)]
pub enum FolderLock {
    /// Lock of a rank other than 0, or of a training without checkpoints.
    #[default]
    None,
    /// Lock of a folder.
    Folder(Held),
    /// Lease of a bucket.
    Bucket(Lease),
    /// Bucket that cannot be opened, with the reason.
    Unusable(String),
}

/// Folder that is locked.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    opened: Mutex<Opened>,
    /// Elastic job and epoch, if the training is elastic.
    owner: Option<Owner>,
    /// Mark of the folder when this process joined an elastic job.
    mark: Option<String>,
    say: fn(String),
}

#[derive(Debug, Default)]
struct Opened {
    /// The folder; `None` if it could not be opened.
    file: Option<File>,
    is_locked: bool,
    /// Checksums of checkpoints by which the folder is recognised when it comes back.
    known: Vec<u32>,
}

impl Opened {
    /// Returns the state of a folder that this process has locked.
    fn locked(file: File) -> Opened {
        Opened { file: Some(file), is_locked: true, known: Vec::new() }
    }

    /// Locks a folder, unless another process has locked it, and returns its state.
    fn tried(file: Option<File>) -> Opened {
        Opened { is_locked: file.as_ref().is_some_and(locked), file, known: Vec::new() }
    }
}

impl FolderLock {
    /// Locks the folder on rank 0. Removes incomplete files of an earlier training, and warns of checkpoints
    /// in the folder that do not belong to this training.
    ///
    /// # Errors
    /// If another training has the folder, or the folder cannot be read.
    pub fn hold(
        policy: Option<&Policy>,
        rank: u32,
        resumed: Option<&Path>,
    ) -> Result<FolderLock, Error> {
        let Some(policy) = policy.filter(|_| rank == 0) else { return Ok(FolderLock::None) };
        let folder = policy.folder.as_path();
        if policy.is_in_bucket() {
            let lease = Lease::take(folder, policy.say)?;
            clean(folder)?;
            warn_of_others(policy, resumed)?;
            return Ok(FolderLock::Bucket(lease));
        }
        // A rank that was started by hand has no launcher that has made the folder.
        fs::create_dir_all(folder).map_err(|e| Error::io("write checkpoints to", folder, e))?;
        let file = open(folder)?;
        match file.try_lock() {
            Ok(()) => clean(folder)?,
            Err(TryLockError::WouldBlock) => return Err(taken(folder)),
            Err(TryLockError::Error(_)) => {}
        }
        // An elastic job may have written here before.
        let _ = fs::remove_file(folder.join(OWNER));
        let newest = warn_of_others(policy, resumed)?;
        let lock = FolderLock::of_folder(policy, Opened::locked(file));
        resumed.into_iter().chain(newest.as_deref()).for_each(|path| lock.remember(path));
        Ok(lock)
    }

    /// Opens the folder on rank 0 of a later epoch of an elastic job, and locks it if possible. Whether this
    /// rank may write there is checked before each checkpoint, so that a training does not end if it may not.
    pub fn hold_again(policy: Option<&Policy>, rank: u32) -> FolderLock {
        let Some(policy) = policy.filter(|_| rank == 0) else { return FolderLock::None };
        if policy.is_in_bucket() {
            let lease = Lease::open(&policy.folder);
            return lease
                .map_or_else(|why| FolderLock::Unusable(why.to_string()), FolderLock::Bucket);
        }
        FolderLock::of_folder(policy, Opened::tried(File::open(&policy.folder).ok()))
    }

    /// Locks the folder for one process of an elastic job after its last epoch, once others have saved their
    /// state.
    ///
    /// # Errors
    /// If the folder cannot be read, or another process does not release it within `patience`.
    pub fn hold_alone(policy: &Policy, patience: Duration) -> Result<FolderLock, Error> {
        if policy.is_in_bucket() {
            return Lease::open(&policy.folder).map(FolderLock::Bucket);
        }
        let (file, begun) = (open(&policy.folder)?, Instant::now());
        while !locked(&file) {
            if begun.elapsed() >= patience {
                let message = format!("another process has locked {}", policy.folder.display());
                return Err(Error::new(Kind::Io, message));
            }
            thread::sleep(TRY);
        }
        Ok(FolderLock::of_folder(policy, Opened::locked(file)))
    }

    fn of_folder(policy: &Policy, opened: Opened) -> FolderLock {
        let (path, say, opened) = (policy.folder.clone(), policy.say, Mutex::new(opened));
        FolderLock::Folder(Held { path, opened, owner: None, mark: None, say })
    }

    /// Checks that the folder is still the one that is locked and belongs to this training. If the
    /// folder was created again, locks the new one.
    ///
    /// # Errors
    /// If the folder was moved, removed or replaced, or if another training writes there.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            FolderLock::None => Ok(()),
            FolderLock::Folder(held) => held.check(),
            FolderLock::Bucket(lease) => lease.check(),
            FolderLock::Unusable(why) => Err(Error::away(why)),
        }
    }

    /// Remembers a checkpoint by which the folder can be recognised when it comes back.
    pub fn remember(&self, path: &Path) {
        if let FolderLock::Folder(held) = self {
            held.opened().known.extend(crc32_in(path));
        }
    }

    /// Returns the lock for a folder with this mark. The mark stays the same in all epochs of a job.
    #[must_use]
    pub fn of_mark(mut self, mark: Option<&str>) -> FolderLock {
        // The objects of a bucket are not moved.
        if let FolderLock::Folder(held) = &mut self {
            held.mark = mark.map(str::to_owned);
        }
        self
    }

    /// Returns the lock for an epoch of an elastic job.
    #[must_use]
    pub fn of_epoch(mut self, job: &str, epoch: u32) -> FolderLock {
        let owner = Owner { job: job.to_owned(), epoch };
        match &mut self {
            FolderLock::Folder(held) => held.owner = Some(owner),
            FolderLock::Bucket(lease) => lease.set_owner(owner),
            FolderLock::None | FolderLock::Unusable(_) => {}
        }
        self
    }

    /// Removes the files of an incomplete checkpoint, if it is in this folder. In a bucket, another thread
    /// removes them, since a failing store would delay the training.
    ///
    /// # Errors
    /// If the folder does not belong to this training, or is away; nothing is removed then.
    pub fn discard(&self, draft: Draft) -> Result<(), Error> {
        match self {
            FolderLock::None | FolderLock::Unusable(_) => {}
            FolderLock::Folder(_) => {
                self.check()?;
                draft.discard();
            }
            // Nobody else has a draft of this name.
            FolderLock::Bucket(_) => drop(thread::spawn(move || draft.discard())),
        }
        Ok(())
    }

    /// Records why a checkpoint has failed, on this rank or another one. A bucket is not asked again before
    /// the next beat of its lease, since the last checkpoint of a training that was told to end may follow.
    pub fn note_failure(&self, error: &Error) {
        if let FolderLock::Bucket(lease) = self
            && !matches!(error.kind(), Kind::Taken | Kind::Superseded)
        {
            lease.note_failure(error.to_string());
        }
    }
}

impl Held {
    fn opened(&self) -> MutexGuard<'_, Opened> {
        guard(&self.opened)
    }

    fn check(&self) -> Result<(), Error> {
        let mut opened = self.opened();
        if self.is_another(opened.file.as_ref()) {
            self.adopt(&mut opened)?;
        }
        if opened.file.is_none() {
            return Err(Error::new(Kind::Io, format!("cannot read {}", self.path.display())));
        }
        self.owner.as_ref().map_or(Ok(()), |owner| self.own(owner, &mut opened))
    }

    fn mark_there(&self) -> Option<String> {
        fs::read_to_string(self.path.join(MARK)).ok()
    }

    /// Returns whether the folder at the path is not the one that was opened, or has another mark.
    fn is_another(&self, file: Option<&File>) -> bool {
        let number = |found: fs::Metadata| (found.dev(), found.ino());
        let expected = file.and_then(|file| file.metadata().map(number).ok());
        let is_moved = expected.is_none() || self.path.metadata().map(number).ok() != expected;
        is_moved || (self.mark.is_some() && self.mark_there() != self.mark)
    }

    /// Locks a folder that was created again at the path, instead of the folder that was locked before.
    fn adopt(&self, opened: &mut Opened) -> Result<(), Error> {
        let path = self.path.display();
        let hint = "do not move the folder of a training until its end, or create a new empty one";
        if !self.path.exists() {
            let message = format!("{path} was moved or removed while this training ran");
            return Err(Error::away(message).with_hint(hint));
        }
        // A lock that this process has would keep it from the folder.
        (opened.file, opened.is_locked) = (None, false);
        let found = open(&self.path)?;
        if !locked(&found) {
            return Err(taken(&self.path));
        }
        if !self.path.is_dir() || !self.is_known(&opened.known)? {
            let message = format!("{path} is another folder than when this training began");
            return Err(Error::new(Kind::Invalid, message).with_hint(hint));
        }
        if let Some(mark) = &self.mark {
            self.write(MARK, mark)?;
        }
        (opened.file, opened.is_locked) = (Some(found), true);
        (self.say)(format!("{path} is a new folder: checkpoints are written there"));
        Ok(())
    }

    /// Returns whether the folder at the path is empty, or has come back with its checkpoints.
    fn is_known(&self, known: &[u32]) -> Result<bool, Error> {
        let Some(newest) = latest(&self.path)? else { return Ok(true) };
        let is_marked = self.mark.is_some() && self.mark_there() == self.mark;
        Ok(is_marked || crc32_in(&newest).is_some_and(|found| known.contains(&found)))
    }

    /// Writes the owner of the folder, unless it has another owner.
    fn own(&self, mine: &Owner, opened: &mut Opened) -> Result<(), Error> {
        opened.is_locked = opened.is_locked || opened.file.as_ref().is_some_and(locked);
        let text = fs::read_to_string(self.path.join(OWNER)).unwrap_or_default();
        let found = Owner::parse(&text);
        if found.as_ref() == Some(mine) {
            return Ok(());
        }
        let is_own = found.as_ref().is_some_and(|found| found.job == mine.job);
        found.map_or(Ok(()), |found| mine.ensure_not_superseded(&found, &self.path))?;
        if !is_own && !opened.is_locked {
            return Err(taken(&self.path));
        }
        self.write(OWNER, &format!("{} {}\n", mine.job, mine.epoch))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let written = durable::replace(&self.path.join(name), text.as_bytes());
        written.map_err(|e| Error::io("write checkpoints to", &self.path, e))
    }
}

/// Locks the folder, unless another process has locked it. On file systems without locks, always succeeds.
fn locked(folder: &File) -> bool {
    !matches!(folder.try_lock(), Err(TryLockError::WouldBlock))
}

fn open(folder: &Path) -> Result<File, Error> {
    File::open(folder).map_err(|e| Error::io("read", folder, e))
}

/// Returns the checksum of the manifest of a checkpoint in a folder, if it is valid.
fn crc32_in(path: &Path) -> Option<u32> {
    let store = Location::from(path).store().ok()?;
    crc32_of(&store.read("", MANIFEST, MANIFEST_BYTES_MAX).ok()?)
}

/// Returns the result of `resume`, once that checkpoint and the folder of the other checkpoints exist.
/// Waits at most `patience` for both. If the folder does not exist by then, it is created later.
///
/// # Errors
/// If the checkpoint does not exist by then.
pub fn await_places<T>(
    resume: impl Fn() -> Result<T, Error>,
    folder: Option<&Path>,
    patience: Duration,
    say: fn(String),
) -> Result<T, Error> {
    let (begun, mut told) = (Instant::now(), String::new());
    loop {
        let found = resume();
        let left = patience.saturating_sub(begun.elapsed());
        let cause = match &found {
            _ if left.is_zero() => None,
            // A folder that is not there by then is made, as without the wait.
            Ok(_) => folder.and_then(absence),
            // Neither damage nor missing credentials go by themselves.
            Err(error) if matches!(error.kind(), Kind::Missing | Kind::Io) => {
                Some(error.to_string())
            }
            Err(_) => None,
        };
        let Some(cause) = cause else { return found };
        if told != cause {
            say(format!("waiting up to {} s: {cause}", patience.as_secs()));
            told = cause;
        }
        thread::sleep(LOOK.min(left));
    }
}

/// Returns why checkpoints cannot be written to a folder or bucket yet, if it does not exist.
fn absence(place: &Path) -> Option<String> {
    match Location::from(place) {
        Location::Folder(folder) => {
            (!folder.is_dir()).then(|| format!("there is no folder {}", place.display()))
        }
        bucket @ Location::Bucket(_) => {
            let found = bucket.store_within(PATIENCE).ok()?.find("", OWNER, MARK_BYTES_MAX);
            found.err().map(|why| why.to_string())
        }
    }
}

/// Returns the mark of the folder or bucket, which is the same in all processes that share it.
///
/// # Errors
/// If the folder or bucket has no mark, and none can be written.
pub fn mark(folder: &Path) -> Result<String, Error> {
    let store = Location::from(folder).store()?;
    let token = new_token()?;
    let created = store.create("", MARK, &token.as_bytes()[..MARK_LETTERS]);
    let doing = format!("cannot write checkpoints to {}", folder.display());
    created.map_err(|error| error.context(&doing))?;
    let begun = Instant::now();
    loop {
        let mark = store.read("", MARK, MARK_BYTES_MAX).unwrap_or_default();
        let mark = String::from_utf8_lossy(&mark).into_owned();
        if mark.len() == MARK_LETTERS && mark.bytes().all(|letter| letter.is_ascii_hexdigit()) {
            return Ok(mark);
        }
        if begun.elapsed() >= MARKING {
            let message = format!("{} does not contain the mark of a folder", store.path("", MARK));
            return Err(Error::new(Kind::Invalid, message)
                .with_hint("remove the file before any process of the job starts"));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Warns if the folder has a newer checkpoint than the one from which this training continues. Returns the
/// newest.
fn warn_of_others(policy: &Policy, resumed: Option<&Path>) -> Result<Option<PathBuf>, Error> {
    let newest = latest(&policy.folder)?;
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let is_resumed = |newest: &Path| resumed.is_some_and(|it| whole(it) == whole(newest));
    if let Some(newest) = newest.as_deref().filter(|newest| !is_resumed(newest)) {
        let (folder, newest) = (policy.folder.display(), newest.display());
        (policy.say)(format!(
            "warning: this training does not continue from {newest}: it overwrites checkpoints of the same \
             steps, and --resume {folder} would continue from the newest one"
        ));
    }
    Ok(newest)
}

#[cfg(test)]
mod tests;
