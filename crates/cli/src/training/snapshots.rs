//! Snapshots of a training with servers: flags, and requests by rank 0.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow};
use thinwire_checkpoint::Location;
use thinwire_job::elastic::JobAddress;
use thinwire_server::{Origin, take_snapshot};
use thinwire_train::session::AfterPush;

use crate::failure::{self, OrHint, hinted};
use crate::output::say;

/// Longest wait for a snapshot. Servers abandon a snapshot earlier.
pub const PATIENCE: Duration = Duration::from_secs(900);

/// Flags of snapshots.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct SnapshotFlags {
    /// Folder of the servers' snapshots
    ///
    /// All servers share it. It may be s3://BUCKET/PREFIX.
    #[arg(long, value_name = "DIR")]
    snapshot_dir: Option<PathBuf>,
    /// Steps between snapshots [default: only on request]
    ///
    /// `thinwire snapshot` requests one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), hide_short_help = true)]
    snapshot_every: Option<u64>,
    /// Snapshot or safetensors file to begin with
    ///
    /// With servers, begin with the rows of this snapshot, with the rows of the newest snapshot in this
    /// folder, or with the values of this safetensors file. The number of servers may differ from the
    /// number in the snapshot's job.
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    restore: Option<PathBuf>,
}

/// Settings of a training's snapshots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshots {
    folder: Option<PathBuf>,
    every: Option<u64>,
    restore: Option<PathBuf>,
}

impl SnapshotFlags {
    /// Returns the settings.
    ///
    /// # Errors
    /// If a flag needs another one that is missing.
    pub fn resolve(&self) -> Result<Snapshots> {
        let SnapshotFlags { snapshot_dir, snapshot_every, restore } = self.clone();
        if let (None, Some(every)) = (&snapshot_dir, snapshot_every) {
            let error = anyhow!("--snapshot-every {every} needs a folder for snapshots");
            return Err(hinted(error, "add --snapshot-dir FOLDER, or leave --snapshot-every out"));
        }
        Ok(Snapshots { folder: snapshot_dir, every: snapshot_every, restore })
    }

    /// Returns one of the given flags, as typed.
    pub fn flag(&self) -> Option<String> {
        let path = |name, path: &Option<PathBuf>| {
            path.as_ref().map(|path| format!("--{name} {}", path.display()))
        };
        let every = self.snapshot_every.map(|every| format!("--snapshot-every {every}"));
        path("snapshot-dir", &self.snapshot_dir).or(every).or(path("restore", &self.restore))
    }
}

impl Snapshots {
    /// Returns the snapshot flags for a server that the launcher starts.
    pub fn server_arguments(&self) -> Vec<OsString> {
        let flags = [("--snapshot-dir", &self.folder), ("--restore", &self.restore)];
        let given = flags.into_iter().filter_map(|(flag, path)| Some((flag, path.clone()?)));
        given.flat_map(|(flag, path)| [flag.into(), path.into_os_string()]).collect()
    }

    /// Checks that there is a snapshot to restore, and that the folder of snapshots is writable. Creates the
    /// folder if it is missing.
    ///
    /// # Errors
    /// If one of the checks fails.
    pub fn check(&self) -> Result<()> {
        // Servers and ranks read a checkpoint's content, which may be long.
        if let Some(path) = self.restore.as_ref().filter(|path| !path.is_file()) {
            Origin::open(&path.as_path().into())?;
        }
        self.folder.as_deref().map_or(Ok(()), ensure_writable)
    }

    /// Opens the files of `--restore`, if the flag is given.
    ///
    /// # Errors
    /// If there are no files at that path, or they are damaged.
    pub fn origin(&self) -> Result<Option<Origin>> {
        let place = self.restore.as_deref().map(Location::from);
        Ok(place.as_ref().map(Origin::open).transpose()?)
    }

    /// Returns the requester of snapshots, or `None` without `--snapshot-every`.
    pub fn asker(&self, seat: &JobAddress) -> Option<AfterPush> {
        let mut asker = Asker { every: self.every?, seat: seat.clone(), thread: None };
        Some(Box::new(move |pushes| asker.stepped(pushes)))
    }
}

/// Returns the line about the files with which a job begins.
pub fn beginning(origin: &Origin) -> String {
    match origin {
        Origin::Snapshot(snapshot) => {
            let path = snapshot.path();
            let pushes = snapshot.frontier().pushes.values().max().copied().unwrap_or(0);
            let shards = snapshot.definition().shards;
            format!("continuing from {path}, taken after step {pushes}, in {shards} shards")
        }
        Origin::Checkpoint(checkpoint) => {
            format!("beginning with the values of {}", checkpoint.name())
        }
    }
}

/// Returns the warning for a training that begins with a snapshot and has `others` parameters outside the
/// servers.
pub fn warning(origin: Option<&Origin>, others: usize) -> Option<String> {
    let Some(Origin::Snapshot(snapshot)) = origin.filter(|_| others > 0) else { return None };
    let path = snapshot.path();
    Some(format!(
        "{path}: snapshots do not contain the {others} parameters that are not on servers; these begin again"
    ))
}

/// Checks that the folder of snapshots is writable, and creates it if it is missing.
///
/// # Errors
/// If it is not writable.
pub fn ensure_writable(place: &Path) -> Result<()> {
    let checked = Location::from(place).check("snapshots");
    checked.or_hint("give a writable folder or bucket with --snapshot-dir, or none")
}

/// Requester of a snapshot after every N steps, during which training continues. Dropping it waits for the
/// current snapshot.
#[derive(Debug)]
struct Asker {
    every: u64,
    seat: JobAddress,
    thread: Option<JoinHandle<()>>,
}

impl Asker {
    /// Requests a snapshot if one is due after this number of steps. Prints a notice instead if the previous
    /// one is not complete.
    fn stepped(&mut self, steps: u64) {
        if !steps.is_multiple_of(self.every) {
            return;
        }
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return say(format!(
                "no snapshot after step {steps}: the previous one is not written yet"
            ));
        }
        let seat = self.seat.clone();
        let thread = std::thread::Builder::new().name("thinwire snapshot".to_owned());
        let spawned = thread.spawn(move || match take_snapshot(&seat, PATIENCE) {
            Ok(name) => say(format!("{name} is written, after step {steps} or later")),
            Err(error) => {
                let (text, hint) = failure::lines(&error.into());
                let hint = hint.map_or(String::new(), |hint| format!(" (hint: {hint})"));
                say(format!("no snapshot after step {steps}: {text}{hint}"));
            }
        });
        // If no thread can be started, this snapshot is skipped.
        self.thread = spawned.ok();
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}
