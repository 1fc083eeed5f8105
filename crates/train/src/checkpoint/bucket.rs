//! Files of a checkpoint in a bucket of an object store.
//!
//! Objects cannot be renamed. So the files are in a folder with a random name in that of the checkpoint, and the
//! manifest, which is written last, names it. Law: a checkpoint that replaces another one of its step does so in
//! this one write, and files that a manifest may name are not removed.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use thinwire_link::Token;
use thinwire_server::Store;

use super::manifest::{FileCheck, MANIFEST_BYTES_MAX, Manifest};
use super::names::{MANIFEST, STEP, is_token, step_of};
use crate::error::{Error, Kind};

/// Hexadecimal digits of the name of a draft.
const TOKEN_LETTERS: usize = 16;

/// Files of a checkpoint in a bucket. Errors are one line and name the file.
#[derive(Debug)]
pub(super) struct Objects {
    pub store: Arc<dyn Store>,
    /// Name of the checkpoint.
    pub name: String,
    /// Folder in that of the checkpoint, which no other draft has.
    pub token: String,
    /// Whether a manifest that names the files may be in the store.
    pub is_named: Cell<bool>,
}

impl Objects {
    /// Folder of the files in the store.
    pub fn folder(&self) -> String {
        format!("{}/{}", self.name, self.token)
    }

    /// Reads a file back; returns its length and checksum.
    pub fn check(&self, file: &str) -> Result<FileCheck, String> {
        let length = self.store.length(&self.folder(), file)?;
        Ok(FileCheck::of(&self.store.read(&self.folder(), file, length)?))
    }

    /// Removes all files, unless a manifest may name them.
    pub fn discard(&self) {
        if !self.is_named.get() {
            self.store.discard(&self.folder());
        }
    }

    /// Writes the manifest, and then removes the files of the one that it has replaced.
    pub fn publish(&self, manifest: Manifest) -> Result<PathBuf, String> {
        // A store that does not answer now is not asked to write: the time to leave a checkpoint is short.
        let replaced = named_folder(&*self.store, &self.name)?;
        let manifest = Manifest { folder: Some(self.token.clone()), ..manifest };
        // A store that fails to answer may have written it.
        self.is_named.set(true);
        self.store.write(&self.name, MANIFEST, &[manifest.to_text().as_bytes()])?;
        if let Some(old) = replaced.filter(|old| *old != self.token) {
            self.store.discard(&format!("{}/{old}", self.name));
        }
        Ok(self.store.path(&self.name, "").into())
    }
}

/// Returns the folder that the manifest of a checkpoint names, if there is a manifest and it is one.
fn named_folder(store: &dyn Store, name: &str) -> Result<Option<String>, String> {
    let text = store.find(name, MANIFEST, MANIFEST_BYTES_MAX)?;
    Ok(text.and_then(|text| Manifest::from_text(&text).ok()?.folder))
}

/// Returns a name that no other draft has.
pub(super) fn new_token() -> Result<String, Error> {
    let token = Token::random().map_err(|error| unwritten(error.to_string()))?;
    Ok(token[..TOKEN_LETTERS].to_owned())
}

/// Returns the error of a store as that of a checkpoint.
pub(super) fn unwritten(why: String) -> Error {
    Error::new(Kind::Io, format!("cannot write the checkpoint: {why}"))
}

/// Removes the files in a bucket that no manifest names.
pub(super) fn clean(store: &dyn Store) -> Result<(), Error> {
    let files = store.list(STEP).map_err(|why| Error::new(Kind::Io, why))?;
    let mut steps: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in &files {
        let parts: Vec<&str> = file.split('/').collect();
        if let [step, token, _] = parts[..]
            && step_of(step).is_some()
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
        tokens.iter().for_each(|token| store.discard(&format!("{step}/{token}")));
    }
    Ok(())
}
