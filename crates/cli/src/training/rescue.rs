//! The last checkpoint of a training, which is not lost with its folder.
//!
//! The folder may be full, unmounted or removed when the training ends. Ranks try again until [`RETRY`], or
//! as many seconds as [`RETRY_VARIABLE`] says, have passed since the first attempt began. Then rank 0 writes the
//! checkpoint to a new folder in the one that [`FOLDER_VARIABLE`] names, or in the temporary one. Other ranks send it
//! their files: no folder but the lost one is known to be shared. The error that follows names the path. Law: a
//! checkpoint that was saved so equals the one that the folder would have got.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow};
use thinwire_train::checkpoint::{Draft, Progress, commit};
use thinwire_wire::{Rank, World};

use super::folder::{is_away, is_superseded, is_taken};
use super::settings::CheckpointPolicy;
use super::{lease, machine};
use crate::failure::{self, hinted};
use crate::output::say;

/// Variable with the folder for a checkpoint whose own folder cannot be written.
const FOLDER_VARIABLE: &str = "THINWIRE_RESCUE_DIR";
/// Variable with the seconds for which a last checkpoint is tried.
const RETRY_VARIABLE: &str = "THINWIRE_RESCUE_AFTER_S";
/// Time for which a last checkpoint is tried, from its first attempt on: less than a launcher waits for ranks after a signal.
const RETRY: Duration = Duration::from_secs(5);
/// Pause before it is tried again.
const PAUSE: Duration = Duration::from_millis(500);
/// Most bytes of a file that ranks send at once.
const PIECE_BYTES: usize = 1 << 20;

/// Rank whose state a checkpoint keeps.
pub trait Saved {
    /// Returns this rank among those that write the checkpoint.
    fn world(&self) -> World;

    /// Returns the numbers of all ranks, in their order.
    ///
    /// # Errors
    /// If a rank is lost.
    fn gather(&mut self, mine: &[f32]) -> Result<Vec<f32>>;

    /// Returns the bytes of all ranks, in their order.
    ///
    /// # Errors
    /// If a rank is lost.
    fn gather_bytes(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>>;

    /// Writes this rank's files. Returns the plan of its exchange.
    ///
    /// # Errors
    /// If a file cannot be written.
    fn write(&mut self, draft: &Draft) -> Result<String>;

    /// Returns where the training stands, on rank 0.
    ///
    /// # Errors
    /// If the model has no name.
    fn progress(&mut self, plan: String) -> Result<Progress>;
}

/// Next action after an attempt has failed; rank 0 decides.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    Again = 1,
    Rescue,
    GiveUp,
    Skip,
}

/// Moment at which a checkpoint is written.
#[derive(Clone, Copy)]
enum Moment<'p> {
    Last,
    Between(&'p CheckpointPolicy),
}

/// Saves the last checkpoint of a training by `attempt`, which is repeated for a while, and else in another folder;
/// all ranks call this.
///
/// # Errors
/// If no attempt succeeds, also where the checkpoint is in another folder, which the error names; or if a rank is
/// lost.
pub fn last<S: Saved, T>(
    rank: &mut S,
    step: u64,
    attempt: impl FnMut(&mut S) -> Result<T>,
) -> Result<T> {
    let saved = save(rank, (step, Moment::Last), attempt)?;
    saved.context("a last checkpoint is not left out")
}

/// Saves a checkpoint by `attempt` as [`last`] does, unless its folder is away for a while or its bucket does not take
/// it: then none is returned, and training goes on; all ranks call this.
///
/// # Errors
/// As [`last`].
pub fn between<S: Saved, T>(
    rank: &mut S,
    policy: &CheckpointPolicy,
    step: u64,
    attempt: impl FnMut(&mut S) -> Result<T>,
) -> Result<Option<T>> {
    save(rank, (step, Moment::Between(policy)), attempt)
}

/// Refuses a variable of these that has no time, before the first step.
///
/// # Errors
/// If one has something else.
pub fn check_variables() -> Result<()> {
    lease::term()?;
    machine::seconds_of(RETRY_VARIABLE).map(drop)
}

fn save<S: Saved, T>(
    rank: &mut S,
    (step, moment): (u64, Moment<'_>),
    mut attempt: impl FnMut(&mut S) -> Result<T>,
) -> Result<Option<T>> {
    let retry = machine::seconds_of(RETRY_VARIABLE).ok().flatten().unwrap_or(RETRY);
    let (began, mut is_told) = (Instant::now(), false);
    loop {
        let error = match attempt(rank) {
            Err(error) if failure::lost_rank(&error).is_none() => error,
            done => return done.map(Some),
        };
        let next = match moment {
            // Another process has a newer state.
            _ if is_superseded(&error) => Next::GiveUp,
            Moment::Between(policy) if may_skip(policy, &error) => Next::Skip,
            // A store that was silent for all this time would be so again, and the launcher waits no longer.
            _ if began.elapsed() < retry => Next::Again,
            _ => Next::Rescue,
        };
        match rank.gather(&[next as u8 as f32])?.first() {
            Some(next) if *next == Next::Again as u8 as f32 => {
                if !std::mem::replace(&mut is_told, true) {
                    tell_retry(&error, retry);
                }
                thread::sleep(PAUSE);
            }
            Some(next) if *next == Next::Rescue as u8 as f32 => {
                return Err(rescued(error, elsewhere(rank, step)));
            }
            Some(next) if *next == Next::Skip as u8 as f32 => {
                warn_unsaved(&error.context(format!("saving step {step}")));
                return Ok(None);
            }
            _ => return Err(error),
        }
    }
}

/// Returns whether training goes on without a checkpoint that failed. A bucket takes the next one, unless it is another
/// training's by now.
fn may_skip(policy: &CheckpointPolicy, error: &Error) -> bool {
    is_away(error) || (policy.is_in_bucket() && !is_taken(error))
}

/// Tells that a checkpoint could not be written; the rank that cannot write it tells why.
pub fn warn_unsaved(error: &Error) {
    if failure::is_echo(error) {
        return;
    }
    let (message, hint) = failure::lines(error);
    let hint = hint.map_or(String::new(), |hint| format!(" (hint: {hint})"));
    say(format!("warning: {message}{hint}; the training goes on without this checkpoint"));
}

fn tell_retry(error: &Error, retry: Duration) {
    if !failure::is_echo(error) {
        let (message, _) = failure::lines(error);
        let seconds = retry.as_secs_f64();
        say(format!("warning: {message}; trying to save the checkpoint for {seconds} s"));
    }
}

/// Adds to an error where the checkpoint is now, if this rank has written it.
fn rescued(error: Error, written: Result<Option<PathBuf>>) -> Error {
    let (message, hint) = failure::lines(&error);
    match written {
        Ok(None) => error,
        Ok(Some(path)) => {
            let saved = format!("{message}; the checkpoint is in {} instead", path.display());
            hinted(anyhow!(saved), machine::go_on(&path))
        }
        Err(lost) if failure::lost_rank(&lost).is_some() => lost,
        Err(other) => {
            let (other, _) = failure::lines(&other);
            let hint =
                hint.unwrap_or_else(|| format!("set {FOLDER_VARIABLE} to a folder with room"));
            hinted(anyhow!("{message}; nor is the checkpoint saved elsewhere: {other}"), hint)
        }
    }
}

/// Writes the checkpoint to another folder. Returns its path on rank 0.
fn elsewhere<S: Saved>(rank: &mut S, step: u64) -> Result<Option<PathBuf>> {
    let named = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty());
    let folders = named.map(PathBuf::from).into_iter().chain([std::env::temp_dir()]);
    let is_first = rank.world().rank() == Rank(0);
    let mut folders = folders.filter(|_| is_first);
    let mut written = if is_first { Err(anyhow!("no folder takes it")) } else { Ok(None) };
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
fn write_all<S: Saved>(rank: &mut S, folder: &Path, step: u64) -> Result<PathBuf> {
    let written = new_folder(folder).and_then(|folder| {
        let draft = Draft::create(&folder, step)?;
        let plan = rank.write(&draft)?;
        Ok((draft, plan))
    });
    // The others send their files whether or not this rank can write them.
    let mut others = Ok(());
    receive(rank, &BTreeMap::new(), |name, bytes| {
        if let (Ok((draft, _)), Ok(())) = (&written, &others) {
            others = draft.write(name, &[bytes]);
        }
    })?;
    let (draft, plan) = written?;
    others?;
    Ok(commit(&draft, rank.progress(plan)?)?)
}

/// Sends this rank's files to rank 0.
fn send<S: Saved>(rank: &mut S) -> Result<()> {
    let draft = Draft::in_memory();
    rank.write(&draft)?;
    receive(rank, &draft.into_files(), |_, _| {})
}

/// Gives rank 0 the files of all others, one after the other.
fn receive<S: Saved>(
    rank: &mut S,
    mine: &BTreeMap<String, Vec<u8>>,
    mut take: impl FnMut(&str, &[u8]),
) -> Result<()> {
    let own = rank.world().rank().index();
    let names: Vec<(&String, usize)> = mine.iter().map(|(name, it)| (name, it.len())).collect();
    let all = rank.gather_bytes(serde_json::to_vec(&names)?)?;
    for (sender, names) in all.iter().enumerate().skip(1) {
        let files: Vec<(String, usize)> = serde_json::from_slice(names)
            .with_context(|| format!("names of the files of rank {sender}"))?;
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

/// Makes a folder that only this user can read, as others may write to the temporary one.
fn new_folder(parent: &Path) -> Result<PathBuf> {
    let token = thinwire_link::Token::random()?;
    let folder = parent.join(format!("thinwire-rescue-{}", &token[..8]));
    let made = std::fs::create_dir_all(parent)
        .and_then(|()| DirBuilder::new().mode(0o700).create(&folder));
    made.with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}
