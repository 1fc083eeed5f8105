//! Draft: the files of a checkpoint or snapshot before it is published under its name.
//!
//! In a folder, a draft is a hidden folder, which is renamed once it is complete. Objects of a bucket
//! cannot be renamed. So in a bucket, the files stay in a folder that no other draft has, and the
//! manifest, which is written last, names this folder. Law: a checkpoint replaces another one by this
//! single write, and files that a manifest may name are not removed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Kind};
use crate::manifest::{
    FileCheck, MANIFEST, MANIFEST_BYTES_MAX, Manifest, Record, Series, TOKEN_LETTERS, folder_in,
    is_token, new_token,
};
use crate::{Location, PATIENCE, Start, Store, newest};

/// Beginning and end of the name of a draft's folder.
const PARTIAL: [&str; 2] = [".", ".partial"];
/// Age at which a draft of a snapshot counts as abandoned.
const STALE: Duration = Duration::from_secs(24 * 60 * 60);
/// Age from which on no process is waiting for a probe.
const PROBE: Duration = Duration::from_secs(60);

/// A checkpoint or snapshot that is being written.
#[derive(Debug)]
pub struct Draft(Files);

#[derive(Debug)]
enum Files {
    Stored(Stored),
    /// Bytes by name, for a rank whose files another rank writes.
    Memory(RefCell<BTreeMap<String, Vec<u8>>>),
}

#[derive(Debug)]
struct Stored {
    store: Arc<dyn Store>,
    series: Series,
    /// Folder of the files in the store.
    folder: String,
    /// Name of the folder as the manifest contains it, if the files stay in this folder.
    noted: String,
    /// Whether a manifest that names the files may be in the store.
    is_named: Cell<bool>,
}

impl Draft {
    /// Starts the checkpoint of `step` in `place`, a folder or `s3://BUCKET/PREFIX`. Only rank 0 calls this.
    ///
    /// # Errors
    /// If the folder cannot be made, or the bucket has no address or credentials.
    pub fn create(place: &Path, step: u64) -> Result<Draft, Error> {
        Draft::create_in(Location::from(place).store_within(PATIENCE)?, step)
    }

    /// Starts the checkpoint of `step` in a store, as [`Draft::create`] does.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn create_in(store: Arc<dyn Store>, step: u64) -> Result<Draft, Error> {
        let token = new_token()?;
        let draft = Draft::of_step(store, step, &token[..TOKEN_LETTERS]);
        let Stored { store, folder, .. } = draft.stored()?;
        store.begin(folder, Start::Alone)?;
        Ok(draft)
    }

    /// Joins the checkpoint that rank 0 has started. `token` is the token of its draft.
    ///
    /// # Errors
    /// If a bucket has no address or credentials.
    pub fn open(place: &Path, step: u64, token: &str) -> Result<Draft, Error> {
        Ok(Draft::of_step(Location::from(place).store_within(PATIENCE)?, step, token))
    }

    fn of_step(store: Arc<dyn Store>, step: u64, token: &str) -> Draft {
        let name = Series::Steps.name(step);
        let noted = if store.renames() { String::new() } else { token.to_owned() };
        let [start, end] = PARTIAL;
        let folder = match store.renames() {
            true => format!("{start}{name}{end}"),
            false => Series::Steps.files(&name, token),
        };
        Draft::new(store, Series::Steps, folder, noted)
    }

    /// Starts a snapshot, unless another process has started it, and removes abandoned snapshots. All
    /// processes that take part give the same name, which no other draft has.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn of_snapshot(store: Arc<dyn Store>, name: &str) -> Result<Draft, Error> {
        let ([start, end], prefix) = (PARTIAL, Series::Snapshots.prefix());
        let folder = match store.renames() {
            true => format!("{start}{prefix}{name}{end}"),
            false => format!("files-{name}"),
        };
        store.begin(&folder, Start::Shared)?;
        let is_draft = |name: &str| {
            let name = name.strip_prefix(start).and_then(|name| name.strip_suffix(end));
            name.is_some_and(|name| name.starts_with(prefix))
        };
        // A draft that cannot be removed is left to the next snapshot.
        let _ = store.clean(&|name, age| is_draft(name) && age > STALE);
        Ok(Draft::new(store, Series::Snapshots, folder.clone(), folder))
    }

    fn new(store: Arc<dyn Store>, series: Series, folder: String, noted: String) -> Draft {
        Draft(Files::Stored(Stored { store, series, folder, noted, is_named: Cell::new(false) }))
    }

    /// Returns the files in a store.
    fn stored(&self) -> Result<&Stored, Error> {
        match &self.0 {
            Files::Stored(stored) => Ok(stored),
            Files::Memory(_) => {
                Err(Error::new(Kind::Invalid, "files in memory are no part of a checkpoint"))
            }
        }
    }

    /// Starts a draft with files in memory, for [`Draft::into_files`].
    pub fn in_memory() -> Draft {
        Draft(Files::Memory(RefCell::default()))
    }

    /// Returns the files of a draft in memory, by name.
    pub fn into_files(self) -> BTreeMap<String, Vec<u8>> {
        match self.0 {
            Files::Memory(files) => files.into_inner(),
            Files::Stored(_) => BTreeMap::new(),
        }
    }

    /// Returns the token with which other ranks join the draft; empty in a folder, which has only one draft
    /// per step.
    pub fn token(&self) -> &str {
        self.stored().map_or("", |stored| &stored.noted)
    }

    /// Returns the path of a file, for messages.
    pub fn path(&self, name: &str) -> PathBuf {
        self.stored().map_or(name.into(), |it| it.store.path(&it.folder, name).into())
    }

    /// Writes a new file from consecutive parts.
    ///
    /// # Errors
    /// If it cannot be written, or exists in a folder already.
    pub fn write(&self, name: &str, parts: &[&[u8]]) -> Result<(), Error> {
        match &self.0 {
            Files::Stored(it) => {
                it.store.write(&it.folder, name, parts).map_err(|error| it.unwritten(error))
            }
            Files::Memory(files) => {
                files.borrow_mut().insert(name.to_owned(), parts.concat());
                Ok(())
            }
        }
    }

    /// Returns whether a file exists.
    ///
    /// # Errors
    /// If the store does not answer.
    pub fn has(&self, name: &str) -> Result<bool, Error> {
        Ok(self.find_length(name)?.is_some())
    }

    /// Reads a file of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// If it cannot be read, or is longer.
    pub fn read(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, Error> {
        let it = self.stored()?;
        it.store.read(&it.folder, name, bytes_max).map_err(|error| it.unwritten(error))
    }

    /// Returns the length of a file in bytes.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn length(&self, name: &str) -> Result<u64, Error> {
        self.find_length(name)?.ok_or_else(|| {
            let path = self.path(name);
            match self.stored().is_ok_and(|it| it.store.renames()) {
                true => Error::io("read", &path, io::ErrorKind::NotFound.into()),
                // Nobody moves a bucket away, which would explain a missing file.
                false => Error::new(Kind::Io, format!("{}: no such object", path.display())),
            }
        })
    }

    fn find_length(&self, name: &str) -> Result<Option<u64>, Error> {
        let it = self.stored()?;
        it.store.length(&it.folder, name).map_err(|error| it.unwritten(error))
    }

    /// Removes a file.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        let it = self.stored()?;
        it.store.remove(&it.folder, name)
    }

    /// Reads files back, and returns their lengths and checksums.
    ///
    /// # Errors
    /// If one is missing or cannot be read.
    pub fn read_back(
        &self,
        names: impl IntoIterator<Item = String>,
    ) -> Result<BTreeMap<String, FileCheck>, Error> {
        let check = |name: String| {
            let bytes = self.read(&name, self.length(&name)?)?;
            Ok((name, FileCheck::of(&bytes)))
        };
        names.into_iter().map(check).collect()
    }

    /// Writes the manifest, by which the draft becomes the checkpoint with this number. Returns the
    /// checkpoint's path, or `None` if a snapshot with this number exists already. A checkpoint of the
    /// same step is replaced; other files in its folder that do not belong to a checkpoint are kept.
    ///
    /// # Errors
    /// If the manifest cannot be written, or the checkpoint cannot be given its name.
    pub fn publish<T: Record>(
        &self,
        number: u64,
        mut manifest: Manifest<T>,
    ) -> Result<Option<PathBuf>, Error> {
        let it = self.stored()?;
        let Stored { store, series, folder, noted, is_named } = it;
        let name = series.name(number);
        manifest.folder = (!store.renames()).then(|| noted.clone());
        let publish = || {
            let is_replaced = *series == Series::Steps;
            // A store that does not answer now is not asked to write: the time to leave a checkpoint is short.
            let asks = is_replaced && !store.renames();
            let old = if asks { named_folder(&**store, &name)? } else { None };
            // A store that fails to answer may have written it.
            is_named.set(true);
            let is_file = is_replaced.then_some(T::is_file as fn(&str) -> bool);
            let is_free = store.publish(folder, &name, &manifest.to_text(), is_file)?;
            if let Some(old) = old.filter(|old| old != noted) {
                store.discard(&series.files(&name, &old));
            }
            Ok(is_free.then(|| store.path(&name, "").into()))
        };
        publish().map_err(|error| it.unwritten(error))
    }

    /// Removes the files so far, if the draft cannot be completed. Only rank 0 calls this. Nothing is removed
    /// from a bucket once [`Draft::publish`] has begun, since a request that fails may have been carried out.
    pub fn discard(&self) {
        // What is left is removed by the next one who writes here.
        if let Files::Stored(it) = &self.0
            && (it.store.renames() || !it.is_named.get())
        {
            it.store.discard(&it.folder);
        }
    }

    /// Removes the draft of a snapshot, unless it is the newest snapshot: it may have been published by
    /// a process that has not received the store's answer.
    pub fn discard_unless_newest(&self) {
        let is_own = |it: &Stored| {
            let Some(number) = newest(&*it.store, it.series)? else { return Ok(false) };
            let named = named_folder(&*it.store, &it.series.name(number))?;
            Ok(named.as_ref() == Some(&it.noted))
        };
        if let Ok(false) = self.stored().and_then(is_own) {
            self.discard();
        }
    }
}

impl Stored {
    /// Converts an error of the store to an error of a checkpoint, which for a folder always names the
    /// file.
    fn unwritten(&self, error: Error) -> Error {
        match self.series {
            Series::Steps if !self.store.renames() => error.context("cannot write the checkpoint"),
            Series::Steps | Series::Snapshots => error,
        }
    }
}

/// Returns the folder that the manifest of a checkpoint names, if there is a valid manifest.
fn named_folder(store: &dyn Store, name: &str) -> Result<Option<String>, Error> {
    Ok(store.find(name, MANIFEST, MANIFEST_BYTES_MAX)?.and_then(|text| folder_in(&text)))
}

/// Removes from a folder or bucket the checkpoints that were begun and not completed, and the test files
/// of processes that were killed. No process may be writing there.
///
/// # Errors
/// If the folder or bucket cannot be read, or something in it cannot be removed.
pub fn clean(place: &Path) -> Result<(), Error> {
    clean_store(&*Location::from(place).store()?)
}

/// Removes from a store what [`clean`] removes.
///
/// # Errors
/// As [`clean`].
pub fn clean_store(store: &dyn Store) -> Result<(), Error> {
    let ([start, end], prefix) = (PARTIAL, Series::Steps.prefix());
    store.clean(&|name, age| {
        let draft = name.strip_prefix(start).and_then(|name| name.strip_suffix(end));
        let step = draft.and_then(|draft| draft.strip_prefix(prefix));
        let is_probe = name.strip_prefix(".probe-").is_some_and(is_token);
        step.is_some_and(|step| step.parse::<u64>().is_ok()) || (is_probe && age > PROBE)
    })?;
    if store.renames() { Ok(()) } else { clean_folders(store) }
}

/// Removes the files in a bucket that no manifest names.
fn clean_folders(store: &dyn Store) -> Result<(), Error> {
    let files = store.list(Series::Steps.prefix())?;
    let mut steps: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in &files {
        let parts: Vec<&str> = file.split('/').collect();
        if let [step, token, _] = parts[..]
            && Series::Steps.number_of(step).is_some()
            && is_token(token)
        {
            steps.entry(step).or_default().insert(token);
        }
    }
    for (step, mut tokens) in steps {
        let is_sealed = files.contains(&format!("{step}/{MANIFEST}"));
        // One folder and a manifest belong together: most are not read.
        if is_sealed && tokens.len() == 1 {
            continue;
        }
        if is_sealed {
            let Ok(Some(named)) = named_folder(store, step) else { continue };
            tokens.remove(&*named);
        }
        tokens.iter().for_each(|token| store.discard(&Series::Steps.files(step, token)));
    }
    Ok(())
}
