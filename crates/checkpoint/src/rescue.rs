//! The last checkpoint of a training, which survives the loss of its folder.
//!
//! The folder may be full, unmounted or removed when the training ends. Ranks try again until [`RETRY`] or
//! [`RETRY_IN_BUCKET`], or the number of seconds in [`RETRY_VARIABLE`], has passed since the first attempt
//! began. Then rank 0 writes the checkpoint to a new folder, within the folder that [`FOLDER_VARIABLE`]
//! names or within the temporary folder. The other ranks send it their files, since no folder except the
//! lost one is known to be shared. The resulting error names the path. Law: a checkpoint that was saved
//! in this way equals the checkpoint that would have been written to the lost folder.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use thinwire_wire::{Hint, Rank};

use crate::draft::Draft;
use crate::error::{Error, Kind};
use crate::lease::{seconds_of, term};
use crate::lock::Policy;
use crate::manifest::{Record, new_token};
use crate::save::Saved;

/// Variable with the folder for a checkpoint that cannot be written to its own folder.
const FOLDER_VARIABLE: &str = "THINWIRE_RESCUE_DIR";
/// Variable with the number of seconds for which a last checkpoint is retried.
const RETRY_VARIABLE: &str = "THINWIRE_RESCUE_AFTER_S";
/// Time for which a last checkpoint is retried, counted from its first attempt: less than a launcher waits
/// for ranks after a signal.
const RETRY: Duration = Duration::from_secs(5);
/// Time for which a last checkpoint is retried in a bucket. A silent bucket delays the previous checkpoint by
/// five seconds, and the last attempt by five more; a launcher waits for fourteen.
const RETRY_IN_BUCKET: Duration = Duration::from_secs(2);
/// Pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(500);
/// Largest number of bytes of a file that ranks send at once.
const PIECE_BYTES: usize = 1 << 20;

/// Next action after an attempt has failed; rank 0 decides.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    Again = 1,
    Rescue,
    GiveUp,
    Skip,
}

/// Time in a training at which a checkpoint is written.
#[derive(Clone, Copy, PartialEq)]
enum Moment {
    Last,
    Between,
}

/// Saves the last checkpoint of a training by `attempt`, which is repeated for a while. If that fails, saves
/// it in another folder. All ranks call this.
///
/// # Errors
/// If no attempt succeeds; if the checkpoint is then in another folder, the error names it. Also if a rank is
/// lost.
pub fn save_last<S: Saved, T>(
    rank: &mut S,
    policy: &Policy,
    step: u64,
    attempt: impl FnMut(&mut S) -> Result<T, Error>,
) -> Result<T, Error> {
    let saved = save(rank, policy, step, Moment::Last, attempt)?;
    saved.ok_or_else(|| Error::new(Kind::Failed, "a last checkpoint is not left out"))
}

/// Saves a checkpoint by `attempt` as [`save_last`] does. If its folder is only temporarily unavailable,
/// or its bucket does not accept it, returns `None`, and training can continue. All ranks call this.
///
/// # Errors
/// As [`save_last`].
pub fn save_between<S: Saved, T>(
    rank: &mut S,
    policy: &Policy,
    step: u64,
    attempt: impl FnMut(&mut S) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    save(rank, policy, step, Moment::Between, attempt)
}

/// Refuses invalid values of these variables, before the first step.
///
/// # Errors
/// If a value is not a time.
pub fn check_variables() -> Result<(), Error> {
    term()?;
    seconds_of(RETRY_VARIABLE).map(drop)
}

fn save<S: Saved, T>(
    rank: &mut S,
    policy: &Policy,
    step: u64,
    moment: Moment,
    mut attempt: impl FnMut(&mut S) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let usual = if policy.is_in_bucket() { RETRY_IN_BUCKET } else { RETRY };
    let retry = seconds_of(RETRY_VARIABLE).ok().flatten().unwrap_or(usual);
    let (began, mut is_told) = (Instant::now(), false);
    loop {
        let error = match attempt(rank) {
            Err(error) if error.kind() != Kind::Lost => error,
            done => return done.map(Some),
        };
        let next = match moment {
            // Another process has a newer state.
            _ if error.kind() == Kind::Superseded => Next::GiveUp,
            Moment::Between if may_skip(policy, &error) => Next::Skip,
            // A store that was silent for all this time would be so again, and the launcher waits no longer.
            _ if began.elapsed() < retry => Next::Again,
            _ => Next::Rescue,
        };
        match rank.gather(&[next as u8 as f32])?.first() {
            Some(next) if *next == Next::Again as u8 as f32 => {
                if !std::mem::replace(&mut is_told, true) {
                    tell_retry(policy, &error, retry);
                }
                thread::sleep(PAUSE);
            }
            Some(next) if *next == Next::Rescue as u8 as f32 => {
                let written = elsewhere(rank, step);
                return Err(rescued(policy, error, written));
            }
            Some(next) if *next == Next::Skip as u8 as f32 => {
                // Rank 0 tells that the folder is away, of which a missing file is only a consequence.
                if !error.is_of_missing_file() {
                    policy.warn_unsaved(&error, step);
                }
                return Ok(None);
            }
            _ => return Err(error),
        }
    }
}

/// Returns whether training continues without a checkpoint that failed. A bucket can take the next one,
/// unless it now belongs to another training.
fn may_skip(policy: &Policy, error: &Error) -> bool {
    error.kind() == Kind::Away || (policy.is_in_bucket() && error.kind() != Kind::Taken)
}

impl Policy {
    /// Reports that a checkpoint could not be written. The rank that has failed also reports the reason.
    pub fn warn_unsaved(&self, error: &Error, step: u64) {
        if error.kind() != Kind::Echo {
            let why = error.with_remedy();
            (self.say)(format!(
                "warning: saving step {step}: {why}; the training continues without this checkpoint"
            ));
        }
    }
}

fn tell_retry(policy: &Policy, error: &Error, retry: Duration) {
    if error.kind() != Kind::Echo {
        let (why, seconds) = (error.without_number(), retry.as_secs_f64());
        (policy.say)(format!("warning: {why}; trying to save the checkpoint for {seconds} s"));
    }
}

/// Adds to an error the present place of the checkpoint, if this rank has written it.
fn rescued(policy: &Policy, error: Error, written: Result<Option<PathBuf>, Error>) -> Error {
    match written {
        Ok(None) => error,
        Ok(Some(path)) => {
            let saved = format!("{error}; the checkpoint is in {} instead", path.display());
            Error::new(Kind::Failed, saved).with_hint((policy.go_on)(&path))
        }
        Err(lost) if lost.kind() == Kind::Lost => lost,
        Err(other) => {
            let message =
                format!("{error}; the checkpoint could not be saved elsewhere either: {other}");
            let room = || format!("set {FOLDER_VARIABLE} to a folder with free space");
            let hint = error.hint().map_or_else(room, str::to_owned);
            Error::new(Kind::Failed, message).with_hint(hint)
        }
    }
}

/// Writes the checkpoint to another folder. Returns its path on rank 0.
fn elsewhere<S: Saved>(rank: &mut S, step: u64) -> Result<Option<PathBuf>, Error> {
    let named = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty());
    let folders = named.map(PathBuf::from).into_iter().chain([std::env::temp_dir()]);
    let is_first = rank.world().rank() == Rank(0);
    let mut folders = folders.filter(|_| is_first);
    let mut written =
        if is_first { Err(Error::new(Kind::Io, "no folder can be written")) } else { Ok(None) };
    loop {
        let folder = if written.is_err() { folders.next() } else { None };
        let goes = rank.gather(&[f32::from(u8::from(folder.is_some()))])?;
        if goes.first() != Some(&1.0) {
            return written;
        }
        match folder {
            Some(folder) => written = write_all(rank, &folder, step).map(Some),
            None => send(rank)?,
        }
    }
}

/// Writes the files of all ranks to a new folder in `folder`; rank 0 calls this.
fn write_all<S: Saved>(rank: &mut S, folder: &Path, step: u64) -> Result<PathBuf, Error> {
    let written = new_folder(folder).and_then(|folder| {
        let draft = Draft::create(&folder, step)?;
        let plan = rank.write(&draft)?;
        Ok((draft, plan))
    });
    // The others send their files whether or not this rank can write them.
    let mut others = Ok(());
    receive(rank, &BTreeMap::new(), |name, bytes| {
        if let (Ok((draft, _)), Ok(())) = (&written, &others) {
            others = match S::Record::is_file(name) {
                true => draft.write(name, &[bytes]),
                false => {
                    let message = format!("'{name}' is not a file of a checkpoint");
                    Err(Error::new(Kind::Invalid, message))
                }
            };
        }
    })?;
    let (draft, plan) = written?;
    others?;
    let manifest = rank.seal(&draft, plan)?;
    Ok(draft.publish(step, manifest)?.unwrap_or_default())
}

/// Sends this rank's files to rank 0.
fn send<S: Saved>(rank: &mut S) -> Result<(), Error> {
    let draft = Draft::in_memory();
    rank.write(&draft)?;
    receive(rank, &draft.into_files(), |_, _| {})
}

/// Passes rank 0 the files of all others, one after the other.
fn receive<S: Saved>(
    rank: &mut S,
    mine: &BTreeMap<String, Vec<u8>>,
    mut take: impl FnMut(&str, &[u8]),
) -> Result<(), Error> {
    let own = rank.world().rank().index();
    let names: Vec<(&String, usize)> = mine.iter().map(|(name, it)| (name, it.len())).collect();
    let names = serde_json::to_vec(&names).expect("names and numbers are JSON");
    let all = rank.gather_bytes(names)?;
    for (sender, names) in all.iter().enumerate().skip(1) {
        let wrong = |error| format!("names of the files of rank {sender}: {error}");
        let files: Vec<(String, usize)> = serde_json::from_slice(names)
            .map_err(|error| Error::new(Kind::Failed, wrong(error)))?;
        for (name, length) in files {
            let mut bytes = Vec::new();
            for start in (0..length).step_by(PIECE_BYTES) {
                let piece = start..length.min(start + PIECE_BYTES);
                let piece = if sender == own { mine[&name][piece].to_vec() } else { Vec::new() };
                let mut pieces = rank.gather_bytes(piece)?;
                if own == 0 {
                    bytes.append(&mut pieces[sender]);
                }
            }
            take(&name, &bytes);
        }
    }
    Ok(())
}

/// Makes a folder that only this user can read, since others may write to the temporary folder.
fn new_folder(parent: &Path) -> Result<PathBuf, Error> {
    let token = new_token()?;
    let folder = parent.join(format!("thinwire-rescue-{}", &token[..8]));
    let made = std::fs::create_dir_all(parent)
        .and_then(|()| DirBuilder::new().mode(0o700).create(&folder));
    made.map_err(|e| Error::io("create", &folder, e))?;
    Ok(folder)
}
