//! The folder or bucket of the checkpoints while a training writes to it.
//!
//! One training at a time: two would write the same files. Rank 0 holds a lock on the folder itself,
//! which the system lifts however the process ends. File systems without locks are trusted. A lock is
//! the folder's, wherever it is moved to. A folder that was removed and made anew is taken in its place. Law:
//! nothing is written to another folder of its name that another training has, or that has checkpoints.
//!
//! Rank 0 of an elastic job may be another process in every epoch, and one of an earlier epoch may be
//! stopped and still have the lock. So rank 0 also writes job and epoch to a file there. Law: once it has
//! done so, no rank 0 of an earlier epoch commits or removes anything.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow};
use thinwire_checkpoint::{Kind, Location, PATIENCE, clean};
use thinwire_link::durable;
use thinwire_train::checkpoint::{self, Checkpoint, Draft};

use super::lease::Lease;
use super::machine::go_on;
use super::settings::CheckpointPolicy;
use crate::failure::{hinted, lines};
use crate::output::say;

/// File with the elastic job and the epoch whose rank 0 writes to the folder.
pub(super) const OWNER: &str = ".thinwire-job";
/// File with a random number, by which processes know whether they have the same folder.
const MARK: &str = ".thinwire-folder";
/// Hexadecimal digits of the number in the file [`MARK`].
const MARK_LETTERS: usize = 16;
/// Longest file [`MARK`] that is read.
const MARK_BYTES_MAX: u64 = 1024;
/// Interval at which a place that is not there yet is looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Longest time that another process takes to write the file [`MARK`].
const MARKING: Duration = Duration::from_secs(2);

/// The folder or bucket is this training's for as long as this lives; other ranks than 0 hold nothing.
#[derive(Debug, Default)]
pub enum FolderLock {
    /// Lock of another rank than 0, or of a training without checkpoints.
    #[default]
    None,
    /// Lock of a folder.
    Folder(Held),
    /// Lease of a bucket.
    Bucket(Lease),
    /// Bucket that cannot be opened, and why.
    Unusable(String),
}

/// Folder that is locked.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    /// The folder; none if it could not be opened.
    file: Mutex<Option<File>>,
    is_locked: AtomicBool,
    /// Elastic job and epoch, if it is one.
    owner: Option<Owner>,
    /// Mark of the folder when this process joined an elastic job.
    mark: Option<String>,
    /// Checkpoints by which the folder is recognised when it comes back, as checksums.
    known: Mutex<Vec<u32>>,
}

/// Epoch of an elastic job, whose rank 0 writes to the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Name of the job.
    pub job: String,
    /// Number of the epoch.
    pub epoch: u32,
}

impl FolderLock {
    /// Makes sure that the folder is still the one that is locked, or takes one that was made anew, and that it
    /// is this training's.
    ///
    /// # Errors
    /// If it was moved, removed or replaced, or if somebody else writes there.
    pub fn check(&self) -> Result<()> {
        let held = match self {
            FolderLock::None => return Ok(()),
            FolderLock::Folder(held) => held,
            FolderLock::Bucket(lease) => return lease.check(),
            FolderLock::Unusable(why) => return Err(away(why.clone())),
        };
        let mut file = held.file();
        if held.is_another(file.as_ref()) {
            held.adopt(&mut file)?;
        }
        let Some(file) = &*file else { return Err(anyhow!("cannot read {}", held.path.display())) };
        held.owner.as_ref().map_or(Ok(()), |owner| held.own(owner, file))
    }

    fn new(path: &Path, file: Option<File>, is_locked: bool) -> FolderLock {
        let (file, is_locked) = (Mutex::new(file), AtomicBool::new(is_locked));
        let path = path.to_owned();
        let known = Mutex::default();
        FolderLock::Folder(Held { path, file, is_locked, owner: None, mark: None, known })
    }

    /// Remembers a checkpoint by which the folder is recognised when it comes back.
    pub fn remember(&self, path: &Path) {
        let FolderLock::Folder(held) = self else { return };
        if let Ok(checkpoint) = Checkpoint::open(path) {
            let mut known = held.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.push(checkpoint.crc32());
        }
    }

    /// The lock as that of a folder with this mark, which it keeps over all epochs of a job.
    #[must_use]
    pub fn of_mark(self, mark: Option<&str>) -> FolderLock {
        match self {
            FolderLock::Folder(held) => {
                FolderLock::Folder(Held { mark: mark.map(str::to_owned), ..held })
            }
            // The objects of a bucket are not moved.
            other => other,
        }
    }

    /// The lock as that of an epoch of an elastic job.
    #[must_use]
    pub fn of_epoch(self, job: &str, epoch: u32) -> FolderLock {
        let owner = Owner { job: job.to_owned(), epoch };
        match self {
            FolderLock::Folder(held) => FolderLock::Folder(Held { owner: Some(owner), ..held }),
            FolderLock::Bucket(mut lease) => {
                lease.set_owner(owner);
                FolderLock::Bucket(lease)
            }
            other @ (FolderLock::None | FolderLock::Unusable(_)) => other,
        }
    }

    /// Removes what has been written of a checkpoint, if it is in this folder. From a bucket another thread removes it:
    /// a store that fails would hold up the training.
    ///
    /// # Errors
    /// If the folder is not this training's, or is away: then nothing is removed.
    pub fn discard(&self, draft: Draft) -> Result<()> {
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

    /// Notes why a checkpoint has failed, in this rank or another one. A bucket is not asked again before the next beat
    /// of its lease, as the last checkpoint of a training that was told to end may follow.
    pub fn note_failure(&self, error: &Error) {
        if let FolderLock::Bucket(lease) = self
            && !is_taken(error)
            && !is_superseded(error)
        {
            lease.note_failure(lines(error).0);
        }
    }
}

impl Held {
    fn file(&self) -> MutexGuard<'_, Option<File>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the folder at the path is not the one that was opened, or has another mark.
    fn is_another(&self, file: Option<&File>) -> bool {
        let number = |found: fs::Metadata| (found.dev(), found.ino());
        let expected = file.and_then(|file| file.metadata().map(number).ok());
        let is_moved = expected.is_none() || self.path.metadata().map(number).ok() != expected;
        let mark = || fs::read_to_string(self.path.join(MARK)).ok();
        is_moved || (self.mark.is_some() && mark() != self.mark)
    }

    /// Takes a folder that was made anew at the path in the place of the one that was held.
    fn adopt(&self, file: &mut Option<File>) -> Result<()> {
        let path = self.path.display();
        let hint = "leave the folder of a training where it is until its end, or make it anew";
        if !self.path.exists() {
            let error = away(format!("{path} was moved or removed while this training ran"));
            return Err(hinted(error, hint));
        }
        // A lock that this process has would keep it from the folder.
        *file = None;
        self.is_locked.store(false, Ordering::Relaxed);
        let found = open(&self.path)?;
        if !locked(&found) {
            return Err(taken(&self.path));
        }
        if !self.path.is_dir() || !self.is_known()? {
            let error = anyhow!("{path} is another folder than when this training began");
            return Err(hinted(error, hint));
        }
        let write_mark = |mark: &String| durable::replace(&self.path.join(MARK), mark.as_bytes());
        let written = self.mark.as_ref().map_or(Ok(()), write_mark);
        written.with_context(|| format!("cannot write checkpoints to {path}"))?;
        self.is_locked.store(true, Ordering::Relaxed);
        *file = Some(found);
        say(format!("{path} was made anew: checkpoints go there"));
        Ok(())
    }

    /// Whether the folder that is now at the path is empty, or has come back with what it had.
    fn is_known(&self) -> Result<bool> {
        let Some(newest) = checkpoint::latest(&self.path)? else { return Ok(true) };
        let mark = || fs::read_to_string(self.path.join(MARK)).ok();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_marked = self.mark.is_some() && mark() == self.mark;
        Ok(is_marked || Checkpoint::open(&newest).is_ok_and(|it| known.contains(&it.crc32())))
    }

    /// Writes down whose the folder is, unless it is somebody else's.
    fn own(&self, mine: &Owner, file: &File) -> Result<()> {
        if !self.is_locked.load(Ordering::Relaxed) {
            self.is_locked.store(locked(file), Ordering::Relaxed);
        }
        let found = Owner::read(&self.path);
        if found.as_ref() == Some(mine) {
            return Ok(());
        }
        let path = self.path.display();
        if found.as_ref().is_some_and(|it| it.job == mine.job && it.epoch > mine.epoch) {
            return Err(superseded(&self.path));
        }
        let is_own = found.is_some_and(|it| it.job == mine.job);
        if !is_own && !self.is_locked.load(Ordering::Relaxed) {
            return Err(taken(&self.path));
        }
        let text = format!("{} {}\n", mine.job, mine.epoch);
        durable::replace(&self.path.join(OWNER), text.as_bytes())
            .with_context(|| format!("cannot write checkpoints to {path}"))
    }
}

/// Error of a rank 0 of an earlier epoch, whose checkpoint would be older than that of a later one.
#[derive(Debug, thiserror::Error)]
#[error("a later epoch of this job writes its checkpoints to {0}")]
struct Superseded(PathBuf);

/// Error of a folder or bucket that may come back.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Away(String);

pub(super) fn away(why: String) -> anyhow::Error {
    Away(why).into()
}

/// Returns whether a folder or bucket is away and may come back, as one that is mounted anew does.
pub fn is_away(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<Away>())
}

pub(super) fn superseded(place: &Path) -> anyhow::Error {
    Superseded(place.to_owned()).into()
}

/// Returns whether a later epoch of the job writes the checkpoints, so that this one need not.
pub fn is_superseded(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<Superseded>())
}

impl Owner {
    fn read(folder: &Path) -> Option<Owner> {
        Owner::parse(&fs::read_to_string(folder.join(OWNER)).ok()?)
    }

    /// Reads job and epoch at the beginning of a text.
    pub fn parse(text: &str) -> Option<Owner> {
        let mut words = text.split_whitespace();
        let (job, epoch) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        Some(Owner { job, epoch })
    }
}

/// Locks the folder, unless another process has done so. File systems without locks are trusted.
fn locked(folder: &File) -> bool {
    !matches!(folder.try_lock(), Err(TryLockError::WouldBlock))
}

/// Error of a folder or bucket that another training has.
#[derive(Debug, thiserror::Error)]
#[error("another training writes its checkpoints to {0}")]
struct Taken(PathBuf);

pub(super) fn taken(folder: &Path) -> anyhow::Error {
    hinted(Taken(folder.to_owned()), "wait for its end, or give another --checkpoint-dir")
}

/// Returns whether another training has the folder or bucket.
pub fn is_taken(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<Taken>())
}

/// Takes the folder on rank 0; removes what an earlier training has left incomplete, and warns of
/// checkpoints there that are none of this training.
///
/// # Errors
/// If another training has it, or it cannot be read.
pub fn hold(
    policy: Option<&CheckpointPolicy>,
    rank: u32,
    resumed: Option<&Checkpoint>,
) -> Result<FolderLock> {
    let Some(CheckpointPolicy { folder, .. }) = policy.filter(|_| rank == 0) else {
        return Ok(FolderLock::default());
    };
    if let Location::Bucket(_) = Location::from(folder.as_path()) {
        let lease = Lease::take(folder)?;
        clean(folder)?;
        warn_of_others(folder, resumed)?;
        return Ok(FolderLock::Bucket(lease));
    }
    // A rank that was started by hand has no launcher that has made the folder.
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot write checkpoints to {}", folder.display()))?;
    let file = open(folder)?;
    match file.try_lock() {
        Ok(()) => clean(folder)?,
        Err(TryLockError::WouldBlock) => return Err(taken(folder)),
        Err(TryLockError::Error(_)) => {}
    }
    // An elastic job may have written here before.
    let _ = fs::remove_file(folder.join(OWNER));
    warn_of_others(folder, resumed)?;
    let lock = FolderLock::new(folder, Some(file), true);
    let newest = checkpoint::latest(folder)?;
    resumed
        .map(Checkpoint::path)
        .into_iter()
        .chain(newest.as_deref())
        .for_each(|path| lock.remember(path));
    Ok(lock)
}

/// Opens the checkpoint to resume. Waits up to `patience` until it and the place of others are there; a place
/// that is not there then is made later.
///
/// # Errors
/// If the checkpoint is not there then.
pub fn resolve(
    resume: Option<&Path>,
    folder: Option<&Path>,
    patience: Duration,
) -> Result<Option<Checkpoint>> {
    let (begun, mut told) = (Instant::now(), String::new());
    loop {
        let found = resume.map(checkpoint::resolve).transpose();
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
        let Some(cause) = cause else { return Ok(found?) };
        if told != cause {
            say(format!("waiting up to {} s: {cause}", patience.as_secs()));
            told = cause;
        }
        thread::sleep(LOOK.min(left));
    }
}

/// Returns why checkpoints cannot go to a folder or bucket yet, if it is not there.
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

/// Opens the folder on rank 0 of a later epoch of an elastic job, and locks it if it can. Whether this rank may
/// write there is looked at before each checkpoint: a training does not end because it may not.
pub fn hold_again(policy: Option<&CheckpointPolicy>, rank: u32) -> FolderLock {
    let Some(CheckpointPolicy { folder, .. }) = policy.filter(|_| rank == 0) else {
        return FolderLock::default();
    };
    if let Location::Bucket(_) = Location::from(folder.as_path()) {
        let lease = Lease::open(folder);
        return lease.map_or_else(|why| FolderLock::Unusable(lines(&why).0), FolderLock::Bucket);
    }
    let file = File::open(folder).ok();
    let is_locked = file.as_ref().is_some_and(locked);
    FolderLock::new(folder, file, is_locked)
}

/// Locks the folder for one process of an elastic job after its last epoch, once others have saved what they
/// have.
///
/// # Errors
/// If the folder cannot be read, or another process does not let go of it within `patience`.
pub fn hold_alone(folder: &Path, patience: Duration) -> Result<FolderLock> {
    if let Location::Bucket(_) = Location::from(folder) {
        return Lease::open(folder).map(FolderLock::Bucket);
    }
    let (file, begun) = (open(folder)?, Instant::now());
    while !locked(&file) {
        if begun.elapsed() >= patience {
            return Err(anyhow!("another process has locked {}", folder.display()));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(FolderLock::new(folder, Some(file), true))
}

/// Returns the mark of the folder or bucket, which is the same in all processes that share it.
///
/// # Errors
/// If it has no mark, and none can be written.
pub fn mark(folder: &Path) -> Result<String> {
    let store = Location::from(folder).store()?;
    let mark = &thinwire_link::Token::random()?[..MARK_LETTERS];
    let created = store.create("", MARK, mark.as_bytes());
    created.with_context(|| format!("cannot write checkpoints to {}", folder.display()))?;
    let begun = Instant::now();
    loop {
        let mark = store.read("", MARK, MARK_BYTES_MAX).unwrap_or_default();
        let mark = String::from_utf8_lossy(&mark).into_owned();
        if mark.len() == MARK_LETTERS && mark.bytes().all(|letter| letter.is_ascii_hexdigit()) {
            return Ok(mark);
        }
        if begun.elapsed() >= MARKING {
            let error = anyhow!("{} is no mark of a folder", store.path("", MARK));
            return Err(hinted(error, "remove the file, before any process of the job starts"));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn open(folder: &Path) -> Result<File> {
    File::open(folder).with_context(|| format!("cannot read {}", folder.display()))
}

/// A hint with the command that resumes an ended training, if there is a checkpoint.
pub fn resume_hint(
    policy: Option<&CheckpointPolicy>,
    resumed: Option<&Checkpoint>,
) -> Option<String> {
    let kept = policy.map(|policy| policy.folder.as_path());
    let kept = kept.filter(|folder| checkpoint::latest(folder).is_ok_and(|found| found.is_some()));
    kept.or(resumed.map(Checkpoint::path)).map(go_on)
}

/// Warns of a newer checkpoint in the folder than the one that this training resumes.
fn warn_of_others(folder: &Path, resumed: Option<&Checkpoint>) -> Result<()> {
    let newest = checkpoint::latest(folder)?;
    newest.filter(|newest| !is(newest, resumed)).iter().for_each(|newest| warn(folder, newest));
    Ok(())
}

fn is(newest: &Path, resumed: Option<&Checkpoint>) -> bool {
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    resumed.is_some_and(|resumed| whole(resumed.path()) == whole(newest))
}

fn warn(folder: &Path, newest: &Path) {
    let (folder, newest) = (folder.display(), newest.display());
    say(format!(
        "warning: this training does not go on from {newest}: it replaces checkpoints of equal \
         steps, and --resume {folder} takes the newest of all"
    ));
}

#[cfg(test)]
mod tests {
    use thinwire_train::Position;
    use thinwire_train::checkpoint::{Progress, Tensors};
    use thinwire_wire::Rank;

    use super::*;

    #[test]
    fn a_folder_that_was_moved_is_not_written_to() {
        let root = std::env::temp_dir().join(format!("thinwire-lock-{}", std::process::id()));
        let policy = CheckpointPolicy { folder: root.join("kept"), every: None };
        fs::create_dir_all(&policy.folder).unwrap();
        let hold = || hold(Some(&policy), 0, None);
        let first = hold().unwrap();
        assert!(first.check().is_ok() && hold().is_err());
        fs::rename(&policy.folder, root.join("moved")).unwrap();
        assert!(first.check().unwrap_err().to_string().contains("was moved or removed"));
        fs::create_dir(&policy.folder).unwrap();
        let second = hold().unwrap();
        let draft = Draft::create(&policy.folder, 7).unwrap();
        let said = || first.check().unwrap_err().to_string();
        assert!(said().starts_with("another training writes its checkpoints to "));
        let open = || Draft::open(&policy.folder, 7, "").unwrap();
        assert!(first.discard(draft).is_err());
        assert_eq!(fs::read_dir(&policy.folder).unwrap().count(), 1);
        second.discard(open()).unwrap();
        assert_eq!(fs::read_dir(&policy.folder).unwrap().count(), 0);
        drop(second);
        let checkpoint = policy.folder.join("step-000007");
        fs::create_dir(&checkpoint).unwrap();
        fs::write(checkpoint.join("manifest.json"), "").unwrap();
        assert!(said().contains("is another folder"));
    }

    #[test]
    fn a_folder_that_was_made_anew_is_taken_with_its_lock_and_mark() {
        let root = std::env::temp_dir().join(format!("thinwire-anew-{}", std::process::id()));
        let policy = CheckpointPolicy { folder: root.join("kept"), every: None };
        fs::create_dir_all(&policy.folder).unwrap();
        let of_folder = mark(&policy.folder).unwrap();
        let lock = hold(Some(&policy), 0, None).unwrap().of_mark(Some(&of_folder));
        let lock = lock.of_epoch("job", 3);
        for _ in 0..2 {
            fs::remove_dir_all(&policy.folder).unwrap();
            fs::create_dir(&policy.folder).unwrap();
            lock.check().unwrap();
            assert_eq!(mark(&policy.folder).unwrap(), of_folder);
            assert!(hold(Some(&policy), 0, None).is_err());
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_folder_that_comes_back_with_its_checkpoints_is_taken_again() {
        let root = std::env::temp_dir().join(format!("thinwire-back-{}", std::process::id()));
        let policy = CheckpointPolicy { folder: root.join("kept"), every: None };
        fs::create_dir_all(&policy.folder).unwrap();
        let lock = hold(Some(&policy), 0, None).unwrap();
        let save = |step| {
            let draft = Draft::create(&policy.folder, step).unwrap();
            checkpoint::write_whole(&draft, &Tensors::new(), "").unwrap();
            let (data, plan) = (String::new(), String::new());
            let (position, config) = (Position::default(), serde_json::Value::Null);
            let (seed, world, updates) = (1, 1, step);
            checkpoint::write_exchange(&draft, Rank(0), &Tensors::new()).unwrap();
            let progress = Progress { step, updates, position, seed, world, data, config, plan };
            checkpoint::commit(&draft, progress).unwrap()
        };
        lock.remember(&save(1));
        fs::rename(&policy.folder, root.join("away")).unwrap();
        assert!(is_away(&lock.check().unwrap_err()));
        fs::create_dir(&policy.folder).unwrap();
        lock.check().unwrap();
        lock.remember(&save(2));
        fs::rename(&policy.folder, root.join("of-the-root")).unwrap();
        fs::rename(root.join("away"), &policy.folder).unwrap();
        lock.check().unwrap();
        save(3);
        fs::rename(&policy.folder, root.join("away")).unwrap();
        fs::create_dir(&policy.folder).unwrap();
        lock.check().unwrap();
        fs::remove_dir(&policy.folder).unwrap();
        fs::rename(root.join("away"), &policy.folder).unwrap();
        let error = lock.check().unwrap_err();
        assert!(error.to_string().contains("is another folder") && !is_away(&error), "{error}");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_stopped_rank_of_an_earlier_epoch_keeps_the_lock_and_writes_no_more() {
        let root = std::env::temp_dir().join(format!("thinwire-epochs-{}", std::process::id()));
        let policy = CheckpointPolicy { folder: root.clone(), every: None };
        fs::create_dir_all(&root).unwrap();
        let stopped = hold(Some(&policy), 0, None).unwrap().of_epoch("job", 1);
        stopped.check().unwrap();
        let next = hold_again(Some(&policy), 0).of_epoch("job", 2);
        next.check().unwrap();
        assert!(stopped.check().unwrap_err().to_string().contains("a later epoch of this job"));
        let draft = Draft::create(&root, 7).unwrap();
        let drafts = || fs::read_dir(&root).unwrap().flatten().filter(|it| it.path().is_dir());
        assert!(stopped.discard(draft).is_err());
        assert_eq!(drafts().count(), 1);
        next.discard(Draft::open(&root, 7, "").unwrap()).unwrap();
        assert_eq!(drafts().count(), 0);
        let marked = |mark| hold_again(Some(&policy), 0).of_mark(mark);
        let mark = mark(&root).unwrap();
        marked(Some(&mark)).check().unwrap();
        let said = marked(Some("of another folder")).check().unwrap_err().to_string();
        assert!(said.contains("another training writes"), "{said}");
        // Another job does not write as long as one of this job has the lock.
        let other = hold_again(Some(&policy), 0).of_epoch("other", 9);
        assert!(other.check().unwrap_err().to_string().starts_with("another training writes"));
        assert!(hold_alone(&root, Duration::ZERO).is_err());
        drop((stopped, next));
        other.check().unwrap();
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_folder_has_one_mark_and_another_folder_another() {
        let root = std::env::temp_dir().join(format!("thinwire-mark-{}", std::process::id()));
        let folders = ["one", "other"].map(|name| root.join(name));
        folders.iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        let marks = folders.each_ref().map(|folder| mark(folder).unwrap());
        assert_eq!(mark(&folders[0]).unwrap(), marks[0]);
        assert_ne!(marks[0], marks[1]);
        fs::remove_dir_all(&root).unwrap();
    }
}
