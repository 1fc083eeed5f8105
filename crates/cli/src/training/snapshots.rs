//! Snapshots of a training whose parameters live on servers: flags, and the rank that asks for them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow};
use thinwire_job::elastic::Seat;
use thinwire_server::{Definition, Snapshot, take_snapshot};

use crate::failure::{self, hinted};
use crate::output::say;

/// Longest time that a snapshot takes: servers give it up before.
pub const PATIENCE: Duration = Duration::from_secs(900);

/// Flags of snapshots.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct SnapshotFlags {
    /// With --mode server, where the servers write snapshots, a folder that they share
    #[arg(long, value_name = "FOLDER")]
    snapshot_dir: Option<PathBuf>,
    /// With --snapshot-dir, after how many steps a snapshot is written [default: when somebody asks, by thinwire
    /// snapshot]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    snapshot_every: Option<u64>,
    /// With --mode server, go on from this snapshot, or from the newest in this folder, with any number of servers
    #[arg(long, value_name = "SNAPSHOT")]
    restore: Option<PathBuf>,
}

/// Snapshots of a training.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshots {
    folder: Option<PathBuf>,
    every: Option<u64>,
    restore: Option<PathBuf>,
}

impl SnapshotFlags {
    /// Returns the snapshots of a training.
    ///
    /// # Errors
    /// If a flag needs another one.
    pub fn resolve(&self) -> Result<Snapshots> {
        let SnapshotFlags { snapshot_dir, snapshot_every, restore } = self.clone();
        if let (None, Some(every)) = (&snapshot_dir, snapshot_every) {
            let error = anyhow!("--snapshot-every {every} without a folder for snapshots");
            return Err(hinted(error, "add --snapshot-dir FOLDER, or leave it out"));
        }
        Ok(Snapshots { folder: snapshot_dir, every: snapshot_every, restore })
    }

    /// Returns the flag that was given, as it was typed.
    pub fn flag(&self) -> Option<String> {
        let path = |name, path: &Option<PathBuf>| {
            path.as_ref().map(|path| format!("--{name} {}", path.display()))
        };
        let every = self.snapshot_every.map(|every| format!("--snapshot-every {every}"));
        path("snapshot-dir", &self.snapshot_dir).or(every).or(path("restore", &self.restore))
    }
}

impl Snapshots {
    /// Returns the arguments of a server of the training.
    pub fn server_arguments(&self) -> Vec<OsString> {
        let flags = [("--snapshot-dir", &self.folder), ("--restore", &self.restore)];
        let given = flags.into_iter().filter_map(|(flag, path)| Some((flag, path.clone()?)));
        given.flat_map(|(flag, path)| [flag.into(), path.into_os_string()]).collect()
    }

    /// Lets a definition go on from the snapshot, if there is one.
    ///
    /// # Errors
    /// If there is no snapshot where it should be, or it is of another model.
    pub fn restore(&self, definition: Definition) -> Result<Definition> {
        let Some(path) = &self.restore else { return Ok(definition) };
        let snapshot = Snapshot::open(path)?;
        snapshot.check(&definition)?;
        Ok(Definition { restore: Some(snapshot.name()), ..definition })
    }

    /// Returns what asks for snapshots, if they are written regularly.
    pub fn asker(&self, seat: &Seat) -> Option<Asker> {
        let every = self.every?;
        Some(Asker { every, seat: seat.clone(), thread: None })
    }
}

/// Asker for snapshots after some steps. Training goes on meanwhile; dropped, it waits for the last one.
#[derive(Debug)]
pub struct Asker {
    every: u64,
    seat: Seat,
    thread: Option<JoinHandle<()>>,
}

impl Asker {
    /// Takes note that so many steps are done.
    pub fn stepped(&mut self, steps: u64) {
        if !steps.is_multiple_of(self.every) {
            return;
        }
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return say(format!(
                "no snapshot after step {steps}: the one before is not written yet"
            ));
        }
        let seat = self.seat.clone();
        let thread = std::thread::Builder::new().name("thinwire snapshot".to_owned());
        let spawned = thread.spawn(move || match take_snapshot(&seat, PATIENCE) {
            Ok(name) => say(format!("{name} is written, after step {steps} or later")),
            Err(error) => {
                let (text, _) = failure::lines(&error.into());
                say(format!("no snapshot after step {steps}: {text}"));
            }
        });
        // Without a thread there is no snapshot this time.
        self.thread = spawned.ok();
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}
