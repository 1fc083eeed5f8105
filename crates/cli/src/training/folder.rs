//! The folder of the checkpoints while a training writes to it.
//!
//! One training at a time: two would write the same files. Rank 0 holds a lock on the folder itself,
//! which the system lifts however the process ends. File systems without locks are trusted. A lock is
//! the folder's, wherever it is moved to: law: nothing is written to another folder of its name.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use thinwire_train::checkpoint::{self, Checkpoint, Draft};

use super::machine::go_on;
use super::settings::CheckpointPolicy;
use crate::failure::hinted;
use crate::output::say;

/// The folder is this training's for as long as this lives; other ranks than 0 hold nothing.
#[derive(Debug, Default)]
pub struct FolderLock(Option<(PathBuf, File)>);

impl FolderLock {
    /// Makes sure that the folder is still the one that is lock.
    ///
    /// # Errors
    /// If it was moved, removed or replaced.
    pub fn check(&self) -> Result<()> {
        let Some((path, lock)) = &self.0 else { return Ok(()) };
        let number = |found: std::fs::Metadata| (found.dev(), found.ino());
        let expected = lock.metadata().map(number).ok();
        if expected.is_none() || path.metadata().map(number).ok() == expected {
            return Ok(());
        }
        let what = match path.exists() {
            true => "is another folder than when this training began",
            false => "was moved or removed while this training ran",
        };
        let error = anyhow!("{} {what}", path.display());
        Err(hinted(error, "leave the folder of a training where it is until its end"))
    }

    /// Removes what has been written of a step's checkpoint, if it is in this folder.
    pub fn discard(&self, step: u64) {
        if let Some((path, _)) = self.0.as_ref().filter(|_| self.check().is_ok()) {
            Draft::discard(path, step);
        }
    }
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
    let file = File::open(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    match file.try_lock() {
        Ok(()) => checkpoint::clean(folder)?,
        Err(TryLockError::WouldBlock) => {
            let error = anyhow!("another training writes its checkpoints to {}", folder.display());
            return Err(hinted(error, "wait for its end, or give another --checkpoint-dir"));
        }
        Err(TryLockError::Error(_)) => {}
    }
    let newest = checkpoint::latest(folder)?;
    newest.filter(|newest| !is(newest, resumed)).iter().for_each(|newest| warn(folder, newest));
    Ok(FolderLock(Some((folder.clone(), file))))
}

/// Opens the folder on rank 0 of a later epoch of an elastic job, and locks it if it can. A rank 0 of an earlier
/// epoch may be stopped and still have the lock; it does not write any more.
///
/// # Errors
/// If the folder cannot be read.
pub fn hold_again(policy: Option<&CheckpointPolicy>, rank: u32) -> Result<FolderLock> {
    let Some(CheckpointPolicy { folder, .. }) = policy.filter(|_| rank == 0) else {
        return Ok(FolderLock::default());
    };
    let file = File::open(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let _ = file.try_lock();
    Ok(FolderLock(Some((folder.clone(), file))))
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

fn is(newest: &Path, resumed: Option<&Checkpoint>) -> bool {
    let whole = |path: &Path| path.canonicalize().ok();
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
    use std::fs;

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
        Draft::create(&policy.folder, 7).unwrap();
        assert!(first.check().unwrap_err().to_string().contains("is another folder"));
        first.discard(7);
        assert_eq!(fs::read_dir(&policy.folder).unwrap().count(), 1);
        second.discard(7);
        assert_eq!(fs::read_dir(&policy.folder).unwrap().count(), 0);
        fs::remove_dir_all(&root).unwrap();
    }
}
