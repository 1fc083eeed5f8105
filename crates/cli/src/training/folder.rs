//! The folder of the checkpoints while a training writes to it.
//!
//! One training at a time: two would write the same files. Rank 0 holds a lock on the folder itself,
//! which the system lifts however the process ends. File systems without locks are trusted.

use std::fs::{File, TryLockError};
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use thinwire_train::checkpoint::{self, Checkpoint};

use super::plan::Keep;
use crate::failure::hinted;
use crate::output::say;

/// The folder is this training's for as long as this lives.
#[derive(Debug)]
pub struct Held {
    _folder: Option<File>,
}

/// Takes the folder on rank 0; removes what an earlier training has left incomplete, and warns of
/// checkpoints there that are none of this training.
///
/// # Errors
/// If another training has it, or it cannot be read.
pub fn hold(keep: Option<&Keep>, rank: u32, resumed: Option<&Checkpoint>) -> Result<Held> {
    let Some(Keep { folder, .. }) = keep.filter(|_| rank == 0) else {
        return Ok(Held { _folder: None });
    };
    let held = File::open(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    match held.try_lock() {
        Ok(()) => checkpoint::clean(folder)?,
        Err(TryLockError::WouldBlock) => {
            let error = anyhow!("another training writes its checkpoints to {}", folder.display());
            return Err(hinted(error, "wait for its end, or give another --checkpoint-dir"));
        }
        Err(TryLockError::Error(_)) => {}
    }
    let newest = checkpoint::latest(folder)?;
    newest.filter(|newest| !is(newest, resumed)).iter().for_each(|newest| warn(folder, newest));
    Ok(Held { _folder: Some(held) })
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
